"""Two copies of a whole net, mixed layer by layer: what Flow's second version routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.core.recurrent_net import Unrolled
from fedblocks.methods.flow.instance_routes import (
    blend,
    check_one_input,
    flat_inputs,
    input_width,
)

# (name of a policy, what it sees [..., inputs]) -> routes [..., layers, 2]
Choose = Callable[[str, Tensor], Tensor]
Segments = tuple[tuple[int, ...], ...]  # for each routed layer, the hidden layers before its exit


@dataclass(frozen=True)
class Sizes:
    """The hidden layers of the policies, and the dropout between those of the step policy."""

    input: tuple[int, ...]  # the policy that sees the whole input
    step: tuple[int, ...]  # the policy that sees one step of an LSTM
    dense: tuple[int, ...]  # the policy that sees the outputs of the first layer after an LSTM
    dropout: float


class Policy(nn.Module):
    """A perceptron with an exit to two numbers for each routed layer: [..., inputs] ->
    [..., layers, 2].
    """

    def __init__(self, inputs: int, segments: Segments, dropout: float = 0.0) -> None:
        super().__init__()
        self.trunk, self.exits = nn.ModuleList(), nn.ModuleList()
        for sizes in segments:
            layers: list[nn.Module] = []
            for size in sizes:
                layers += [nn.Linear(inputs, size), nn.ReLU(), nn.Dropout(dropout)]
                inputs = size
            self.trunk.append(nn.Sequential(*layers))
            self.exits.append(nn.Linear(inputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        routes = []
        for segment, out in zip(self.trunk, self.exits, strict=True):
            x = segment(x)
            routes.append(out(x))
        return torch.stack(routes, -2)


def segments_of(hidden: tuple[int, ...], layers: int, first: int = 1) -> Segments:
    """Hidden layers dealt out to exits: the first exit comes after `first` of them, the
    others after one more each.
    """
    rest = [hidden[i : i + 1] for i in range(first, first + layers - 1)]
    return (hidden[:first], *rest)


class ChainLayers:
    """A chain: one policy looks at the input and has a route for every stage with parameters."""

    def __init__(self, net: Net) -> None:
        check_one_input(net)
        self.net = net
        self.count = sum(bool(stage.names) for stage in net.stages)
        if not self.count:
            raise UserError(
                "the net has no layers to route: it is not a chain",
                "give `Net.of` an nn.Sequential, or an LSTM net, e.g. `next_word`",
            )

    def policies(self, sizes: Sizes) -> dict[str, Net]:
        """The router, by the name of its block."""
        inputs = input_width(self.net)
        segments = segments_of(sizes.input, self.count)
        return {"policy": Net.of(lambda: Policy(inputs, segments), dtype=self.net.dtype)}

    def run(
        self, shared: Params, local: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and routes [batch, layers, 2]."""
        routes = choose("policy", flat_inputs(self.net, x))
        each = iter(routes.unbind(-2))
        for stage in self.net.stages:
            if stage.names:
                x = blend(next(each), stage(shared, x), stage(local, x))
            else:
                x = stage(shared, x)
        return x, routes

    def real(self, routes: Tensor, x: Tensor) -> Tensor:
        """[batch, routes of an instance], all of them real."""
        return torch.ones_like(routes[..., 0])


class RecurrentLayers:
    """A recurrent net: a policy for every step of the LSTM, and one for every token in
    the layers after it.
    """

    def __init__(self, unrolled: Unrolled) -> None:
        self.unrolled = unrolled
        self.net = unrolled.net
        self.after = [self.net.stages[index] for index in unrolled.decoder.stages or ()]
        self.count = sum(bool(stage.names) for stage in self.after)
        layers = [m for m in self._modules_after() if any(True for _ in m.parameters())]
        if not layers or not isinstance(layers[0], nn.Linear):
            raise UserError("the layer after the LSTM has no known width", "put an nn.Linear there")
        self.width = layers[0].out_features

    def _modules_after(self) -> list[nn.Module]:
        return list(self.net.template.children())[-len(self.after) :] if self.after else []

    def policies(self, sizes: Sizes) -> dict[str, Net]:
        """The routers, by the names of their blocks."""
        net, dtype = self.unrolled, self.net.dtype
        step = lambda: Policy(net.width + 2 * net.hidden, (sizes.step,), sizes.dropout)
        dense = lambda: Policy(2 * self.width, segments_of(sizes.dense, self.count, first=2))
        return {"policy": Net.of(step, dtype=dtype), "dense_policy": Net.of(dense, dtype=dtype)}

    def run(
        self, shared: Params, local: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and routes [batch, steps and then layers, 2]."""
        states, steps = self._states(shared, local, choose, x)
        logits, layers = self._decode(shared, local, choose, states)
        return logits, torch.cat([steps, layers.flatten(1, -2)], 1)

    def _states(
        self, shared: Params, local: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The shared LSTM goes on from the mixed state, the local one from its own."""
        net = self.unrolled
        words = net.embed(shared, x)  # [batch, steps, width]
        reads = net.read(shared, words)
        own_reads = net.read(local, net.embed(local, x))
        state = own = net.start(words)
        states, routes = [], []
        inputs = zip(words.unbind(1), reads.unbind(1), own_reads.unbind(1), strict=True)
        for word, read, own_read in inputs:
            state = net.step(shared, read, state)
            own = net.step(local, own_read, own)
            seen = torch.cat([word, state[0], own[0]], -1)  # [batch, width + 2 hidden]
            route = choose("policy", seen).squeeze(-2)  # [batch, 2]
            state = blend(route, state[0], own[0]), blend(route, state[1], own[1])
            states.append(state[0])
            routes.append(route)
        return torch.stack(states, 1), torch.stack(routes, 1)

    def _decode(
        self, shared: Params, local: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The layers after the LSTM, both copies on the same mixed input."""
        routes = None
        number = 0
        for stage in self.after:
            if not stage.names:
                x = stage(shared, x)
                continue
            outputs = stage(shared, x), stage(local, x)
            routes = choose("dense_policy", torch.cat(outputs, -1)) if routes is None else routes
            x = blend(routes[..., number, :], *outputs)
            number += 1
        assert routes is not None  # there is at least one such layer
        return x, routes

    def real(self, routes: Tensor, x: Tensor) -> Tensor:
        """[batch, routes of an instance], 0 where the input is padding."""
        if self.unrolled.padding is None:
            return torch.ones_like(routes[..., 0])
        steps = self.unrolled.real_steps(x, x.shape[1])
        return torch.cat([steps, steps.repeat_interleave(self.count, 1)], 1)


Layers = ChainLayers | RecurrentLayers


def layers_of(net: Net) -> Layers:
    """How two copies of this net are mixed layer by layer."""
    unrolled = Unrolled.of(net)
    return ChainLayers(net) if unrolled is None else RecurrentLayers(unrolled)
