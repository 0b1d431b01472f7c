"""Steps that are repeated, one after another, with stand-ins for clients and machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.client import Step
from fedblocks.engines.replay import replayed as module
from fedblocks.engines.replay.replayed import Replayed, Trusted, _Visit


@pytest.fixture
def replayed() -> Replayed:
    return Replayed(object(), 8)


class Visited:
    """A client of some steps; it notes what is done with them."""

    def __init__(self, *sizes: int) -> None:
        self.order = [Step(torch.arange(size), full=True) for size in sizes]
        self.keys = [f"key {place}" for place in range(len(sizes))]
        self.tensors, self.kind, self.lacking = "tensors", "kind", 0
        self.done: list[Any] = []

    def inputs(self, place: int) -> Any:
        return ("inputs", place)

    def remember(self, place: int) -> Any:
        self.done.append(("remember", place))
        return [place]

    def go_back(self, before: Any, last: int) -> None:
        self.done.append(("back", *before, last))


class Running:
    """A machine that notes its runs, and fails at one of them."""

    def __init__(self, visit: Visited, noisy: bool, fails: int | None = None) -> None:
        self.visit, self.noisy, self.fails, self.count = visit, noisy, fails, 0

    def bound(self, tensors: Any) -> Any:
        self.visit.done.append(("bound", tensors))

        def step(index: Any, key: Any) -> None:
            self.count += 1
            if self.count == self.fails:
                raise ValueError("odd")
            self.visit.done.append((len(index), key))

        return step

    def takes(self, other: int) -> bool:
        assert other == -1
        return self.noisy


def key_of(kind: int, size: int) -> Any:
    return (kind, True, torch.Size([size]))


def test_trusted_steps_are_bound_once_and_the_others_are_plain(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visited(4, 4, 3, 4)
    ticks = iter([1.0, 9.0, 20.0, 23.0])
    monkeypatch.setattr(module, "clock", lambda: next(ticks))
    monkeypatch.setattr(
        Replayed, "_plain", lambda self, key, own, place: own.done.append(("plain", key, place))
    )
    own = Trusted(None, Running(visit, noisy=True))  # type: ignore[arg-type]
    replayed.programs[key_of(5, 4)] = own
    replayed.kinds["kind"] = 5
    replayed._run(visit)  # type: ignore[arg-type]
    assert visit.done == [
        ("bound", "tensors"), ("remember", 0), (4, "key 0"), (4, "key 1"),
        ("plain", key_of(5, 3), 2), (4, "key 3"),
    ]  # fmt: skip
    pace = replayed.paces[key_of(5, 4)]
    assert own.runs == 3 == pace.steps and pace.repeated == 3.0 and pace.least == 11
    assert replayed.paces[key_of(5, 3)].steps == 1


def test_a_program_that_is_due_is_made_faster_and_bound_again(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visited(4, 4, 4)
    quick = Running(visit, noisy=False)
    monkeypatch.setattr(module, "fastest", lambda *args: visit.done.append(args) or quick)
    own = Trusted("program", Running(visit, noisy=True), runs=191)  # type: ignore[arg-type]
    replayed.programs[key_of(0, 4)] = own
    replayed._run(visit)  # type: ignore[arg-type]
    assert visit.done == [
        ("bound", "tensors"), ("remember", 0), (4, "key 0"),
        ("program", ("inputs", 1), replayed.arena), ("bound", "tensors"), (4, None), (4, None),
    ]  # fmt: skip


def test_after_an_error_steps_are_taken_anew_in_the_plain_way(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visited(4, 4, 4, 3)
    monkeypatch.setattr(
        Replayed, "_plain", lambda self, key, own, place: own.done.append(("plain", key, place))
    )
    replayed.programs[key_of(0, 4)] = Trusted(None, Running(visit, True, fails=2))  # type: ignore[arg-type]
    replayed.programs[key_of(0, 3)] = Trusted(None, Running(visit, False))  # type: ignore[arg-type]
    replayed._run(visit)  # type: ignore[arg-type]
    assert visit.done == [
        ("bound", "tensors"), ("remember", 0), (4, "key 0"), ("back", 0, 1),
        ("plain", key_of(0, 4), 2), ("bound", "tensors"), ("remember", 3), (3, None),
    ]  # fmt: skip
    assert replayed.programs[key_of(0, 4)] is None and replayed.unrepeatable == {key_of(0, 4)}


def test_a_client_goes_back_to_what_it_had_and_steps_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, memory, fixed = torch.ones(1), torch.ones(1), torch.ones(1)
    stretch: Any = SimpleNamespace(
        blocks={"a": {"w": w}, "b": {"w": fixed}}, memories=[{"v": [memory]}],
        phase=SimpleNamespace(train=("a",)),
    )  # fmt: skip
    visit = _Visit(stretch, [])
    before = visit.remember(2)
    w.add_(1), memory.add_(2), fixed.add_(3)
    taken: list[int] = []
    monkeypatch.setattr(_Visit, "step", lambda self, place: taken.append(place))
    visit.go_back(before, 4)
    assert taken == [2, 3, 4] and [w.item(), memory.item(), fixed.item()] == [1.0, 1.0, 4.0]
