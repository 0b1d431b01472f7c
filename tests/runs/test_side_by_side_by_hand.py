"""Runs beside each other: which may, which come next, how each begins, and what a comparison says
of its methods.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.grids import grid, lanes
from fedblocks.runs.grids.lanes import Queue, Waiting
from fedblocks.runs.storage.record import LANES, Note


def run_of(
    name: str, cohort: int = 1, engine: Any = Vectorised, device: str = "cpu", **pace: Any
) -> Any:
    """A run that is prepared; only its pace and its name may keep it from others."""
    config = SimpleNamespace(**{"evaluation": 1, "threads": 2, "precision": 3, **pace})
    data = SimpleNamespace(device=torch.device(device))
    experiment = SimpleNamespace(name=name, data=data, start=lambda: f"start of {name}")
    return SimpleNamespace(
        name=name, cohort=cohort, engine=engine(), config=config, experiment=experiment
    )


@pytest.fixture(autouse=True)
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments are alike if their names begin with the same letter."""
    monkeypatch.setattr(
        lanes, "why_not", lambda own: "odd" if len({e.name[0] for e in own}) > 1 else None
    )


def test_runs_are_lanes_if_several_are_alike_and_stacks_are_fastest_for_all() -> None:
    one, two, other = run_of("a1"), run_of("a2"), run_of("b")
    plain = run_of("a3", engine=Sequential)
    assert lanes.worth_it([one, two]) and not lanes.worth_it([one])
    assert not lanes.worth_it([one, plain]) and not lanes.worth_it([one, other])
    assert lanes.fits([one]) and lanes.fits([one, two, plain])
    for different in ("evaluation", "threads", "precision"):
        assert not lanes.fits([one, run_of("a4", **{different: 9})])
    assert not lanes.is_mapped(run_of("a", engine=Sequential, device="cuda"))
    assert lanes.is_mapped(run_of("a", device="cuda")) and lanes.is_mapped(plain)


def taken(queue: Queue, *going: Any) -> list[str]:
    return [one.prepared.name for one in queue.take(going)]


def queue_of(most: int, at_once: int, *runs: Any) -> Queue:
    return Queue(iter([Waiting(own, Path(own.name)) for own in runs]), most, at_once)


def test_a_stack_takes_as_many_clients_as_it_has_room_for() -> None:
    queue = queue_of(6, 99, *(run_of(f"a{n}", cohort=2) for n in range(7)))
    assert taken(queue) == ["a0", "a1", "a2"]
    assert taken(queue, run_of("a", 2)) == ["a3", "a4"]
    assert taken(queue) == ["a5", "a6"] and taken(queue) == []
    assert taken(queue_of(1, 99, run_of("a", cohort=5))) == ["a"]  # nobody is beside it


def test_a_stack_takes_as_many_runs_as_are_asked_for() -> None:
    queue = queue_of(99, 2, *(run_of(f"a{n}") for n in range(5)))
    assert taken(queue) == ["a0", "a1"]
    assert taken(queue, run_of("a"), run_of("a")) == []
    assert taken(queue, run_of("a")) == ["a2"]
    assert taken(queue) == ["a3", "a4"]


def test_runs_that_do_not_fit_wait_and_come_first_afterwards() -> None:
    """Two of them wait, and then nobody else is asked for."""
    names = ("a0", "b0", "b1", "a1", "c0")
    queue = queue_of(99, 2, *(run_of(name) for name in names))
    assert taken(queue) == ["a0"]
    assert [one.prepared.name for one in queue.waiting] == ["b0", "b1"]
    assert taken(queue) == ["b0", "b1"]
    assert taken(queue, run_of("a")) == ["a1"] and taken(queue) == ["c0"]


def test_runs_together_are_a_queue_and_then_results(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[Any] = []
    monkeypatch.setattr(lanes, "prepare", lambda config: f"prepared {config}")
    monkeypatch.setattr(lanes, "run_queue", lambda *given: queued.append(given))
    monkeypatch.setattr(lanes, "load_run", lambda path: f"result in {path}")
    configs: Any = ["one", "two"]
    found = lanes.run_together(configs, [Path("a"), Path("b")], "round", "note")  # type: ignore[arg-type]
    assert found == ["result in a", "result in b"]  # type: ignore[comparison-overlap]
    ((waiting, *listeners),) = queued
    assert listeners == ["round", "note"]
    assert [(w.prepared, w.folder) for w in waiting] == [
        ("prepared one", Path("a")), ("prepared two", Path("b")),
    ]  # fmt: skip


@pytest.mark.parametrize(("at_once", "seen"), [(None, sys.maxsize), (2, 2)])
def test_a_stack_is_carried_out_until_nobody_waits(
    at_once: int | None, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    @contextmanager
    def hardware(config: Any) -> Any:
        done.append("on")
        yield
        done.append("off")

    def carry_out(begun: Any, engine: Any, *listeners: Any) -> None:
        *listeners, join = listeners  # type: ignore[assignment]
        queue = join.args[0]
        assert (queue.most, queue.at_once, engine.chunk) == (2, seen, lanes.MOST)
        going = [SimpleNamespace(prepared=run_of("a"))]
        done.append((begun, *listeners, join(going), join([])))

    monkeypatch.setattr(lanes, "hardware", hardware)
    monkeypatch.setattr(lanes, "carry_out", carry_out)
    monkeypatch.setattr(lanes, "environment", lambda: "here")
    monkeypatch.setattr(
        lanes, "_open", lambda stack, one, ran_on, count: (one.prepared.name, ran_on, count)
    )
    runs = [Waiting(run_of(name), Path(name)) for name in ("a0", "a1", "a2", "b")]
    lanes.run_queue(iter(runs), "round", "note", 2, at_once)  # type: ignore[arg-type]
    first = [("a0", "here", 2), ("a1", "here", 2)]
    assert done == [
        "on", (first, "round", "note", [("a2", "here", 2)], []), "off",
        "on", ([("b", "here", 1)], "round", "note", [], []), "off",
    ]  # fmt: skip


@pytest.mark.parametrize("is_new", [True, False])
def test_a_lane_begins_or_goes_on(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    store = SimpleNamespace(set_meta=lambda *given: done.append(given))

    @contextmanager
    def opened(*given: Any) -> Any:
        done.append(given)
        yield folder

    folder = SimpleNamespace(
        store=store, claim=lambda: done.append("claim"), set_status=lambda said: done.append(said)
    )
    prepared = run_of("a")
    prepared.notes, prepared.config.resolved = ["own"], lambda: "table"
    monkeypatch.setattr(lanes, "RunFolder", SimpleNamespace(create=opened, open=opened))
    monkeypatch.setattr(lanes, "check_untouched", lambda own: done.append(("untouched", own)))
    monkeypatch.setattr(lanes, "check_same_run", lambda *given: done.append(("same", *given)))
    monkeypatch.setattr(lanes, "last_state", lambda *given: (("state", *given), ["skipped"]))
    monkeypatch.setattr(lanes, "Lane", lambda *given: given)
    if not is_new:
        (tmp_path / lanes.CONFIG).touch()
    with ExitStack() as stack:
        waiting = Waiting(prepared, tmp_path, "listener")  # type: ignore[arg-type]
        lane: Any = lanes._open(stack, waiting, {"ran": "on"}, 3)
    note = Note("one of 3 lanes: the seconds of a round are those of all, divided by 3")
    assert done.pop() == (LANES, "3")
    if is_new:
        assert done == [(tmp_path, "table", {"ran": "on"})]
        assert lane == (folder, prepared, "start of a", ["own", note], "listener")
        return
    checks = [("untouched", folder), ("same", folder, prepared)]
    assert done == [(tmp_path,), "claim", *checks, "running"]
    state = ("state", folder, prepared)
    assert lane == (folder, prepared, state, ["own", note, "skipped"], "listener")


SOURCE = Source("preset x")


def test_a_comparison_says_methods_seeds_and_options() -> None:
    assert grid._read_compare({}, SOURCE) == {"methods": [], "seeds": 6, "options": {}}
    table = {"methods": ["ditto"], "seeds": 2, "ditto": {"strength": 1}, "fedavg": {}}
    assert grid._read_compare(table, SOURCE) == {
        "methods": ["ditto"], "seeds": 2, "options": {"ditto": {"strength": 1}, "fedavg": {}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([], "compare is not a table"), ({"methods": "ditto"}, "methods is not a list of names"),
        ({"methods": ["ditto", 3]}, "methods is not a list of names"),
        ({"seeds": 1.5}, "seeds is not a whole number"), ({"ditto": 3}, "ditto is not a table"),
        ({"dito": {}}, "dito"),
    ],
)  # fmt: skip
def test_a_comparison_of_another_kind_is_refused(table: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        grid._read_compare(table, SOURCE)


def test_changes_are_of_one_method_if_they_begin_with_its_name() -> None:
    changes = [
        "ditto.strength=0.5",
        "rounds=3",
        "method.lr=1",
        "ditto.a.b=2",
        "fedavg.lr=2",
        "x.y=1",
    ]
    own, common = grid._sorted_changes(changes, ["ditto", "fedavg"])
    assert own == {"ditto": {"strength": 0.5}, "fedavg": {"lr": 2}}
    assert common == ["rounds=3", "method.lr=1", "ditto.a.b=2", "x.y=1"]
