"""Steps as CUDA graphs: recorded once for each shape, then replayed without launching kernels one by one."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.client import Step
from fedblocks.core.local_round import Stretch, active_part, run_step, step_key
from fedblocks.core.method import Method

_WARM_UP = 3  # steps before recording: lazy initialisation and kernel choice happen there
_WORTH = 4  # steps of one shape before it is recorded


@dataclass(eq=False)
class Graph:
    """One recorded step with the memory it works on."""

    recording: torch.cuda.CUDAGraph
    stretch: Stretch
    step: Step
    counter: Tensor

    def run(self, stretch: Stretch, steps: Sequence[Step], count: int) -> None:
        """Steps of this shape: values in, replays, trained values out."""
        _fill(_values(self.stretch), _values(stretch))
        self.counter.fill_(count)
        for step in steps:
            self.step.index.copy_(step.index)
            self.recording.replay()
        _fill(_trained(stretch), _trained(self.stretch))


@dataclass(eq=False)
class Captured:
    """Runs the phases of one method on a GPU; what cannot be recorded is run step by step."""

    method: Method
    most: int = 64  # graphs kept
    graphs: OrderedDict[Hashable, Graph] = field(default_factory=OrderedDict)
    met: Counter[Hashable] = field(default_factory=Counter)
    refused: dict[Hashable, str] = field(default_factory=dict)  # why a shape is not recorded

    def __call__(self, stretch: Stretch, order: Sequence[Step]) -> None:
        count = 1
        for (active, full), found in groupby(order, key=lambda step: (step.active, step.full)):
            steps = list(found)
            self._run(active_part(stretch, active), steps, full, count)
            count += len(steps)

    def _run(self, stretch: Stretch, steps: Sequence[Step], full: bool, count: int) -> None:
        key = _signature(stretch, steps[0], full)
        self.met[key] += len(steps)
        if key not in self.graphs and key not in self.refused and self.met[key] >= _WORTH:
            self._record(key, stretch, steps[0])
        if key in self.graphs:
            self.graphs.move_to_end(key)
            self.graphs[key].run(stretch, steps, count)
            return
        for offset, step in enumerate(steps):
            run_step(stretch, step, count + offset, step_key(stretch, count + offset))

    def _record(self, key: Hashable, stretch: Stretch, step: Step) -> None:
        try:
            self.graphs[key] = record(stretch, step)
        except RuntimeError as error:  # an operation that cannot be recorded; the plain way always works
            self.refused[key] = str(error)
            torch.cuda.synchronize()
        if len(self.graphs) > self.most:
            self.graphs.popitem(last=False)


def record(stretch: Stretch, step: Step) -> Graph:
    """One step recorded on copies of its own."""
    device = step.index.device
    shapes = [r.shape if isinstance(r, Tensor) else () for r in stretch.rates]
    rates = [torch.zeros(shape, device=device, dtype=torch.float32) for shape in shapes]
    round = torch.zeros((), device=device, dtype=torch.float32)
    local = replace(stretch.local, tensors=_copied(stretch.local.tensors), round=round)
    own = replace(
        stretch,
        blocks=_copied(stretch.blocks),
        start=_copied(stretch.start),
        memories=[_copied(memory) for memory in stretch.memories],
        rates=list(rates),
        local=local,
    )
    one = Step(step.index.clone(), step.full, step.active)
    counter = torch.ones((), device=device, dtype=torch.long)

    def body() -> None:
        run_step(own, one, counter, step_key(own, counter))
        counter.add_(1)

    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            body()
    torch.cuda.current_stream().wait_stream(side)
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        body()
    return Graph(recording, own, one, counter)


def _signature(stretch: Stretch, step: Step, full: bool) -> Hashable:
    """Everything that a recording depends on besides values."""
    shapes = tuple(_shapes(tree) for tree in (stretch.blocks, stretch.start, stretch.local.tensors))
    shapes += tuple(isinstance(rate, Tensor) for rate in stretch.rates)
    source = stretch.local.source
    return (stretch.number, stretch.local.training, full, tuple(step.index.shape), shapes, source.x.data_ptr())


def _shapes(tree: Any) -> Hashable:
    if isinstance(tree, dict):
        return tuple((k, _shapes(v)) for k, v in tree.items())
    return (tuple(tree.shape), tree.dtype)


def _copied(tree: Any) -> Any:
    """Copies at addresses of their own; what all clients share stays shared."""
    if isinstance(tree, dict):
        return {k: _copied(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_copied(v) for v in tree]
    return tree[:1].clone().expand_as(tree) if tree.dim() and tree.stride(0) == 0 else tree.clone()


def _values(stretch: Stretch) -> list[Any]:
    local = stretch.local
    return [stretch.blocks, stretch.start, local.tensors, local.round, stretch.memories, stretch.rates]


def _trained(stretch: Stretch) -> list[Any]:
    return [{name: stretch.blocks[name] for name in stretch.phase.train}, stretch.memories]


def _fill(to: Any, values: Any) -> None:
    """Copy values into buffers, tree by tree."""
    if isinstance(to, dict):
        for key, buffer in to.items():
            _fill(buffer, values[key])
    elif isinstance(to, list):
        for buffer, value in zip(to, values, strict=True):
            _fill(buffer, value)
    elif isinstance(values, int | float):
        to.fill_(values)
    elif to.dim() and to.stride(0) == 0:
        to[:1].copy_(values[:1])
    else:
        to.copy_(values)
