"""Steps on a CPU without the share of Python and autograd: two are written down, the
others repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf
from time import process_time as clock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedblocks.core.client import Step
from fedblocks.core.local_round import PhaseRun, run_step, step_key
from fedblocks.core.trees import leaves
from fedblocks.engines.replay.program import Program
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.replay.rewriting import fastest
from fedblocks.engines.replay.running import Arena, Machine

_REST = 16  # rounds after which a step is written down once more, whatever that took the last time
Signature = tuple[int, bool, torch.Size]  # the number of a kind, and what is known of the batch


@dataclass(eq=False)
class Replayed:
    """Runs the phases of one method for one purpose; kernels, and so results, are those of the
    plain way.

    A program is trusted once two steps in a row gave the same one. Steps in which Python looks at
    numbers are never repeated. Nor are those of rounds that are too short for it: a step is written
    down in every round, to see that nothing has changed, and that must pay.
    """

    owner: object  # the method: held, so that no other gets its identity
    # steps of one kind in a round before they are written down: writing costs as much as several
    # steps
    worth: int
    round: Any = None
    numbers: Iterator[int] = field(default_factory=count)
    # numbers, for what they stand for is long
    kinds: dict[Hashable, int] = field(default_factory=dict)
    seen: Counter[Signature] = field(
        default_factory=Counter
    )  # steps of this round in the plain way
    paces: dict[Signature, Pace] = field(default_factory=dict)
    drafts: dict[Signature, Program] = field(default_factory=dict)  # written down once
    before: dict[Signature, Trusted] = field(default_factory=dict)  # in the round before
    arena: Arena = field(default_factory=dict)
    # None: cannot be repeated
    programs: dict[Signature, Trusted | None] = field(default_factory=dict)
    # by their operations, whatever the round: they are not written down again
    unrepeatable: set[Signature] = field(default_factory=set)

    def __call__(self, stretch: PhaseRun, order: Sequence[Step]) -> None:
        if not order:
            return
        # numbers that depend on the round are part of a program
        if stretch.local.round != self.round:
            self._begin(stretch.local.round)
        visit = _Visit(stretch, order)
        with torch.inference_mode():  # entered once: that costs as much as a small kernel
            self._run(visit)

    def _run(self, visit: _Visit) -> None:
        kind = self._number(visit.kind)
        ready: dict[Signature, Callable[..., None]] = {}
        repeated: Counter[Signature] = Counter()
        before: Remembered | None = None
        for place, step in enumerate(visit.order):
            signature = (kind, step.full, step.index.shape)
            trusted = self.programs.get(signature)
            pace = self.paces.setdefault(signature, Pace(self.worth + 3))
            pace.steps += 1
            if trusted is None:
                lacking = visit.lacking
                with torch.inference_mode(False):
                    self._plain(signature, visit, place)
                if visit.lacking > lacking:
                    kind = self._number(visit.kind)
                continue
            trusted.runs += 1
            if trusted.is_due(self.worth):
                trusted.machine = fastest(trusted.program, visit.inputs(place), self.arena)
                ready.pop(signature, None)
            repeated[signature] += 1
            # two of a client are timed, the first with what binding takes: clocks cost time, too
            began = clock() if repeated[signature] <= 2 else None
            if signature not in ready:
                ready[signature] = trusted.machine.bound(visit.tensors)
            key = visit.keys[place] if trusted.machine.takes(-1) else None
            before = before or visit.remember(place)
            try:
                ready[signature](step.index, key)
            except Exception:  # which the net may catch: a program has one way only
                self.programs[signature] = None
                self.unrepeatable.add(signature)
                visit.go_back(before, place)
                before = None
                continue
            if began is not None:
                pace.repeated = min(pace.repeated, clock() - began)

    def _number(self, kind: Hashable) -> int:
        return self.kinds.setdefault(kind, next(self.numbers))

    def _begin(self, round: Any) -> None:
        """A new round: what was written down in the last one need only be found to be
        the same once more.
        """
        rested = {signature: t for signature, t in self.before.items() if signature in self.seen}
        trusted = {signature: t for signature, t in self.programs.items() if t is not None}
        self.before = {**rested, **trusted}
        self.unrepeatable &= {*self.seen}  # a learning rate that changes makes new ones every round
        self.paces = {signature: self.paces[signature] for signature in self.seen}
        self.round, self.seen, self.drafts, self.programs = round, Counter(), {}, {}
        used = {kind for kind, _, _ in (*self.before, *self.unrepeatable, *self.paces)}
        self.kinds = {about: kind for about, kind in self.kinds.items() if kind in used}
        for pace in self.paces.values():
            pace.begin_round()

    def _plain(self, signature: Signature, visit: _Visit, place: int) -> None:
        """A step as it is; written down unless that is known to be of no use."""
        self.seen[signature] += 1
        pace = self.paces[signature]
        rare = self.seen[signature] <= self.worth and signature not in self.before
        began = clock()
        useless = signature in self.programs or signature in self.unrepeatable
        if rare or useless or not pace.pays:
            visit.step(place)
            pace.plain = min(pace.plain, clock() - began)
            return
        lacking = visit.lacking
        with Recorder(visit.inputs(place)) as recorder:
            visit.step(place)
        # a repeated step would not note which tensors have no gradient for the first time
        recorder.repeatable = recorder.repeatable and visit.lacking == lacking
        # without the making of a program, which is needed once in a run
        pace.written = min(pace.written, clock() - began)
        self._written(signature, recorder, steady=len(visit.tensors))

    def _written(self, signature: Signature, recorder: Recorder, steady: int) -> None:
        """A step was written down: for the first time, or once more."""
        known, draft = self.before.pop(signature, None), self.drafts.pop(signature, None)
        is_known = known is not None and recorder.repeats(known.program)
        program = known.program if known and is_known else recorder.program(steady)
        if program is None:
            self.programs[signature] = None
            self.unrepeatable.add(signature)
        elif known is not None and (is_known or program.same_as(known.program)):
            known.lasting = True
            self.programs[signature] = known
        elif draft is None:
            self.drafts[signature] = program
        else:
            same = program.same_as(draft)
            self.programs[signature] = (
                Trusted(program, Machine(program, self.arena)) if same else None
            )
            self.paces[signature].least = 2 if same else inf


@dataclass(eq=False)
class Pace:
    """Seconds of a step in three ways, the fewest that were measured, and steps in a round. Which
    way is taken changes no result.
    """

    least: float  # steps of a round that are needed for one to be repeated; inf: they differ
    plain: float = inf
    written: float = inf  # down, as it is run in the plain way
    repeated: float = inf
    steps: int = 0  # in this round so far
    pays: bool = True  # to write one down in this round and to repeat the others
    rests: int = 0  # rounds in a row without

    def begin_round(self) -> None:
        """Decide as if this round had as many steps as the last one."""
        if inf in (self.plain, self.repeated):
            self.pays = self.steps >= self.least
        else:
            gain = (self.steps - 1) * (self.plain - self.repeated)
            self.pays = gain >= self.written - self.plain
        self.pays = self.pays or self.rests >= _REST
        self.rests = 0 if self.pays else self.rests + 1
        self.steps = 0


class Remembered(NamedTuple):
    """What a client had before its first step that was repeated."""

    place: int  # of that step
    tensors: list[Tensor]


@dataclass(frozen=True, eq=False)
class _Visit:
    """The steps of one client in a phase."""

    stretch: PhaseRun
    order: Sequence[Step]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """What stays the same from step to step, or is written to."""
        stretch, local = self.stretch, self.stretch.local
        return list(
            leaves([stretch.blocks, stretch.start, local.tensors, stretch.memories, local.frozen])
        )

    @property
    def kind(self) -> Hashable:
        """What its programs have in common with those of other clients."""
        stretch = self.stretch
        lacked = tuple(map(frozenset, stretch.lacked))  # those who never did count steps alike
        about = stretch.number, stretch.local.training, tuple(stretch.rates)
        return *about, lacked, _layout(self.tensors)

    @property
    def lacking(self) -> int:
        """How many tensors were without a gradient in some step; that can only grow."""
        return sum(map(len, self.stretch.lacked))

    @cached_property
    def keys(self) -> tuple[Tensor, ...]:
        """The sources of noise of all steps; many nets draw none."""
        device = self.stretch.local.tensors["key"].device
        with torch.inference_mode(False):  # plain steps use them, too
            counts = torch.arange(1, len(self.order) + 1, device=device)
            return step_key(self.stretch, counts).unbind()

    def inputs(self, place: int) -> list[Tensor]:
        """All that a step reads or writes."""
        return [*self.tensors, self.order[place].index, self.keys[place]]

    @property
    def moving(self) -> list[Tensor]:
        """What steps write to."""
        stretch = self.stretch
        trained = [stretch.blocks[name] for name in stretch.phase.train]
        return list(leaves([trained, stretch.memories]))

    def remember(self, place: int) -> Remembered:
        """How everything stands before a step."""
        return Remembered(place, [tensor.clone() for tensor in self.moving])

    def go_back(self, before: Remembered, last: int) -> None:
        """Take the steps from there to the last one in the plain way; an error now is the net's."""
        with torch.inference_mode(False), torch.no_grad():
            for tensor, value in zip(self.moving, before.tensors, strict=True):
                tensor.copy_(value)
        with torch.inference_mode(False):
            for place in range(before.place, last + 1):
                self.step(place)

    def step(self, place: int) -> None:
        """One step in the plain way."""
        run_step(self.stretch, self.order[place], place + 1, self.keys[place])


@dataclass(eq=False)
class Trusted:
    """A program as it was written down, and the way to run it, which is a faster one
    once many runs are likely.
    """

    program: Program
    machine: Machine
    runs: int = 0
    # it was the same in the round before; with a learning rate that changes, none is
    lasting: bool = False
    fast: bool = False

    def is_due(self, worth: int) -> bool:
        """Whether to make it faster now, once: that costs twenty steps and more, and
        saves up to half of each.
        """
        due = not self.fast and self.runs > (6 if self.lasting else 24) * worth
        self.fast |= due
        return due


def _layout(tensors: Sequence[Tensor]) -> Hashable:
    """Shapes, and which of the tensors are the same."""
    known: dict[int, int] = {}
    places = tuple(known.setdefault(id(tensor), place) for place, tensor in enumerate(tensors))
    return places, tuple((t.shape, t.stride(), t.dtype) for t in tensors)
