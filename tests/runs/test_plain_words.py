"""What goes wrong in somebody's first hours is named for what it is, with a fix that helps."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.cli.runs import show_run
from fedblocks.runs.progress import RunWarning

ROWS = 120
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
USERS = np.arange(ROWS) % 4
CLASSES = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def mlp(outputs: int, *last: nn.Module) -> fb.Net:
    return fb.Net.of(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs), *last)
    )


class Two(nn.Module):
    """A module of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(a + b)


class Sum(nn.Module):
    """The sum of a dictionary of inputs."""

    def forward(self, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        return fields["a"] + fields["b"]


def of_users(x: object, y: object, **options: object) -> fb.Federation:
    return fb.Federation.from_users(x, y, USERS, **options)  # type: ignore[arg-type]


def run(net: fb.Net, data: fb.Federation, kind: type = fb.FedAvg) -> None:
    fb.run(kind(net, lr=0.1), data, rounds=1)


def two_for_flow(kind: type) -> None:
    data = of_users({"a": X, "b": X}, CLASSES)
    net = fb.Net.of(lambda: nn.Sequential(Sum(), nn.Linear(4, 3)), inputs=data.fields)
    run(net, data, kind)


def one_field_for_two() -> None:
    data = of_users({"a": X}, CLASSES)
    run(fb.Net.of(Two, inputs=data.fields), data)


def starts_with_nan() -> nn.Module:
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, float("nan"))
    return nn.Sequential(layer)


class OwnStart(nn.Linear):
    """A user's module, which is checked against plain PyTorch, that starts with NaN."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        nn.init.constant_(self.bias, float("nan"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def from_words_in_parquet() -> None:
    table = pa.table({"a": X[:, 0], "user": USERS, "label": ["hot"] * ROWS})
    pq.write_table(table, "w.parquet")
    fb.Federation.from_parquet("w.parquet", task="regression")


COLUMN = np.zeros(ROWS)
ONE_HOT = np.eye(3, dtype=int)[CLASSES]
WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "flow of two inputs": (
        lambda: two_for_flow(fb.Flow),
        r"several inputs \(a, b\)",
        "one array",
    ),
    "flow v2 of two inputs": (
        lambda: two_for_flow(fb.FlowV2),
        r"several inputs \(a, b\)",
        "one array",
    ),
    "a flat regression net": (
        lambda: run(mlp(1, nn.Flatten(0)), of_users(X, COLUMN, task="regression")),
        r"1 number needs \[2, 1\]",
        r"return \[batch, 1\]",
    ),
    "a column of classes": (
        lambda: run(mlp(3), of_users(X, CLASSES[:, None])),
        r"need \[2, 1, 3\]",
        r"use y\[:, 0\]",
    ),
    "one-hot labels": (
        lambda: run(mlp(3), of_users(X, ONE_HOT)),
        "2 classes need",
        r"use y\.argmax\(1\) .*multi-label",
    ),
    "one field for two": (
        one_field_for_two,
        r"takes \(a, b\), and the inputs are a$",
        "a field b",
    ),
    "words in a regression": (
        lambda: of_users(X, np.array(["hot", "cold"])[USERS % 2], task="regression"),
        'the labels y hold <U4 such as "hot"',
        "for classes leave",
    ),
    "words in a regression on parquet": (
        from_words_in_parquet,
        'the label "label" of w.parquet holds words',
        "column of numbers",
    ),
    "words in a field": (
        lambda: of_users({"a": X, "b": np.array(["q"] * ROWS)}, CLASSES),
        "^b: arrays of type <U1",
        "give numbers",
    ),
    "a start with NaN": (
        lambda: run(fb.Net.of(starts_with_nan), of_users(X, CLASSES)),
        'starts with NaN in "0.weight"',
        "how the module draws it",
    ),
    "a start of one's own with NaN": (
        lambda: run(fb.Net.of(OwnStart), of_users(X, CLASSES)),
        'starts with NaN in "bias"',
        "how the module draws it",
    ),
    "a list of arrays": (
        lambda: of_users([X, X], CLASSES),
        "x is a list of 2 arrays of 120 rows",
        "dictionary.* or a tuple",
    ),
    "a list of arrays for a partition": (
        lambda: fb.Federation.from_arrays([X, X], CLASSES, [range(60), range(60, 120)]),
        "x is a list of 2 arrays of 120 rows",
        "dictionary.* or a tuple",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message, fix = WRONG[what]
    with pytest.raises(fb.UserError) as caught:
        call()
    assert re.search(message, caught.value.message), caught.value.message
    assert re.search(fix, caught.value.fix), caught.value.fix


def test_a_text_is_the_name_of_one_column(tmp_path: Path) -> None:
    lines = [f"{x[0]},{x[1]},{user},{label}" for x, user, label in zip(X, USERS, CLASSES)]
    (tmp_path / "t.csv").write_text("\n".join(["alter,rest,user,label", *lines]))
    data = fb.Federation.from_csv(tmp_path / "t.csv", columns="alter")
    assert data.about["columns"] == ["alter"] and data.x.shape == (ROWS, 1)


def test_rounds_count_from_one_for_samplers_too(tmp_path: Path) -> None:
    def all_in_the_second(candidates: fb.Candidates) -> list[int]:
        return [*candidates.ids] if candidates.round == 2 else [candidates.ids[0]]

    clients: dict[int, int] = {}
    fb.run(
        fb.FedAvg(mlp(3)),
        of_users(X, CLASSES),
        rounds=3,
        out=tmp_path / "run",
        sampler=all_in_the_second,
        on_round=lambda done: clients.update({done.round: done.clients}),
    )
    assert clients == {1: 1, 2: 4, 3: 1}


def test_a_note_counts_classes_that_are_not_known_but_not_what_fills_up_sequences() -> None:
    unknown = np.where(np.arange(ROWS) < 7, fb.data.IGNORE, CLASSES)
    assert "7 targets are missing (-100) and are not scored" in of_users(X, unknown).warnings()
    sequences = of_users(X, np.stack([CLASSES, unknown], 1), task="sequence-labelling")
    assert not any("missing" in text for text in sequences.warnings())


def test_every_wrong_name_of_a_task_is_reported() -> None:
    task = ('task.loss="foo"', 'task.metrics=["bar", "accuracy", "baz"]')
    with pytest.raises(fb.UserError) as caught:
        fb.read_config("digits-fedavg", [*task, "rounds=0"])
    text = str(caught.value)
    assert "4 problems" in text and "rounds" in text
    assert all(f'"{name}"' in text for name in ("foo", "bar", "baz"))
    with pytest.raises(fb.UserError) as caught:  # nothing more is known of what it has
        fb.read_config("digits-fedavg", ['task.kind="nothing"', *task])
    assert 'there is no task "nothing"' in caught.value.message and "foo" not in str(caught.value)


def test_an_optimizer_is_a_word_or_a_table() -> None:
    word = fb.read_config("digits-fedavg", ['method.optimizer="adamw"'])
    table = fb.read_config("digits-fedavg", ['method.optimizer={name="adamw"}'])
    assert word.method.table == table.method.table
    assert word.method.table["optimizer"]["name"] == "adamw"


def test_a_comparison_warns_once_of_what_all_its_runs_have(tmp_path: Path) -> None:
    undefined = fb.Metric("mine", lambda outputs, targets: float("nan") if len(targets) else 0.0)
    task = fb.Task("classification", metrics=["accuracy", undefined])
    methods = [fb.FedAvg(mlp(3)), fb.Local(mlp(3))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = of_users(X, CLASSES, task=task)
        fb.compare(methods, data, rounds=1, seeds=2, out=tmp_path / "c")
    assert sum('"mine" is NaN' in str(one.message) for one in caught) == 1


def test_seeds_are_a_number_and_a_list_is_told_so() -> None:
    with pytest.raises(fb.UserError, match="seeds is a list, and says how many") as caught:
        fb.compare([fb.FedAvg(mlp(3))], of_users(X, CLASSES), rounds=1, seeds=[0, 1])  # type: ignore[arg-type]
    assert "seeds=6" in caught.value.fix and "seed=10" in caught.value.fix


def test_one_client_and_one_round_are_not_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = fb.Federation.from_users(X, CLASSES, np.zeros(ROWS))
    with pytest.warns(RunWarning, match="3 slots for 1 client; some may never"):
        result = fb.run(fb.FedEM(mlp(3)), data, rounds=1, out=tmp_path / "run")
    show_run(result, None, False)
    assert "finished: 1 round, " in "".join(capsys.readouterr())


def test_the_table_of_a_run_says_over_how_many_clients_each_mean_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["rounds=1", "data.clients=6", "cohort.size=2", "evaluation.local=true"]
    show_run(fb.run(fb.read_config("digits-fedavg", changes), tmp_path / "run"), None, False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " test " in line]
    clients = {line[-7]: line[-1] for line in lines}  # model -> the last column
    assert clients == {"local": "2", "personal": "6"}


def test_a_table_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = fb.run(fb.FedAvg(mlp(3)), of_users(X, CLASSES), rounds=1, out=tmp_path / "run")
    with pytest.raises(fb.UserError, match=r"there is no folder .*nowhere"):
        result.clients().to_csv(tmp_path / "nowhere" / "clients.csv")
