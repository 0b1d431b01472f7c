"""Inputs in files that a model cannot take, and what its card says that it takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb

ROWS = 60
RNG = np.random.default_rng(0)
USERS = np.arange(ROWS) % 3


@pytest.fixture(scope="module")
def of_columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained on the columns age and weight of a table."""
    folder = tmp_path_factory.mktemp("columns")
    lines = [f"{a:.3f},{b:.3f},{u},{a > b:d}" for (a, b), u in zip(RNG.random((ROWS, 2)), USERS)]
    (folder / "train.csv").write_text("\n".join(["age,weight,user,label", *lines]))
    options = f'options={{path="{folder / "train.csv"}"}}'
    changes = [
        f'data={{name="csv", {options}, partition={{name="by_user"}}}}',
        'net={name="mlp", hidden=[4]}',
        "rounds=1",
    ]
    run = fb.run(fb.read_config("digits-fedavg", changes), folder / "run")
    return fb.export_model(run.folder, client=0, format="safetensors", out=folder / "m.safetensors")


class Both(nn.Module):
    """A net of measurements and a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.out = nn.Embedding(4, 2), nn.Linear(5, 2)

    def forward(self, cont: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([cont, self.kinds(kind)], -1))


@pytest.fixture(scope="module")
def of_fields(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fb.FedAvg]:
    """A model of the fields cont and kind, for two numbers."""
    folder = tmp_path_factory.mktemp("fields")
    x = {"cont": RNG.normal(size=(ROWS, 3)), "kind": USERS}
    y = RNG.normal(size=(ROWS, 2))
    data = fb.Federation.from_users(x, y, USERS, task="regression")
    method = fb.FedAvg(fb.Net.of(Both, inputs=data.fields), lr=0.1)
    run = fb.run(method, data, rounds=1, out=folder / "run")
    file = fb.export_model(
        run.folder, 0, method=method, data=data, format="safetensors", out=folder / "m.safetensors"
    )
    return file, method


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("age,label\n0.1,1\n", 'has no column "weight"', "choose one of age, label"),
        ("Age,weight\n0.1,1\n", 'has no column "age"', 'did you mean "Age"'),
        ("age,weight,user\n0.1,1,anna\n", "", ""),  # what else is there does not matter
        ("age;weight\n0.1;1\n", 'separated by ";"', "commas"),
        ("age\tweight\n0.1\t1\n", "separated by tabs", "commas"),
        ("0.1;1\n", 'separated by ";"', "commas"),
        ("age,weight\n", "has no rows", "a line of numbers"),
        ("", "has no rows", "a line of numbers"),
    ],
)
def test_a_table_is_refused_for_what_is_wrong_with_it(
    text: str, said: str, fix: str, of_columns: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(text)
    if not said:
        assert len(fb.predict(of_columns, tmp_path / "new.csv").labels) == 1
        return
    with pytest.raises(fb.DataError) as caught:
        fb.predict(of_columns, tmp_path / "new.csv")
    assert said in caught.value.message and fix in caught.value.fix


def test_a_field_that_is_missing_is_named(
    of_fields: tuple[Path, fb.FedAvg], tmp_path: Path
) -> None:
    file, method = of_fields
    np.savez(tmp_path / "new.npz", cont=np.zeros((2, 3)))
    with pytest.raises(fb.DataError, match='has no array "kind" but cont') as caught:
        fb.predict(file, tmp_path / "new.npz", method)
    assert "cont, kind" in caught.value.fix
    np.savez(tmp_path / "new.npz", cont=np.zeros((2, 3)), kind=np.zeros(2, int))
    assert fb.predict(file, tmp_path / "new.npz", method).labels.shape == (2, 2)


def test_a_card_names_every_field_and_its_shape(of_fields: tuple[Path, fb.FedAvg]) -> None:
    text = of_fields[0].with_name("m.safetensors.md").read_text()
    assert "batches of cont: 3 (float32), kind: one number (int64), as" in text
