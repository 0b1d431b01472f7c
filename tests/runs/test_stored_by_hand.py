"""Which checkpoints and files of them are kept, used again or removed; and who shares seconds."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.errors import RunFolderError
from fedblocks.core.state import State
from fedblocks.runs import rounds
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import BEFORE_CONFIG, CONFIG, STORE, _refuse_no_run
from fedblocks.runs.storage.record import RoundRecord

CLIENTS = {client: {"own": {"v": torch.tensor([float(client)])}} for client in (0, 70)}
SHARED = {"server": {"model": {"w": torch.zeros(1)}}, "memory": {}}


def store(root: Path, round: int, changed: set[int] | None, **how: Any) -> Path:
    return checkpoint.save(root, round, SHARED, CLIENTS, changed, **how)


def test_a_file_is_used_again_from_the_checkpoint_before_the_previous_one(tmp_path: Path) -> None:
    """Client 70 never changes: round 3 has its file from round 1, and none from round 2."""
    places = [store(tmp_path, round, {0}, keep=9) for round in (1, 2, 3)]
    files = [sorted((place / "clients").glob("000001*")) for place in places]
    assert all(len(own) == 2 for own in files)
    for first, second, third in zip(*files, strict=True):
        assert third.samefile(first) and not third.samefile(second)
    changed = [sorted((place / "clients").glob("000000*")) for place in places]
    assert not any(own.samefile(first) for own, first in zip(changed[2], changed[0], strict=True))


def test_rounds_that_were_given_up_are_not_used_again(tmp_path: Path) -> None:
    """After rounds 1 to 3, round 2 is played again: what is before it is round 1 alone."""
    for round in (1, 2, 3):
        store(tmp_path, round, {0}, keep=9)
    root, files = checkpoint._reusable(tmp_path, 2, CLIENTS, {0})
    assert (root, files) == (tmp_path, {})
    root, files = checkpoint._reusable(tmp_path, 3, CLIENTS, {0})
    assert root.name == "round-000001" and len(files) == 2
    assert checkpoint._reusable(tmp_path, 3, CLIENTS, None) == (tmp_path, {})
    assert checkpoint._reusable(tmp_path, 3, CLIENTS, {0, 70})[1] == {}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_last_rounds_and_the_best_one_are_kept(tmp_path: Path) -> None:
    for round in (1, 2, 3, 4):
        store(tmp_path, round, None, keep=2, best_round=1)
    assert names(tmp_path) == ["round-000001", "round-000003", "round-000004"]
    store(tmp_path, 3, None, keep=2)  # later rounds belong to a future that was given up
    assert names(tmp_path) == ["round-000001", "round-000003"]


def test_a_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, 1, None)

    def fail(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError("it is in use")

    monkeypatch.setattr(shutil, "rmtree", fail)
    checkpoint._discard(tmp_path / "round-000001")
    (left,) = names(tmp_path)
    assert left.startswith(".tmp-") and left.endswith("-gone-round-000001")


def test_lanes_share_the_seconds_of_their_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes from 100 to 106 for two lanes: three seconds each."""
    clock = iter((100.0, 106.0))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(rounds, "now", lambda: "then")
    monkeypatch.setattr(rounds, "is_due", lambda own, round: False)
    report = SimpleNamespace(refusals=[], counts={})
    monkeypatch.setattr(rounds, "_train", lambda *given: [(State(1, {}, {}, {}), report)] * 2)
    monkeypatch.setattr(rounds, "replace", lambda thing, **new: {"thing": thing, **new})
    for name in ("conclusions_of", "notes_of_idle_blocks", "notes_of_broken_servers", "metrics_of"):
        monkeypatch.setattr(rounds, name, lambda *given: [])
    monkeypatch.setattr(rounds, "settle", lambda state: state)
    monkeypatch.setattr(rounds, "record", lambda *given: RoundRecord(1, 0.0, 1))
    data = SimpleNamespace(task=None)
    prepared: Any = [SimpleNamespace(experiment=SimpleNamespace(methods={}, data=data))] * 2
    ends: Any = rounds._play(None, prepared, [State(0, {}, {}, {})] * 2, None, [])  # type: ignore[arg-type]
    assert [record["seconds"] for _, record in ends] == [3.0, 3.0]
    assert [record["started_at"] for _, record in ends] == ["then", "then"]


FOLDERS = [
    ([], "is empty, not a run"),
    ([STORE], "is a run that was stopped before it began"),
    ([*BEFORE_CONFIG], "is a run that was stopped before it began"),
    ([STORE, "notes.txt"], f"is not a run: it has no {CONFIG}"),
    ([CONFIG], f"is not a run: it has no {STORE}"),
    (["notes.txt"], f"is not a run: it has no {CONFIG} and {STORE}"),
    ([CONFIG, "checkpoints/round-000001"], f"has lost its record, {STORE}"),
    ([CONFIG, "checkpoints/other"], f"is not a run: it has no {STORE}"),
    ([CONFIG, STORE], ""),
]


@pytest.mark.parametrize(("files", "said"), FOLDERS, ids=range(len(FOLDERS)))
def test_a_folder_is_told_from_a_run_by_what_is_in_it(
    files: list[str], said: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if said:
        with pytest.raises(RunFolderError) as refused:
            _refuse_no_run(tmp_path)
        assert said in refused.value.message
    else:
        _refuse_no_run(tmp_path)
    for path, what in ((tmp_path / "nowhere", "does not exist"), (Path(__file__), "is not a fol")):
        with pytest.raises(RunFolderError, match=what):
            _refuse_no_run(path)


@pytest.mark.parametrize("unseen", [[], [5]])
def test_clients_that_never_train_join_before_they_are_tried(unseen: list[int]) -> None:
    asked: list[Any] = []

    def evaluate(states: Any, clients: Any, engine: Any, parts: Any, joining: bool = False) -> Any:
        asked.append((clients, parts, joining))
        failures = ["of a newcomer" if joining else "of one that trains"]
        return [SimpleNamespace(scores={}, failures=failures, portraits={"p": 1})] * 2

    lanes: Any = SimpleNamespace(evaluate_parts=evaluate)
    config = SimpleNamespace(evaluation=SimpleNamespace(parts=("test", "train")))
    data = SimpleNamespace(task=None)
    one = SimpleNamespace(
        config=config, clients=[1, 2], unseen=unseen, experiment=SimpleNamespace(data=data)
    )
    tables = rounds._evaluate(lanes, [one, one], [], None, [True, False])  # type: ignore[list-item,arg-type]
    assert asked[0] == ([[1, 2], []], ("test", "train"), False)
    assert asked[1:] == ([([[5], []], ("test",), True)] if unseen else [])
    assert [portraits for _, portraits, _ in tables] == [{"p": 1}, None]
    assert tables[0][2] == ["of one that trains", *["of a newcomer"] * len(unseen)]
