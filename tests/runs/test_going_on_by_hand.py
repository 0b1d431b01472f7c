"""What is looked at when a run is read or goes on: its configuration, its machine, its blocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.core.state import State
from fedblocks.runs import result, run
from fedblocks.runs.evaluations import EvaluationDone, tell_of_evaluation
from fedblocks.runs.ranks import loop
from fedblocks.runs.ranks.loop import RankLoop
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import ClientMetric, RoundRecord

HERE = {"threads": 2, "cpu": "one", "devices": [], "versions": {"torch": "2"}, "host": "a"}


def notes(monkeypatch: pytest.MonkeyPatch, ranks: int = 1, **before: Any) -> list[str]:
    monkeypatch.setattr(run, "environment", lambda: HERE)
    folder: Any = SimpleNamespace(environment={**HERE, **before})
    found = run.changes_since(folder, ranks)
    assert all(note.level == "warning" for note in found)
    return [note.text.partition("differ: ")[2] for note in found]


def test_another_machine_is_told_by_what_can_change_last_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert notes(monkeypatch) == [] == notes(monkeypatch, host="b")
    assert notes(monkeypatch, threads=4) == ["threads 4 -> 2"]
    assert notes(monkeypatch, cpu="other", devices=["gpu"]) == [
        "cpu other -> one", "devices ['gpu'] -> []",
    ]  # fmt: skip
    assert notes(monkeypatch, ranks=3) == ["ranks 1 -> 3"]
    assert notes(monkeypatch, 1, ranks_before=3) == []
    monkeypatch.setattr(run, "environment", lambda: HERE)
    spread: Any = SimpleNamespace(environment={**HERE, "ranks": 3})
    assert len(run.changes_since(spread)) == 1 and run.changes_since(spread, 3) == []


def state(**server: Any) -> State:
    return State(4, {"model": server}, {}, {})


def test_blocks_of_another_kind_are_refused_and_other_numbers_are_not() -> None:
    start = state(w=torch.zeros(1, 2))
    run.refuse_other_blocks(state(w=torch.ones(1, 2)), start)
    for other in (
        state(w=torch.zeros(1, 3)),
        state(w=torch.zeros(1, 2).double()),
        state(v=torch.zeros(1, 2)),
        state(w=torch.zeros(1, 2), v=torch.zeros(1)),
    ):
        with pytest.raises(CheckpointError, match="round 4 holds other blocks"):
            run.refuse_other_blocks(other, start)


@pytest.mark.parametrize(
    ("asked", "before", "used"),
    [
        ("auto", "vectorised", "vectorised"),
        ("auto", None, "auto"),
        ("sequential", "vectorised", "sequential"),
    ],
)
def test_the_engine_that_was_chosen_stays(asked: str, before: str | None, used: str) -> None:
    config = fb.read_config("digits-fedavg", [f"engine={asked!r}"])
    folder: Any = SimpleNamespace(store=SimpleNamespace(meta=lambda name: before))
    assert run.with_the_same_engine(config, folder).engine == used


def test_a_run_of_a_real_federation_goes_on_elsewhere() -> None:
    for real, refused in ((None, False), ("yes", True)):
        meta = lambda name, real=real: real if name == run.REAL else None
        folder: Any = SimpleNamespace(store=SimpleNamespace(meta=meta), path=Path("there"))
        if refused:
            with pytest.raises(RunFolderError, match="there is a run of a real federation"):
                run.refuse_real(folder)
        else:
            run.refuse_real(folder)


def test_a_run_is_read_if_its_record_is_whole_and_its_configuration_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    store = SimpleNamespace(verify=lambda: done.append("verify"))

    class Folder:
        def __init__(self) -> None:
            self.store, self.config = store, {"rounds": 3}

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            done.append("closed")

    monkeypatch.setattr(result.RunFolder, "open", lambda path: Folder())
    monkeypatch.setattr(result, "refuse_edited", lambda *given: done.append(given))
    monkeypatch.setattr(result, "result_of", lambda folder: "result")
    assert result.load_run("run") == "result"
    assert done == ["verify", (store, {"rounds": 3}), "closed"]
    done.clear()
    monkeypatch.setattr(run, "refuse_edited", lambda *given: done.append("edited"))
    monkeypatch.setattr(run, "remember_config", lambda *given: done.append("remembered"))
    run.check_untouched(SimpleNamespace(store=store, config={}))  # type: ignore[arg-type]
    assert done == ["verify", "edited", "remembered"]


@pytest.mark.parametrize("due", [True, False])
def test_the_first_rank_keeps_a_round_and_forgets_what_is_stored(
    due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(loop, "gathered_state", lambda ranks, private: f"all of {private}")
    monkeypatch.setattr(
        loop,
        "save",
        lambda folder, config, state, changed: done.append((state.private, {*changed})),
    )
    store = SimpleNamespace(record_round=lambda record: done.append(record))
    one = object.__new__(RankLoop)
    one.folder = SimpleNamespace(store=store, refuse_moved=lambda: done.append("moved"))  # type: ignore[assignment]
    one.run = SimpleNamespace(  # type: ignore[assignment]
        ranks=SimpleNamespace(lead=lambda work, serve: work()),
        prepared=SimpleNamespace(config=None),
    )
    one.state, one.changed, one.stored = State(2, {}, {}, "own"), {4, 5}, 0.0  # type: ignore[arg-type]
    monkeypatch.setattr(one, "_tell_of", lambda record: "heard")
    record: Any = "round 2"
    assert one._keep(record, due) == "heard"
    saved = [("all of own", {4, 5})] if due else []
    assert done == ["moved", "round 2", *saved]
    assert one.changed == (set() if due else {4, 5}) and (one.stored > 0) == due
    done.clear()
    assert one._keep(None, due) == "" and "round 2" not in done


METRICS = [
    ClientMetric("test", "personal", 0, 1.0, 4.0, 0.5),
    ClientMetric("test", "personal", 1, 3.0, 4.0, 2.5),
    ClientMetric("test", "personal", 2, 0.0, 0.0, 0.0),
    ClientMetric("test", "shared", 0, 4.0, 4.0, 0.0),
    ClientMetric("validation", "personal", 0, 2.0, 4.0, 1.0),
]


def test_listeners_of_evaluations_have_scores_and_their_means() -> None:
    """1/4 and 3/4 of four examples are right; the third client has none."""
    done = EvaluationDone(2, 5, None, None, MainMetric(), METRICS)  # type: ignore[arg-type]
    assert done.scores("test") == {0: 0.25, 1: 0.75} and done.mean("test") == 0.5
    assert done.scores() == {0: 0.5} and done.mean(view="shared") is None
    assert done.scores("test", "loss") == {0: 0.5, 1: 2.5} and done.mean("test", "loss") == 1.5
    assert done.scores("test", view="shared") == {0: 1.0} and done.mean("unseen") is None


@pytest.mark.parametrize(
    ("round", "told"), [(1, False), (2, True), (3, False), (4, True), (5, True)]
)
def test_evaluations_are_told_of_when_they_are_due(round: int, told: bool) -> None:
    heard: list[EvaluationDone] = []
    config = SimpleNamespace(rounds=5, evaluation=SimpleNamespace(every=2))
    data = SimpleNamespace(task=fb.Task())
    prepared: Any = SimpleNamespace(config=config, experiment=SimpleNamespace(data=data))
    record = RoundRecord(round, 1.0, 2, metrics=METRICS)
    tell_of_evaluation(heard.append, prepared, State(round, {}, {}, {}), record)
    tell_of_evaluation(None, prepared, State(round, {}, {}, {}), record)
    assert [(one.round, one.rounds, len(one.metrics)) for one in heard] == [(round, 5, 5)] * told
