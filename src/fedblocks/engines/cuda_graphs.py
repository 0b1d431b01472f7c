"""Steps and hooks as CUDA graphs: recorded once for each shape, then replayed without
launching kernels one by one.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack, Step
from fedblocks.core.local_round import PhaseRun, active_part, run_step, step_key
from fedblocks.core.method import Method
from fedblocks.core.trees import copy, is_repeated, leaves, shapes

_WARM_UP = 3  # steps before recording: lazy initialisation and kernel choice happen there
_WORTH = 4  # steps of one shape before it is recorded; of one client, in a row
# seconds that the second call of a hook took: copies in and out cost some of that, too
_WORTH_A_HOOK = 1e-3


@dataclass(eq=False)
class Graph:
    """One recorded step with the memory it works on."""

    recording: torch.cuda.CUDAGraph
    stretch: PhaseRun
    step: Step
    counter: Tensor

    def run(self, stretch: PhaseRun, steps: Sequence[Step], count: int) -> None:
        """Steps of this shape: values in, replays, trained values out as clients end. Who has ended
        goes on with some batch in this memory, which nobody reads.
        """
        _fill(_values(self.stretch), _values(stretch))
        self.counter.fill_(count)
        left = [*(step.active for step in steps[1:]), 0]  # after each step
        for step, following in zip(steps, left, strict=True):
            self.step.index[: step.active].copy_(step.index)
            self.recording.replay()
            if following != step.active:
                self._hand_out(stretch, following, step.active)
        for own, more in zip(stretch.lacked, self.stretch.lacked, strict=True):
            own |= more

    def _hand_out(self, stretch: PhaseRun, first: int | None, last: int | None) -> None:
        """The trained values of the clients of a stack from one to another, or of one client."""
        pairs = zip(leaves(_trained(stretch)), leaves(_trained(self.stretch)), strict=True)
        ended = [pair if last is None else [t[first:last] for t in pair] for pair in pairs]
        _fill([to for to, _ in ended], [value for _, value in ended])


@dataclass(eq=False)
class HookGraph:
    """One recorded hook with the memory it works on."""

    recording: torch.cuda.CUDAGraph
    local: ClientStack
    args: tuple[Any, ...]
    results: Any

    def run(self, local: ClientStack, args: tuple[Any, ...]) -> Any:
        """Values in, a replay, copies of the results out; what the hook handed through
        is not copied.
        """
        _fill([self.args, self.local.tensors, self.local.round], [args, local.tensors, local.round])
        self.recording.replay()
        pairs = zip(leaves(self.args), leaves(args), strict=True)
        return _hand_back(self.results, {_place(buffer): value for buffer, value in pairs})


@dataclass(eq=False)
class Captured:
    """Runs the phases and hooks of one method on a GPU; what cannot be recorded is run as it is."""

    method: Method
    most: int = 128  # graphs kept
    graphs: OrderedDict[Hashable, Graph | HookGraph] = field(default_factory=OrderedDict)
    seen: Counter[Hashable] = field(default_factory=Counter)
    refused: dict[Hashable, str] = field(default_factory=dict)  # why a shape cannot be recorded
    short: set[Hashable] = field(default_factory=set)  # hooks that are not worth it
    # memory of all graphs, which run one at a time
    pool: Any = field(default_factory=torch.cuda.graph_pool_handle)

    def __call__(self, stretch: PhaseRun, order: Sequence[Step]) -> None:
        count = 1
        full = all(step.full for step in order)  # else all are masked: fewer recordings
        for _, alike in groupby(order, key=lambda step: _shape(step, order[0])):
            steps = list(alike)
            size = stack_size(steps[0].active, order[0].active)
            self._run(stretch, _example(steps[0], size, full), steps, count)
            count += len(steps)

    def _run(self, stretch: PhaseRun, example: Step, steps: Sequence[Step], count: int) -> None:
        own = active_part(stretch, example.active)
        key = _signature(own, example)
        if example.active is not None or len(steps) >= _WORTH:
            self.seen[key] += len(steps)
        graph = self._graph(key, _WORTH, lambda: record(own, example, self.pool))
        if isinstance(graph, Graph):
            graph.run(own, steps, count)
            return
        for offset, step in enumerate(steps, count):
            part = active_part(stretch, step.active)
            run_step(part, step, offset, step_key(part, offset))

    def hook(self, local: ClientStack, hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What a hook gives for a stack of clients."""
        source = local.source.x.data_ptr()
        held = source, id(local.frozen)  # a recording holds both, so that neither can be another's
        key = (hook.__name__, local.training, *held, shapes(args), shapes(local.tensors))
        self.seen[key] += 1
        if key not in self.short:
            graph = self._graph(key, 3, lambda: record_hook(local, hook, args, self.pool))
            if isinstance(graph, HookGraph):
                return graph.run(local, args)
        began = time.perf_counter()
        results = local.plainly(hook, *args)
        if self.seen[key] == 2 and time.perf_counter() - began < _WORTH_A_HOOK:
            self.short.add(key)
        return results

    def _graph(
        self, key: Hashable, worth: int, record: Callable[[], Graph | HookGraph]
    ) -> Graph | HookGraph | None:
        """The recording for a key, made if it was seen often enough."""
        if key not in self.graphs and key not in self.refused and self.seen[key] >= worth:
            try:
                self.graphs[key] = record()
            # an operation that cannot be recorded; the plain way always works
            except RuntimeError as error:
                self.refused[key] = str(error)
                torch.cuda.synchronize()
            if len(self.graphs) > self.most:
                self.graphs.popitem(last=False)
        if key in self.graphs:
            self.graphs.move_to_end(key)
        return self.graphs.get(key)


def records_graphs(device: torch.device) -> bool:
    """Whether steps on a device can be recorded."""
    return device.type == "cuda"


def stack_size(active: int | None, most: int | None) -> int | None:
    """How many clients are recorded for steps of so many: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on,
    at most all. Clients that end one after another would need a recording for each number of them.
    """
    if active is None or most is None:
        return None
    power = 1 << (active - 1).bit_length()  # 5 to 8: 8
    return min(most, power * 3 // 4 if power >= 4 and active <= power * 3 // 4 else power)


def _shape(step: Step, first: Step) -> Hashable:
    """Steps of the same are run with one recording."""
    return stack_size(step.active, first.active), step.index.shape[-1]


def _example(first: Step, size: int | None, full: bool) -> Step:
    """What to record for steps that begin with this one."""
    if size is None:
        return Step(first.index, full)
    index = first.index
    rest = index.new_zeros(size - len(index), index.shape[-1])  # of who has ended: any batch
    return Step(torch.cat([index, rest]), full, size)


def record(stretch: PhaseRun, step: Step, pool: Any) -> Graph:
    """One step recorded on copies of its own."""
    device = step.index.device
    rate_shapes = [r.shape if isinstance(r, Tensor) else () for r in stretch.rates]
    rates = [torch.zeros(shape, device=device, dtype=torch.float32) for shape in rate_shapes]
    round = torch.zeros((), device=device, dtype=torch.float32)
    local = replace(stretch.local, tensors=copy(stretch.local.tensors), round=round, caller=None)
    own = replace(
        stretch,
        blocks=copy(stretch.blocks),
        start=copy(stretch.start),
        memories=[copy(memory) for memory in stretch.memories],
        lacked=[set(places) for places in stretch.lacked],
        rates=list(rates),
        local=local,
    )
    one = Step(step.index.clone(), step.full, step.active)
    counter = torch.ones((), device=device, dtype=torch.long)

    def body() -> None:
        run_step(own, one, counter, step_key(own, counter))
        counter.add_(1)

    return Graph(_capture(body, pool), own, one, counter)


def record_hook(
    local: ClientStack, hook: Callable[..., Any], args: tuple[Any, ...], pool: Any
) -> HookGraph:
    """One hook recorded on copies of its own."""
    round = torch.zeros((), device=local.source.x.device, dtype=torch.float32)
    # which would hold us, and we it
    own = replace(local, tensors=copy(local.tensors), round=round, caller=None)
    buffers = copy(args)
    results: list[Any] = []

    def body() -> None:
        results[:] = [own.plainly(hook, *buffers)]

    recording = _capture(body, pool)
    return HookGraph(recording, own, buffers, results[0])


@cache
def _stream(device: int) -> Any:
    """Where all is recorded: cuBLAS keeps 32 MiB for every stream and thread that it has met."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _capture(body: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    side = _stream(torch.cuda.current_device())
    recording = torch.cuda.CUDAGraph()
    with torch.autograd.set_multithreading_enabled(False):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                body()
        torch.cuda.current_stream().wait_stream(side)
        with warnings.catch_warnings(), torch.cuda.graph(recording, pool=pool, stream=side):
            # a hook may do nothing on the GPU
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            body()
    return recording


def _signature(stretch: PhaseRun, step: Step) -> Hashable:
    """Everything that a recording depends on besides values."""
    trees = shapes((stretch.blocks, stretch.start, stretch.local.tensors))
    rates = tuple(isinstance(rate, Tensor) for rate in stretch.rates)
    source = stretch.local.source
    return (
        stretch.number,
        stretch.local.training,
        step.full,
        tuple(step.index.shape),
        trees,
        rates,
        tuple(map(frozenset, stretch.lacked)),  # the others have missed no step
        source.x.data_ptr(),
        id(stretch.local.frozen),  # held by the recording
    )


def _values(stretch: PhaseRun) -> list[Any]:
    local = stretch.local
    blocks = [stretch.blocks, stretch.start]
    return [*blocks, local.tensors, local.round, stretch.memories, stretch.rates]


def _trained(stretch: PhaseRun) -> list[Any]:
    return [{name: stretch.blocks[name] for name in stretch.phase.train}, stretch.memories]


def _fill(to: Any, values: Any) -> None:
    """Copy values into buffers, tree by tree; numbers of one kind in one go."""
    alike: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
    for buffer, value in zip(leaves(to), leaves(values), strict=True):
        if isinstance(value, int | float):
            buffer.fill_(value)
            continue
        if is_repeated(buffer):
            buffer, value = buffer[:1], value[:1]
        kind = (buffer.dtype, value.dtype, value.is_contiguous())
        buffers, sources = alike.setdefault(kind, ([], []))
        buffers.append(buffer)
        sources.append(value)
    for buffers, sources in alike.values():
        torch._foreach_copy_(buffers, sources)


Place = tuple[int, torch.Size, tuple[int, ...]]


def _place(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _hand_back(results: Any, known: Mapping[Place, Tensor]) -> Any:
    """Copies of results, or what was given in their place."""
    if isinstance(results, dict):
        return {name: _hand_back(branch, known) for name, branch in results.items()}
    argument = known.get(_place(results))
    return copy(results) if argument is None else argument
