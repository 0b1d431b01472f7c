"""A run is gone on with as it was started, a record changes whole or not at all, and checkpoints
are found by their rounds; own losses and metrics are tried before.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.errors import CheckpointError, DataError, RunFolderError
from fedblocks.core.metrics import Metric
from fedblocks.core.task import Task
from fedblocks.runs import python, sameness, trials
from fedblocks.runs.storage import checkpoint, code_record, folder, frozen
from fedblocks.runs.storage.config_record import EXTENDED, KEY, _text, refuse_edited
from fedblocks.runs.storage.main_metric import SCORE, extra_of
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.trials import TaskTrial


def test_a_run_is_compared_in_its_data_then_in_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    for name in ("restore_constants", "check_frozen", "check_behaviour", "check_same_federation"):
        monkeypatch.setattr(sameness, name, lambda *given, name=name: done.append((name, *given)))
    experiment = SimpleNamespace(methods="methods")
    prepared: Any = SimpleNamespace(
        experiment=experiment, sampling=SimpleNamespace(content_hash="t")
    )
    own: Any = SimpleNamespace(path="p", store=SimpleNamespace(meta=lambda key: None))
    code = [
        ("restore_constants", "p", "methods"), ("check_frozen", own, experiment),
        ("check_behaviour", own, experiment),
    ]  # fmt: skip
    sameness.check_same_run(own, prepared)
    assert done == [("check_same_federation", own, prepared), *code]
    own.store.meta = {sameness.TRACE: "t"}.get
    sameness.check_same_run(own, prepared)
    prepared.sampling.content_hash = "u"
    with pytest.raises(DataError, match="the trace of who is there differs"):
        sameness.check_same_run(own, prepared)
    assert len(done) == 4 + 4 + 1


@pytest.mark.parametrize(
    ("recorded", "names", "said"),
    [
        ("h", ["a", "b"], ""), (None, ["a", "b", "c"], ""), ("i", ["a", "b"], "the data differ"),
        ("h", ["a"], 'client 1 was called "b" .* and is ""'),
        ("h", ["a", "c"], 'client 1 was called "b" .* and is "c"'),
    ],
)  # fmt: skip
def test_data_are_the_same_by_their_hash_and_by_the_names_of_clients(
    recorded: str | None, names: list[str], said: str
) -> None:
    facts = {"federation": recorded, "clients": '{"names": ["a", "b"], "rows": {"train": [1, 2]}}'}
    own: Any = SimpleNamespace(store=SimpleNamespace(meta=facts.get))
    data = SimpleNamespace(names=names)
    prepared: Any = SimpleNamespace(hash="h", experiment=SimpleNamespace(data=data))
    with pytest.raises(DataError, match=said) if said else nullcontext():
        sameness.check_same_federation(own, prepared)


def edited(before: dict[str, Any], now: dict[str, Any], extended: Any = None) -> str:
    """What a configuration is refused for; nothing: it is not."""
    facts = {KEY: _text(before), EXTENDED: None if extended is None else _text(extended)}
    store: Any = SimpleNamespace(meta=facts.get)
    try:
        refuse_edited(store, now)
    except RunFolderError as error:
        return error.message.partition(": ")[2]
    return ""


def test_a_configuration_may_have_more_rounds_and_no_other_change() -> None:
    own = {"rounds": 5, "lr": 0.1}
    assert edited(own, own) == "" == edited(own, {**own, "rounds": 9})
    assert edited(own, {**own, "rounds": 4}) == "rounds was 5, now 4"
    assert edited(own, {**own, "rounds": 4}, {**own, "rounds": 4}) == ""
    assert edited(own, {**own, "rounds": "9"}) == 'rounds was 5, now "9"'
    assert edited({"lr": 1}, {"lr": 1, "rounds": 5}) == "rounds was absent, now 5"
    assert edited(own, {**own, "rounds": 9, "schedule_rounds": 5}) == ""
    assert edited(own, {**own, "schedule_rounds": 4}) == "schedule_rounds was absent, now 4"
    many = {**own, **{str(n): n for n in range(6)}}
    shown = "; ".join(f"{n} was absent, now {n}" for n in range(5))
    assert edited(own, many) == f"{shown} and 1 more"
    assert edited(own, {k: v for k, v in many.items() if k != "5"}) == shown
    refuse_edited(SimpleNamespace(meta=lambda key: None), {"a": 1})  # type: ignore[arg-type]


def test_the_main_metric_is_kept_as_the_score_unless_it_is_the_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"mae": 0.5, "r2": float("nan")}
    monkeypatch.setattr(Task, "values", lambda self, counts: values if counts == (1.0,) else {})
    task = Task("regression", metrics=("mae", "r2"))
    assert extra_of(task, (1.0,)) == {SCORE: 0.5, "mae": 0.5, "r2": None}
    assert extra_of(Task(), (1.0,)) is None
    values = {"accuracy": 0.25, "f1_micro": 0.75}
    assert extra_of(Task(metrics=("accuracy", "f1_micro")), (1.0,)) == values


def test_a_stored_block_is_read_once_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(frozen, "read_frozen", lambda path: read.append(path.name))
    path = tmp_path / "block"
    frozen._check_stored(path)
    assert read == []
    for text in ("a", "a", "longer"):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        frozen._check_stored(path)
    assert read == ["block", "block"]


def test_checkpoints_are_found_by_their_rounds(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoints are of rounds none"):
        checkpoint.load_of_round(tmp_path, 2)
    assert not checkpoint.has_checkpoints(tmp_path) and checkpoint.newest_round(tmp_path) == 0
    for round in (2, 3, 5):
        value = {"w": torch.tensor([float(round)])}
        checkpoint.save(tmp_path, round, {"slots": value}, {}, None, keep=3)
    assert checkpoint.load_of_round(tmp_path, 3).shared["slots"]["w"].tolist() == [3.0]
    with pytest.raises(CheckpointError, match="checkpoints are of rounds 2, 3, 5"):
        checkpoint.load_of_round(tmp_path, 4)
    assert checkpoint.has_checkpoints(tmp_path) and checkpoint.newest_round(tmp_path) == 5
    checkpoint.drop_later(tmp_path, 3)
    assert checkpoint.newest_round(tmp_path) == 3 and checkpoint.load(tmp_path).round == 3


@pytest.mark.parametrize("is_failed", [True, False])
def test_what_a_failure_left_is_removed_where_nothing_is_lost(
    is_failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder.FROZEN).mkdir()
    (tmp_path / folder.FROZEN / "block").touch()
    for name in (folder.CONFIG, "other"):
        (tmp_path / name).touch()
    asked: list[Any] = []
    monkeypatch.setattr(folder, "_failed_at_once", lambda *given: asked.append(given) or is_failed)
    folder._clear_failure(tmp_path)
    assert asked == [(tmp_path, {folder.FROZEN, folder.CONFIG, "other"})]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"other"} if is_failed else {folder.FROZEN, folder.CONFIG, "other"})


def test_a_record_changes_whole_or_not_at_all(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.sqlite")
    store.set_meta("a", "1")
    with pytest.raises(KeyboardInterrupt), store._transaction():
        store._db.execute("UPDATE meta SET value = '2' WHERE key = 'a'")
        raise KeyboardInterrupt
    assert store.meta("a") == "1" and not store._db.in_transaction
    store.set_meta("a", "3")
    assert store.meta("a") == "3"
    store.close()


def test_the_file_of_code_is_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there.py"
    there.touch()
    for file, found in ((there, there.resolve()), (tmp_path / "gone.py", None), (None, None)):
        monkeypatch.setattr(code_record.inspect, "getsourcefile", lambda target, file=file: file)
        assert code_record._file_of(len) == found
    monkeypatch.undo()
    assert code_record._file_of(len) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FedAvg", "write FedAvg(net, lr=0.1) for the method FedAvg"),
        ("digits-fedavg", "read the configuration first: run(read_config('digits-fedavg'))"),
        ("other", "write run(FedAvg(net, lr=0.1), data, rounds=20), or "),
    ],
)
def test_what_to_write_in_the_place_of_a_name_is_said(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "PRESETS", {"digits-fedavg": None})
    assert python._instead_of(text).startswith(said)


@pytest.mark.parametrize(("shift", "differs"), [(0.0, False), (9e-7, False), (11e-7, True)])
def test_losses_differ_by_a_share_of_the_largest_of_them(shift: float, differs: bool) -> None:
    """A millionth of a hundredth: 1e-9 of 1000, whichever sign it has."""
    all_of_them = torch.tensor([0.5, -1000.0, torch.nan], dtype=torch.double)
    alone = torch.tensor([0.5 + shift], dtype=torch.double)
    task: Any = SimpleNamespace(
        label_losses=lambda outputs, y: all_of_them if len(y) == 3 else alone
    )
    assert trials._differs(task, torch.zeros(3, 1), torch.zeros(3), 1e-9) is differs


@pytest.mark.parametrize(
    ("y", "told"), [([1.0, torch.nan], True), ([torch.nan] * 2, False), ([1.0, 2.0], True)]
)
def test_own_metrics_are_tried_where_a_target_is_known(y: list[float], told: bool) -> None:
    own = Metric("odd", lambda outputs, y: torch.tensor(torch.nan))
    task = Task("regression", metrics=("mae", own))
    found = trials._try_metrics(task, TaskTrial(torch.zeros(2, 1), torch.tensor(y)[:, None], "a"))
    say = (
        'the metric "odd" is NaN, that is undefined, for 2 examples of client "a" and an '
        "untrained net: clients for whom it is are left out of its means"
    )
    assert found == ([say] if told else [])
