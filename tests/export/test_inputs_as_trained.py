"""Inputs of a trained model are taken as the data were, or refused; nothing is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb

WORDS, STEPS = 8, 4
Pair = tuple[fb.FedAvg, fb.Federation]


class Mixed(nn.Module):
    """Numbers and a category side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 3)
        self.out = nn.Linear(5, 2)

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        out: Tensor = self.out(torch.cat([numbers, self.kinds(kind[:, 0])], 1))
        return out


def of_words() -> Pair:
    words = np.random.default_rng(0).integers(0, WORDS, (60, STEPS))
    embed = lambda: nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(3 * STEPS, 2))
    data = fb.Federation.from_users(words, words[:, 0] % 2, np.arange(60) % 3)
    return fb.FedAvg(fb.Net.of(embed), lr=0.1), data


def of_fields() -> Pair:
    rng = np.random.default_rng(0)
    x = {
        "numbers": rng.normal(size=(60, 2)).astype("float32"),
        "kind": rng.integers(0, 4, (60, 1)),
    }
    data = fb.Federation.from_users(x, x["kind"][:, 0] % 2, np.arange(60) % 3)
    return fb.FedAvg(fb.Net.of(Mixed, inputs=data.fields), lr=0.1), data


def of_numbers() -> Pair:
    x = np.random.default_rng(0).normal(size=(60, STEPS))
    data = fb.Federation.from_users(x, x[:, 0] > 0, np.arange(60) % 3)
    return fb.FedAvg(fb.Net.of(lambda: nn.Linear(STEPS, 2)), lr=0.1), data


def exported(pair: Pair, folder: Path) -> Path:
    run = fb.run(*pair, rounds=1, out=folder / "run")
    path: Path = fb.export_model(run.folder, 0, "safetensors", folder / "m.safetensors", *pair)
    return path


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float64"])
def test_tokens_are_the_same_in_every_type_that_holds_them(tmp_path: Path, dtype: str) -> None:
    pair = of_words()
    model = exported(pair, tmp_path)
    words = pair[1].x[:5].numpy()
    np.savez(tmp_path / "x.npz", x=words.astype(dtype))
    found = fb.predict(model, tmp_path / "x.npz", pair[0]).probabilities
    own = fb.personal(tmp_path / "run", 0, *pair).predict(torch.from_numpy(words))
    assert np.allclose(found, own.softmax(-1).numpy(), atol=1e-6)


def test_fractions_of_tokens_are_refused(tmp_path: Path) -> None:
    pair = of_words()
    model = exported(pair, tmp_path)
    words = pair[1].x[:3].double().numpy()
    words[1, 2] = 1.7
    np.savez(tmp_path / "x.npz", x=words)
    with pytest.raises(fb.DataError, match=r"x\.npz: .* whole numbers .*row 1 has 1\.7"):
        fb.predict(model, tmp_path / "x.npz", pair[0])


@pytest.mark.parametrize("by_name", [True, False])
def test_fractions_of_a_category_beside_numbers_are_refused(tmp_path: Path, by_name: bool) -> None:
    pair = of_fields()
    model = exported(pair, tmp_path)
    numbers, kind = np.zeros((3, 2), "float32"), np.array([[1.0], [2.0], [2.5]])
    rows = np.concatenate([numbers, kind], 1)
    arrays: dict[str, Any] = {"numbers": numbers, "kind": kind} if by_name else {"x": rows}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(fb.DataError, match=r"kind must be whole numbers .*row 2 has 2\.5"):
        fb.predict(model, tmp_path / "x.npz", pair[0])
    rows[2, 2] = kind[2] = 3
    np.savez(tmp_path / "x.npz", **arrays)
    assert len(fb.predict(model, tmp_path / "x.npz", pair[0]).labels) == 3


def test_a_personal_model_takes_arrays_as_the_data_were(tmp_path: Path) -> None:
    pair = of_numbers()
    model = fb.personal(fb.run(*pair, rounds=1, out=tmp_path / "run"), 0, *pair)
    x = pair[1].x[:5]
    wanted = model.predict(x)
    assert torch.equal(model.predict(x.double()), wanted)
    assert torch.equal(model.predict(x.numpy()), wanted)
    assert torch.equal(model.predict(x.double().numpy()), wanted)


def test_a_personal_model_takes_fields_by_name(tmp_path: Path) -> None:
    pair = of_fields()
    model = fb.personal(fb.run(*pair, rounds=1, out=tmp_path / "run"), 0, *pair)
    rows = pair[1].x[:5]
    named = {"kind": rows[:, 2:].long().numpy(), "numbers": rows[:, :2].numpy()}
    assert torch.equal(model.predict(named), model.predict(rows))
    with pytest.raises(fb.DataError, match='no field "kind"'):
        model.predict({"numbers": rows[:, :2]})


@pytest.mark.parametrize(
    ("shape", "fix"), [((2, 9), "reshape"), ((STEPS,), r"x\[None\]"), ((), "reshape")]
)
def test_another_shape_is_refused_with_the_right_one(
    tmp_path: Path, shape: tuple[int, ...], fix: str
) -> None:
    pair = of_numbers()
    model = fb.personal(fb.run(*pair, rounds=1, out=tmp_path / "run"), 0, *pair)
    with pytest.raises(fb.DataError, match=rf"the model takes \[inputs, {STEPS}\]\n.*{fix}"):
        model.predict(np.zeros(shape))


@pytest.mark.parametrize("kind", ["parquet", "hugging face"])
def test_columns_of_bytes_are_refused_where_training_saw_other_numbers(
    kind: str, tmp_path: Path
) -> None:
    """They would become 0 to 1; a model of pictures takes them."""
    names = {"parquet": "pyarrow", "hugging face": "datasets"}
    package = pytest.importorskip(names[kind], reason=f"pip install {names[kind]}")
    bytes_ = np.arange(3 * STEPS, dtype=np.uint8).reshape(3, STEPS) * 20
    path = tmp_path / "new.parquet"
    if kind == "parquet":
        from pyarrow import parquet

        rows = package.array(list(bytes_), type=package.list_(package.uint8()))
        parquet.write_table(package.table({"x": rows}), path)
    else:
        features = package.Features({"x": package.Array2D((1, STEPS), "uint8")})
        path = tmp_path / "saved"
        package.Dataset.from_dict({"x": bytes_[:, None]}, features=features).save_to_disk(path)
    method, data = of_numbers()
    file = exported((method, data), tmp_path)
    with pytest.raises(fb.DataError, match=r'column "x" of .* holds bytes \(uint8\)'):
        fb.predict(file, path, method)
    pictures = np.random.default_rng(0).integers(0, 256, (60, STEPS), dtype=np.uint8)
    scaled = fb.Federation.from_users(pictures, pictures[:, 0] > 99, np.arange(60) % 3)
    (tmp_path / "scaled").mkdir()
    file = exported((method, scaled), tmp_path / "scaled")
    assert len(fb.predict(file, path, method).labels) == 3


def test_a_file_without_rows_is_told_as_such(tmp_path: Path) -> None:
    method, data = of_numbers()
    file = exported((method, data), tmp_path)
    np.savez(tmp_path / "new.npz", x=np.zeros((0, STEPS)))
    with pytest.raises(fb.DataError, match="holds no inputs: it has 0 rows") as caught:
        fb.predict(file, tmp_path / "new.npz", method)
    assert caught.value.fix == "give at least one"
