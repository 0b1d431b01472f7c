"""When steps are written down, trusted and repeated: every decision by itself."""

from __future__ import annotations

from collections import Counter
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.engines.replay import replayed as module
from fedblocks.engines.replay.replayed import Pace, Replayed, Trusted, _layout

A, B, C, D = ((kind, True, torch.Size([2])) for kind in range(4))


class Written:
    """A program that is known by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def same_as(self, other: Any) -> bool:
        return self.name == other.name


def recorder(name: str | None, repeats: str = "") -> Any:
    """One that gives a program of this name, and finds it to be like that of another name."""
    steady: list[int] = []

    def program(count: int) -> Any:
        steady.append(count)
        return None if name is None else Written(name)

    return SimpleNamespace(program=program, repeats=lambda own: own.name == repeats, steady=steady)


def trusted(name: str) -> Any:
    return Trusted(Written(name), SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    monkeypatch.setattr(module, "Machine", lambda program, arena: ("machine", program.name))
    own = Replayed(object(), 8)
    own.paces[A] = Pace(11)
    return own


def test_a_step_is_a_draft_first_and_trusted_if_the_next_is_the_same(replayed: Replayed) -> None:
    first = recorder("p")
    replayed._written(A, first, steady=5)
    assert first.steady == [5] and replayed.programs == {}
    assert replayed.drafts[A].name == "p"  # type: ignore[attr-defined]
    replayed._written(A, recorder("p"), steady=5)
    known = replayed.programs[A]
    assert known is not None and known.machine == ("machine", "p") and not known.lasting  # type: ignore[comparison-overlap]
    assert replayed.drafts == {} and replayed.paces[A].least == 2 and not replayed.unrepeatable


def test_steps_that_differ_are_not_repeated_in_this_round(replayed: Replayed) -> None:
    replayed._written(A, recorder("p"), steady=0)
    replayed._written(A, recorder("q"), steady=0)
    assert replayed.programs == {A: None} and replayed.paces[A].least == inf
    assert not replayed.unrepeatable


def test_a_step_without_a_program_is_not_written_down_again(replayed: Replayed) -> None:
    replayed.before[A] = trusted("p")
    replayed._written(A, recorder(None), steady=0)
    assert replayed.programs == {A: None} and replayed.unrepeatable == {A}
    assert replayed.before == {}


@pytest.mark.parametrize(("name", "repeats"), [("never made", "p"), ("p", "")])
def test_what_was_trusted_before_is_trusted_again_if_it_is_the_same(
    replayed: Replayed, name: str, repeats: str
) -> None:
    old = replayed.before[A] = trusted("p")
    writing = recorder(name, repeats)
    replayed._written(A, writing, steady=3)
    assert replayed.programs == {A: old} and old.lasting and replayed.before == {}
    assert writing.steady == ([] if repeats else [3])


def test_what_differs_from_the_round_before_is_a_draft(replayed: Replayed) -> None:
    old = replayed.before[A] = trusted("p")
    replayed._written(A, recorder("q"), steady=0)
    assert replayed.drafts[A].name == "q" and replayed.programs == {} and not old.lasting  # type: ignore[attr-defined]


def test_a_new_round_keeps_what_was_seen_or_trusted_in_the_last(replayed: Replayed) -> None:
    old = {key: trusted(str(key)) for key in (A, B, C)}
    replayed.before = {A: old[A], B: old[B]}  # A was seen again, B was not
    replayed.programs = {C: old[C], D: None}
    replayed.seen = Counter({A: 2, C: 1, D: 1})
    replayed.drafts = {A: Written("p")}  # type: ignore[dict-item]
    replayed.unrepeatable = {B, D}
    replayed.paces = {key: Pace(3, steps=7) for key in (A, B, C, D)}
    replayed.kinds = {"a": 0, "b": 1, "c": 2, "d": 3}
    replayed._begin(4)
    assert replayed.before == {A: old[A], C: old[C]} and replayed.unrepeatable == {D}
    assert replayed.round == 4 and replayed.drafts == replayed.programs == {} == replayed.seen
    assert replayed.paces.keys() == {A, C, D} and replayed.kinds == {"a": 0, "c": 2, "d": 3}
    assert all(pace.steps == 0 and pace.pays for pace in replayed.paces.values())


class Recording:
    """Stands for a recorder: it knows what it was given."""

    def __init__(self, inputs: Any) -> None:
        self.inputs, self.repeatable = inputs, True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None: ...


@pytest.mark.parametrize(
    ("seen", "before", "programs", "unrepeatable", "pays", "written"),
    [
        (7, False, False, False, True, False),  # the eighth is still rare
        (8, False, False, False, True, True),
        (0, True, False, False, True, True),  # known from the round before
        (8, False, True, False, True, False),
        (8, False, False, True, True, False),
        (8, True, False, False, False, False),
    ],
)
def test_steps_are_written_down_if_they_are_many_or_known_and_it_pays(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch,
    seen: int, before: bool, programs: bool, unrepeatable: bool, pays: bool, written: bool,
) -> None:  # fmt: skip
    clock, steps, calls = iter([3.0, 5.5]), [], []
    monkeypatch.setattr(module, "clock", lambda: next(clock))
    monkeypatch.setattr(module, "Recorder", Recording)
    monkeypatch.setattr(
        Replayed, "_written", lambda self, *args, **named: calls.append((args, named))
    )
    visit: Any = SimpleNamespace(
        step=steps.append, inputs=lambda place: ("inputs", place), tensors=[1, 2, 3], lacking=0
    )
    replayed.seen[A] = seen
    replayed.before = {A: trusted("p")} if before else {}
    replayed.programs = {A: None} if programs else {}
    replayed.unrepeatable = {A} if unrepeatable else set()
    pace = replayed.paces[A] = Pace(11, pays=pays)
    replayed._plain(A, visit, 6)
    assert steps == [6] and replayed.seen[A] == seen + 1
    assert (pace.plain, pace.written) == ((inf, 2.5) if written else (2.5, inf))
    if written:
        (((signature, recording), named),) = calls
        assert signature == A and recording.inputs == ("inputs", 6) and named == {"steady": 3}
    else:
        assert calls == []


@pytest.mark.parametrize(("more", "repeatable"), [(0, True), (1, False)])
def test_a_step_in_which_a_tensor_first_lacks_a_gradient_is_not_repeated(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch, more: int, repeatable: bool
) -> None:
    """A repeated step would not note that it does."""
    written: list[Any] = []
    visit: Any = SimpleNamespace(inputs=lambda place: place, tensors=[], lacking=2)
    visit.step = lambda place: setattr(visit, "lacking", 2 + more)
    monkeypatch.setattr(module, "Recorder", Recording)
    monkeypatch.setattr(Replayed, "_written", lambda self, key, own, steady: written.append(own))
    replayed.seen[A], replayed.paces[A] = 8, Pace(11)
    replayed._plain(A, visit, 0)
    assert [own.repeatable for own in written] == [repeatable]


@pytest.mark.parametrize(
    ("plain", "repeated", "written", "steps", "pays"),
    [
        (inf, inf, inf, 10, False), (inf, inf, inf, 11, True), (2.0, inf, 9.0, 11, True),
        (inf, 1.0, 9.0, 10, False),
        (2.0, 1.0, 5.0, 4, True),  # three steps save 1 each, as much as writing costs
        (2.0, 1.0, 5.0, 3, False), (2.0, 3.0, 2.0, 9, False), (2.0, 3.0, 1.0, 2, True),
    ],
)  # fmt: skip
def test_a_round_is_worth_writing_down_by_what_the_last_one_took(
    plain: float, repeated: float, written: float, steps: int, pays: bool
) -> None:
    pace = Pace(11, plain, written, repeated, steps)
    pace.begin_round()
    assert pace.pays is pays and pace.steps == 0 and pace.rests == (0 if pays else 1)


def test_after_sixteen_rounds_without_it_is_tried_once_more() -> None:
    pace = Pace(11)
    paid = []
    for _ in range(18):
        pace.begin_round()
        paid.append(pace.pays)
    assert paid == [False] * 16 + [True, False] and pace.rests == 1


@pytest.mark.parametrize(("lasting", "least"), [(True, 18), (False, 72)])
def test_a_program_is_made_faster_once_after_some_runs(lasting: bool, least: int) -> None:
    """Six and twenty-four times what is worth writing down, here 3."""
    own = Trusted(None, None, runs=least, lasting=lasting)  # type: ignore[arg-type]
    assert not own.is_due(3) and not own.fast
    own.runs += 1
    assert own.is_due(3) and own.fast
    assert not own.is_due(3) and own.fast


def test_tensors_are_alike_by_shapes_types_and_which_are_the_same() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    assert _layout([one, other]) == _layout([other, one])
    assert _layout([one, one]) != _layout([one, other])
    assert _layout([one]) != _layout([one.double()])
    assert _layout([torch.zeros(2, 3)]) != _layout([torch.zeros(3, 2).t()])
    assert _layout([one]) != _layout([torch.zeros(3)])
