"""Steps on a CPU without the share of Python and autograd: two are written down, the others repeat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.client import Step
from fedblocks.core.local_round import Stretch, run_step, step_key
from fedblocks.engines.recording import Program, Recorder, run


@dataclass(eq=False)
class Replayed:
    """Runs the phases of one method for one purpose; kernels, and so results, are those of the plain way.

    A program is trusted once two steps in a row gave the same one. Steps in which Python looks at numbers are
    never repeated.
    """

    owner: object  # the method: held, so that no other gets its identity
    worth: int  # steps of one kind in a round before they are written down: writing costs as much as several steps
    round: Any = None
    met: Counter[Hashable] = field(default_factory=Counter)
    drafts: dict[Hashable, Program] = field(default_factory=dict)  # written down once
    programs: dict[Hashable, Program | None] = field(default_factory=dict)  # None: cannot be repeated

    def __call__(self, stretch: Stretch, order: Sequence[Step]) -> None:
        if not order:
            return
        if stretch.local.round != self.round:  # numbers that depend on the round are part of a program
            self.round, self.met, self.drafts, self.programs = stretch.local.round, Counter(), {}, {}
        bound = _tensors([stretch.blocks, stretch.start, stretch.local.tensors, stretch.memories])
        about = (stretch.number, stretch.local.training, tuple(stretch.rates), _shapes(bound))
        key = stretch.local.tensors["key"]
        keys = step_key(stretch, torch.arange(1, len(order) + 1, device=key.device)).unbind()
        memories: dict[Hashable, list[Any]] = {}
        for count, (step, key) in enumerate(zip(order, keys, strict=True), 1):
            signature = (about, step.full, tuple(step.index.shape))
            program = self.programs.get(signature)
            if program is None:
                self._plain(signature, stretch, step, count, key, bound)
                continue
            if signature not in memories:
                memories[signature] = program.bound([*bound, None, None])
            memory = memories[signature]
            memory[program.inputs[-2]], memory[program.inputs[-1]] = step.index, key
            with torch.inference_mode():
                run(program.calls, memory)

    def _plain(
        self, signature: Hashable, stretch: Stretch, step: Step, count: int, key: Tensor, bound: list[Tensor]
    ) -> None:
        """A step as it is; written down unless that is known to be of no use."""
        self.met[signature] += 1
        if signature in self.programs or self.met[signature] <= self.worth:
            run_step(stretch, step, count, key)
            return
        with Recorder([*bound, step.index, key]) as recorder:
            run_step(stretch, step, count, key)
        program = recorder.program(steady=len(bound))
        before = self.drafts.pop(signature, None)
        if not recorder.repeatable:
            self.programs[signature] = None
        elif before is None:
            self.drafts[signature] = program
        else:
            self.programs[signature] = program if program.same_as(before) else None


def _tensors(tree: Any) -> list[Tensor]:
    """All tensors of nested dicts and lists, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree
    return [tensor for value in values for tensor in _tensors(value)]


def _shapes(tensors: Sequence[Tensor]) -> Hashable:
    """Shapes, and which of the tensors are the same."""
    known: dict[int, int] = {}
    places = tuple(known.setdefault(id(tensor), place) for place, tensor in enumerate(tensors))
    return places, tuple((t.shape, t.stride(), t.dtype) for t in tensors)
