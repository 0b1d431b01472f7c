"""Scores that come back from clients reach the record, each with its part and view; failures are
told once, and messages fetched while they live.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.task import Task
from fedblocks.flower.client import fleet
from fedblocks.flower.server import service
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.score_bounds import find_excesses
from fedblocks.flower.server.service import Service
from fedblocks.runs.ranks.training import RankRounds


@pytest.mark.parametrize(("round", "written"), [(4, True), (0, False)])
def test_scores_and_pictures_of_a_round_are_added_to_it(
    round: int, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Any] = []
    monkeypatch.setattr(service, "add_metrics", lambda *values: added.append(values))
    counts = {
        "validation/personal": {0: (3.0, 4.0, 2.0)},
        "test/personal": {0: (1.0, 2.0, 1.0), 1: (2.0, 2.0, 0.5)},
        "train/personal": {0: (9.0, 9.0, 9.0)},  # was not asked for
    }
    evaluated = SimpleNamespace(counts=counts, pictures={"gates": {1: (0.5, 0.25)}})
    own: Any = SimpleNamespace(
        _parts=("validation", "test"),
        side=SimpleNamespace(task=Task()),
        folder=SimpleNamespace(store="the store"),
    )
    Service._note_metrics(own, round, SimpleNamespace(evaluated=evaluated))  # type: ignore[arg-type]
    assert bool(added) == written
    if written:
        ((store, at, metrics, pictures),) = added
        assert (store, at) == ("the store", 4)
        assert [(m.part, m.view, m.client, m.correct, m.examples, m.loss) for m in metrics] == [
            ("validation", "personal", 0, 3, 4, 0.5),
            ("test", "personal", 0, 1, 2, 0.5),
            ("test", "personal", 1, 2, 2, 0.25),
        ]
        assert [(p.name, p.client, p.numbers) for p in pictures] == [("gates", 1, [0.5, 0.25])]


@pytest.mark.parametrize(
    ("scored", "sizes", "left_out"),
    [
        ({0: 40, 1: 40, 2: 4_000_000}, {0: 140, 1: 140, 2: 140}, {2}),
        ({0: 40, 1: 40, 2: 200}, {0: 140, 1: 140, 2: 140}, set()),  # five times the median
        ({0: 40, 1: 40, 2: 201}, {0: 140, 1: 140, 2: 140}, {2}),
        ({0: 40, 1: 40, 2: 4000}, {0: 140, 1: 140, 2: 14_000}, set()),  # it has more examples
        ({0: 40, 1: 40, 2: 100}, {0: 140, 1: 140, 2: 0}, set()),  # it is not trained
        ({0: 0, 1: 40, 2: 40}, {0: 140, 1: 140, 2: 140}, set()),  # who has none says nothing
        ({2: 4_000_000}, {2: 140}, set()),  # nobody to compare with
        ({}, {}, set()),
    ],
)
def test_scores_on_far_more_labels_than_others_have_are_left_out(
    scored: dict[int, float], sizes: dict[int, int], left_out: set[int]
) -> None:
    counts = {client: (number, number, 1.0) for client, number in scored.items()}
    excesses = find_excesses(counts, sizes)
    assert excesses.keys() == left_out
    assert all(f"{scored[client]:g} labels" in text for client, text in excesses.items())


def test_a_round_is_closed_without_scores_that_nobody_can_have() -> None:
    members = {client: SimpleNamespace(size=140, group="all") for client in range(3)}
    honest, lie = (30.0, 40.0, 9.0), (4e6, 4e6, 1.0)
    own: Any = SimpleNamespace(
        side=SimpleNamespace(members=members),
        ignored=[],
        _counts={"test/personal": {0: honest, 1: honest, 2: lie}},
    )
    OpenRound._leave_out_excesses(own)
    assert own._counts == {"test/personal": {0: honest, 1: honest}}
    ((client, reason, detail),) = [(r.client, r.reason, r.detail) for r in own.ignored]
    assert (client, reason) == (2, "too-large-claim") and '"test/personal"' in detail


def test_nothing_is_written_where_nobody_was_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []
    monkeypatch.setattr(service, "add_metrics", lambda *values: added.append(values))
    own: Any = SimpleNamespace(_parts=("test",), side=SimpleNamespace(task=Task()))
    nothing: Any = SimpleNamespace(evaluated=SimpleNamespace(counts={}, pictures={}))
    Service._note_metrics(own, 4, nothing)
    assert added == []


def test_a_failure_of_a_rank_is_told_once() -> None:
    own: Any = SimpleNamespace(failures=["client 3"])
    assert RankRounds._failures(own) == ["client 3"]
    assert RankRounds._failures(own) == [] == own.failures


@pytest.mark.parametrize(("left", "patience"), [(50.0, 50.0), (-5.0, 0.0)])
def test_a_message_is_fetched_for_as_long_as_it_lives(
    left: float, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def pull(names: list[str], _: object, max_time: float) -> None:
        assert names == ["a", "b"] and max_time == patience
        raise Stop

    monkeypatch.setattr(fleet, "ends", lambda _: 1000.0 + left)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(time=lambda: 1000.0))
    parts = [SimpleNamespace(object_id=name) for name in "aba"]
    monkeypatch.setattr(fleet, "iterate_object_tree", lambda _: parts)
    monkeypatch.setattr(fleet, "pull_objects", pull)
    own: Any = SimpleNamespace(_carrier=SimpleNamespace(objects=None), _ask=None)
    message: Any = SimpleNamespace(metadata=SimpleNamespace(run_id=7))
    with pytest.raises(Stop):
        fleet.Fleet.fetch(own, 1, message, None, 10)  # type: ignore[arg-type]
    assert isinstance(own._carrier.objects, fleet.Meter)
