"""A run on the server, step by step: whom it asks, what it notes, and when."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.admission import Refusal
from fedblocks.core.task import CLASSIFICATION
from fedblocks.flower.server import service as module
from fedblocks.flower.server.service import Service
from fedblocks.flower.server.side import Ask


class Store:
    """Stands in for a run's record: it knows which rounds were evaluated, and what was noted."""

    def __init__(self, evaluated: Any = ()) -> None:
        self.evaluated, self.done = {*evaluated}, list[Any]()

    def rows(self, query: str, *what: Any) -> list[Any]:
        return [1] if what[0] in self.evaluated else []

    def note(self, *what: Any) -> None:
        self.done.append(what)

    def set_meta(self, *what: Any) -> None:
        self.done.append(what)

    def write_facts(self, *what: Any) -> None:
        self.done.append(what)

    def record_round(self, record: Any) -> None:
        self.done.append(record)

    def last_round(self) -> int | None:
        return None


def service(
    rounds: int = 6,
    every: int = 2,
    cohort: int = 2,
    clients: Any = (0, 1, 2, 3),
    evaluated: Any = (),
    unseen: Any = (),
    local: bool = False,
    here: Any = (0, 1, 2, 3),
    **job: Any,
) -> tuple[Service, list[Any]]:
    done: list[Any] = []
    evaluation = SimpleNamespace(every=every, local=local, parts=("validation", "test"))
    sampling = SimpleNamespace(among=lambda *what: ("among", *what))
    prepared = SimpleNamespace(
        config=SimpleNamespace(rounds=rounds, evaluation=evaluation),
        clients=[*clients], cohort=cohort, unseen=[*unseen], sampling=sampling,
    )  # fmt: skip
    store = Store(evaluated)
    folder = SimpleNamespace(
        store=store, refuse_moved=lambda command: done.append(command), checkpoints="checkpoints"
    )
    registry = SimpleNamespace(
        nodes=dict.fromkeys(here, 7), claims={3: 4}, wait=lambda *what: done.append(what)
    )
    wanted = {"minimum": 0.8, "more": 1.0, "seconds": 9.0, "patience": 5.0, "attempts": 3, **job}
    own: Any = Service(
        SimpleNamespace(**wanted), folder, prepared, SimpleNamespace(task=CLASSIFICATION),  # type: ignore[arg-type]
        registry, "the command",  # type: ignore[arg-type]
    )  # fmt: skip
    return own, done


def at(done: int) -> Any:
    return SimpleNamespace(state=SimpleNamespace(round=done))


@pytest.mark.parametrize(
    ("minimum", "cohort", "least"),
    [(0.8, 3, 2), (0.8, 2, 2), (0.5, 1, 1), (0.1, 3, 1), (0.5, 5, 3), (1.0, 4, 4), (0.5, 4, 2)],
)
def test_the_minimum_is_a_whole_number_of_clients(minimum: float, cohort: int, least: int) -> None:
    """Rounded, halves upwards, and at least one."""
    assert service(minimum=minimum, cohort=cohort)[0]._minimum() == least


def test_an_evaluation_is_due_every_so_many_rounds_and_at_the_end() -> None:
    own, _ = service(rounds=5, every=2)
    assert [own._due(round) for round in range(6)] == [False, False, True, False, True, True]
    own, _ = service(rounds=5, every=2, evaluated=[2])
    assert [own._missing(round) for round in range(6)] == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("done", "cohort", "local", "ask", "evaluated"),
    [
        (1, [0, 1], False, Ask(), False),
        (1, [0, 1], True, Ask(score="test"), False),
        (2, [0, 1], True, Ask(), True),
        (2, [3, 2, 1, 0], False, Ask(evaluate=("validation", "test")), False),
        (5, [3, 2, 1, 0], True, Ask(score="test"), False),
        (6, [3, 2, 1, 0], True, Ask(evaluate=("validation", "test")), False),
    ],
)
def test_an_evaluation_that_is_due_goes_with_training_if_all_are_asked(
    done: int, cohort: list[int], local: bool, ask: Ask, evaluated: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own, _ = service(local=local)
    asked: list[Any] = []
    monkeypatch.setattr(own, "_cohort", lambda done, attempt: cohort)
    monkeypatch.setattr(own, "_evaluate", lambda before: asked.append("evaluated"))
    monkeypatch.setattr(own, "_unseen", lambda before: asked.append("unseen"))
    assert own._choose(at(done), 0) == (cohort, ask)
    assert asked == (["evaluated"] if evaluated else ["unseen"] if ask.evaluate else [])


@pytest.mark.parametrize(
    ("more", "attempt", "here", "chosen"),
    [
        (1.0, 0, [0, 1], "simulated"),
        (1.0, 1, [0, 2], ("among", [0, 2], 2, 4, 1)),
        (1.2, 0, [0, 2, 3], ("among", [0, 2, 3], 3, 4, 0)),  # 2.4 clients are three
        (9.0, 0, [0, 2], ("among", [0, 2], 4, 4, 0)),
        (1.0, 1, [0], ("among", [0, 1, 2, 3], 2, 4, 1)),  # one of two that are needed
    ],
)
def test_others_are_asked_after_a_failed_attempt_and_more_where_the_job_says_so(
    more: float, attempt: int, here: list[int], chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = service(more=more, here=here)
    monkeypatch.setattr(module, "cohort_of", lambda prepared, done: "simulated")
    assert own._cohort(4, attempt) == chosen


def closed(**changes: Any) -> Any:
    report = SimpleNamespace(refusals=[Refusal(3, "shape", "odd"), Refusal(1, "names", "none")])
    evaluated = SimpleNamespace(counts={"test/personal": {}})
    ignored = [Refusal(2, "stale", "old")]
    wanted = {"progress": at(4), "report": report, "evaluated": evaluated, "ignored": ignored,
              "abandoned": "", **changes}  # fmt: skip
    return SimpleNamespace(**wanted)


@pytest.mark.parametrize("has_scores", [True, False])
def test_a_round_that_was_abandoned_is_noted_with_its_reasons_and_not_recorded(
    has_scores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, done = service()
    noted: list[Any] = []
    monkeypatch.setattr(own, "_note_metrics", lambda *what: noted.append(what))
    counts = {"test/personal": {}} if has_scores else {}
    over = closed(abandoned="too few", evaluated=SimpleNamespace(counts=counts))
    own._closed(over)
    text = "round 5 was abandoned: too few (client 3: shape, odd; client 1: names, none)"
    assert done == ["the command"] and noted == ([(4, over)] if has_scores else [])
    assert own.folder.store.done == [
        ("claims", json.dumps({"3": 4})), ("ignored: client 2, stale, old",), (text, "warning")
    ]  # fmt: skip


def test_a_round_that_counts_is_recorded_with_its_seconds_and_then_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, _ = service()
    own.began, own.started_at = 100.0, "then"
    kept: list[Any] = []
    clock = SimpleNamespace(perf_counter=lambda: 103.5)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "now", lambda: "now")
    monkeypatch.setattr(module, "record_of", lambda *what: what[1:])
    monkeypatch.setattr(module, "settle", lambda state: f"settled {state.round}")
    monkeypatch.setattr(module, "replace", lambda progress, state: state)
    monkeypatch.setattr(module.progresses, "save", lambda *what: kept.append(what))
    monkeypatch.setattr(own, "_note_metrics", lambda *what: kept.append(what))
    over = closed()
    own._closed(over)
    assert own.folder.store.done[-1] == (3.5, "then", CLASSIFICATION)  # type: ignore[attr-defined]
    assert kept == [(3, over), ("checkpoints", "settled 4")]
    assert (own.began, own.started_at) == (103.5, "now")


@pytest.mark.parametrize("round", [0, 4])
@pytest.mark.parametrize("metrics", [[], [1]])
def test_scores_are_added_where_there_are_some_and_a_round_to_add_them_to(
    round: int, metrics: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = service()
    added: list[Any] = []
    monkeypatch.setattr(module, "rows_of", lambda *what: (metrics, what[1:]))
    monkeypatch.setattr(module, "add_metrics", lambda *what: added.append(what))
    own._note_metrics(round, closed())
    parts = ("validation", "test")
    wanted = [(own.folder.store, round, metrics, (parts, CLASSIFICATION))]
    assert added == (wanted if round and metrics else [])


@pytest.mark.parametrize("evaluated", [[], [4]])
def test_who_could_not_be_scored_is_noted(
    evaluated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = service(evaluated=evaluated)
    done: list[Any] = []
    over = closed()
    monkeypatch.setattr(own, "_unseen", lambda before: done.append("unseen"))
    monkeypatch.setattr(own, "_ask", lambda before, *what: done.append(what) or over)
    monkeypatch.setattr(own, "_note_metrics", lambda *what: done.append(what))
    own._evaluate(at(4))
    if evaluated:
        assert done == [] and own.folder.store.done == []  # type: ignore[attr-defined]
        return
    ask = Ask(train=False, evaluate=("validation", "test"))
    assert done == ["unseen", ([0, 1, 2, 3], ask), (4, over)]
    assert own.folder.store.done == [  # type: ignore[attr-defined]
        ("ignored: client 2, stale, old",),
        ("client 3 was not scored after round 4: shape, odd",),
        ("client 1 was not scored after round 4: names, none",),
    ]


@pytest.mark.parametrize("unseen", [[], [5]])
def test_clients_that_never_train_get_models_and_their_scores_are_those_of_the_unseen(
    unseen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = service(unseen=unseen)
    done: list[Any] = []
    counts = {"test/personal": {5: (1,)}, "test/shared": {5: (2,)}}
    over = closed(evaluated=SimpleNamespace(counts=counts))
    monkeypatch.setattr(own, "_ask", lambda before, *what: done.append(what) or over)
    monkeypatch.setattr(module, "metrics_of", lambda *what: what)
    monkeypatch.setattr(module, "add_metrics", lambda *what: done.append(what))
    own._unseen(at(4))
    join = Ask(train=False, evaluate=("test",), joining=True)
    views = {"personal": {5: (1,)}, "shared": {5: (2,)}}
    scores = (own.folder.store, 4, ("unseen", views, CLASSIFICATION))
    assert done == ([([5], join), scores] if unseen else [])
