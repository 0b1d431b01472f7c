"""Three clients with a few examples each, trained by the engines and by plain PyTorch
from the same starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.net_check.passes import overwritten
from fedblocks.engines.net_check.plain_loop import TorchLoop
from fedblocks.engines.round import Engine, Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.local import Local

# batches of 4 and 3, of 2, of 4 and 4: steps and last batches are unequal
SIZES = (7, 2, 8)
BATCH = 4
SEED = 3
RATE = 0.05
# relative differences that rounding explains, in double and in single precision
EXACT = 1e-8
ROUGH = 1e-3


@dataclass(frozen=True, eq=False)
class NetTrial:
    """A net, and the examples that it is tried on."""

    net: Net  # in double precision, if the module can be
    x: Tensor
    y: Tensor
    classes: int
    starts: list[Params]  # other weights for every client
    first: NetTrial | None = None  # that of another engine: plain training is the same
    rounds: dict[tuple[str, int], State] = field(default_factory=dict, init=False)  # played so far

    @staticmethod
    def of(net: Net, x: Tensor, y: Tensor | None) -> NetTrial:
        """The net on these examples, repeated where they are few."""
        rows = torch.arange(sum(SIZES)) % len(x)
        twin, x = _precise(net, x[rows])
        twin.overwritten |= overwritten(twin, twin.init(0), x[:BATCH])
        starts = [twin.init(client) for client in range(len(SIZES))]
        logits = twin(starts[0], x)
        _require_outputs(x, logits)
        classes = int(logits.shape[-1])
        source = torch.Generator().manual_seed(SEED)
        drawn = torch.randint(0, classes, logits.shape[:-1], generator=source)
        return NetTrial(twin, x, drawn if y is None else y[rows], classes, starts)

    @staticmethod
    def as_it_is(net: Net, x: Tensor) -> NetTrial:
        """The net in its own precision: a large one would take long in another."""
        x = x[torch.arange(sum(SIZES)) % len(x)]
        twin = _like(net, net.dtype)
        starts = [twin.init(client) for client in range(len(SIZES))]
        logits = twin(starts[0], x)
        source = torch.Generator().manual_seed(SEED)
        y = torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=source)
        return NetTrial(twin, x, y, logits.shape[-1], starts)

    def first_losses(self, engine: str) -> list[float]:
        """The clients' losses on their own examples before anybody trains."""
        private = {client: {"model": dict(own)} for client, own in enumerate(self.starts)}
        everybody = range(len(SIZES))
        state = State(0, {}, {}, private)
        scores = evaluate(self.experiment, state, everybody, _engine(engine))
        return [scores["personal"][client][2] for client in everybody]

    def wanted_first_losses(self) -> list[float]:
        """Those of plain PyTorch with the same weights."""
        return [
            TorchLoop(self.net, start, RATE).total_loss(self.x[rows], self.y[rows])
            for start, rows in zip(self.starts, map(torch.from_numpy, self.rows), strict=True)
        ]

    def for_another_engine(self) -> NetTrial:
        """The same trial on a module of its own, which nothing has run yet."""
        return replace(self, net=_like(self.net, self.net.dtype), first=self)

    @property
    def tolerance(self) -> float:
        return EXACT if self.net.dtype == torch.float64 else ROUGH

    @property
    def module(self) -> nn.Module:
        """The copy of the user's module that the engines run."""
        return self.net._on(self.x.device).module

    @cached_property
    def rows(self) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        ends = np.cumsum(SIZES)
        return [np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)]

    @cached_property
    def method(self) -> Local:
        return Local(self.net, lr=RATE, batch_size=BATCH)

    @cached_property
    def experiment(self) -> Experiment:
        rows = Rows.of(self.rows)
        data = Federation(self.x, self.y, rows, Rows.none(len(SIZES)), rows, classes=self.classes)
        return Experiment.of(self.method, data, SEED)

    def train(self, engine: str, clients: int = len(SIZES)) -> list[Params]:
        """The tensors of the first clients after a round."""
        private = self._after(engine, clients).private
        return [private[client]["model"] for client in range(clients)]

    def losses(self, engine: str) -> list[float]:
        """The clients' losses on their own examples after the round, in evaluation."""
        everybody = range(len(SIZES))
        after = self._after(engine, len(SIZES))
        scores = evaluate(self.experiment, after, everybody, _engine(engine))
        return [scores["personal"][client][2] for client in everybody]

    def _after(self, engine: str, clients: int) -> State:
        if (engine, clients) not in self.rounds:
            self.rounds[engine, clients] = self._play(engine, clients)
        return self.rounds[engine, clients]

    def _play(self, engine: str, clients: int) -> State:
        private = {client: {"model": dict(own)} for client, own in enumerate(self.starts)}
        start, who = State(0, {}, {}, private), range(clients)
        state, report = run_round(self.experiment, start, who, _engine(engine))
        if report.refusals:
            raise NetError(
                f"what it learns is refused: {report.refusals[0]}",
                "look for numbers that are not finite",
            )
        return state

    @cached_property
    def loops(self) -> list[tuple[TorchLoop, Params]]:
        """Plain PyTorch, client by client: the trained modules and their tensors."""
        if self.first is not None:
            return self.first.loops
        return [self.trained(client) for client in range(len(SIZES))]

    def trained(self, client: int) -> tuple[TorchLoop, Params]:
        """One client in plain PyTorch."""
        loop = TorchLoop(self.net, self.starts[client], RATE)
        own = torch.from_numpy(self.rows[client])
        phase, draw = self.method.phases()[0], Draw(SEED, 0, client, "train")
        order = batches(self.method, phase, 0, SIZES[client], draw)
        steps = [torch.from_numpy(positions) for positions in order]
        return loop, loop.train(self.x[own], self.y[own], steps, SEED, client)

    def wanted(self) -> list[Params]:
        """What plain PyTorch makes of the same starts."""
        return [tensors for _, tensors in self.loops]

    def is_finite(self) -> bool:
        """Whether plain PyTorch ends in numbers."""
        values = [value for tensors in self.wanted() for value in tensors.values()]
        return all(bool(value.isfinite().all()) for value in values)

    def wanted_losses(self) -> list[float]:
        own = [torch.from_numpy(rows) for rows in self.rows]
        pairs = zip(self.loops, own, strict=True)
        return [loop.total_loss(self.x[rows], self.y[rows]) for (loop, _), rows in pairs]

    def with_other_data(self) -> NetTrial:
        """The same trial with other examples for all clients but the first."""
        own, others = self.x[: SIZES[0]], self.x[SIZES[0] :]
        return replace(self, x=torch.cat([own, others.flip(0)]), first=None)


def _require_outputs(x: Tensor, logits: Tensor) -> None:
    """Refuse logits without a dimension of their own."""
    if logits.dim() > 1:
        return
    outputs, inputs = list(logits.shape), f"{len(x)} inputs of shape {list(x.shape[1:])}"
    fix = "let the net return [batch, outputs]: some numbers for each example"
    if outputs == [len(x)]:
        fix = "let the net return [batch, 1], without a squeeze or flatten at its end"
    raise NetError(f"the net turns {inputs} into {outputs}, not [{len(x)}, outputs]", fix)


def examples_for(net: Net, input_shape: Sequence[int] | None = None) -> Tensor:
    """Inputs of this shape, or of that which the net names: tokens where it begins with
    an embedding.
    """
    sizes = input_shape or net.input_shape
    if sizes is None:
        raise NetError(
            "nothing says what the inputs of the net are",
            "give some, check_net(net, x), or input_shape",
        )
    draw = torch.Generator().manual_seed(SEED)
    shape = (sum(SIZES), *sizes)
    if net.fields is not None:  # 0 and 1 are tokens, and say of a mask what is there
        return torch.randint(0, 2, shape, generator=draw).to(net.fields.dtype)
    layers = net.template.modules()
    first = next(m for m in layers if any(True for _ in m.parameters(recurse=False)))
    if isinstance(first, nn.Embedding | nn.EmbeddingBag):
        return torch.randint(0, first.num_embeddings, shape, generator=draw)
    return torch.randn(shape, generator=draw)


def _precise(net: Net, x: Tensor) -> tuple[Net, Tensor]:
    """The net and its inputs in double precision; as they are, if the module insists on its own."""
    try:
        twin = _twin(net, torch.float64)
        inputs = x.double() if x.is_floating_point() else x
        twin(twin.init(0), inputs[:2])
    except (RuntimeError, TypeError):
        twin = _twin(net, net.dtype)
        inputs = x
    return _completed(twin, net), inputs


def _like(net: Net, dtype: torch.dtype) -> Net:
    return _completed(_twin(net, dtype), net)


def _completed(twin: Net, net: Net) -> Net:
    dtypes = {name: value.dtype for name, value in twin.constants.items()}
    kept = {**net.base, **net.constants}  # a frozen base is a constant of the twin
    twin.overwritten |= net.overwritten
    twin.set_constants({name: value.to(dtypes[name]) for name, value in kept.items()})
    return twin


def _twin(net: Net, dtype: torch.dtype) -> Net:
    return Net(net.make, net.head_module, None, dtype, net.input_shape, net.output)


def _engine(name: str) -> Engine:
    return Sequential() if name == "sequential" else Vectorised()
