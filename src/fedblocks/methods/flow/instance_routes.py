"""Two copies of a net's encoder, mixed for every instance: in one go on a chain, step
by step on a recurrent net.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import Count, Memory, Optimizer, Rate, counts_steps
from fedblocks.core.parts import Params
from fedblocks.core.pieces import Piece
from fedblocks.core.recurrent_net import Unrolled

PICTURED = 256  # training examples whose mean route is a client's portrait
# what the router sees [batch, inputs] -> a route [batch, 2] that adds up to 1
Choose = Callable[[Tensor], Tensor]


def blend(route: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Each instance's (or token's) own mixture of two outputs; the route is [batch, 2]
    or [batch, steps, 2].
    """
    own, other = (r.reshape(*r.shape, *[1] * (first.dim() - r.dim())) for r in route.unbind(-1))
    return own * first + other * second


def one_hot(route: Tensor) -> Tensor:
    """The route as a choice: the first branch unless the second is preferred."""
    own = (route[..., :1] >= route[..., 1:]).to(route.dtype)
    return torch.cat([own, 1 - own], -1)


def mean_route(routes: Tensor, real: Tensor) -> Tensor:
    """The mean over the steps that are real: [batch, steps, 2] and [batch, steps] -> [batch, 2]."""
    return (routes * real[..., None]).sum(1) / real.sum(1)[:, None].clamp(min=1)


class BodyBranches:
    """A chain: two bodies under one head, one route for each instance, chosen by its input."""

    def __init__(self, net: Net) -> None:
        check_one_input(net)
        head = net.head.stages
        if head is None or not any(stage.names for stage in net.stages[: head.start]):
            raise UserError(
                "the net has no layers to route: it is not a chain of a body and a head",
                "use an nn.Sequential with a layer before its head, or an LSTM net, e.g. "
                "`next_word`",
            )
        names = [name for stage in net.stages[: head.start] for name in stage.names]
        self.net = net
        self.inputs = input_width(net)
        self.encoder = self.recurrent = Piece(net, names, range(head.start))

    def run(
        self, first: Params, second: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and routes [batch, 1, 2]; what the second branch does not have comes
        from the first.
        """
        route = choose(flat_inputs(self.net, x))  # [batch, 2]
        features = blend(route, self.encoder(first, x), self.encoder({**first, **second}, x))
        return self.net.head(first, features), route[:, None]

    def mean_route(self, routes: Tensor, x: Tensor) -> Tensor:
        return routes.mean(1)


class StepBranches:
    """A recurrent net: two LSTMs under one decoder, a route for each step of each instance."""

    def __init__(self, unrolled: Unrolled, mix_cell: bool) -> None:
        self.unrolled, self.mix_cell = unrolled, mix_cell
        self.encoder, self.recurrent = unrolled.encoder, unrolled.recurrent
        self.inputs = unrolled.width + unrolled.hidden

    def run(
        self, first: Params, second: Params, choose: Choose, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and routes [batch, steps, 2]; both branches see the mixed state of
        the step before.
        """
        net = self.unrolled
        second = {**first, **second}
        words = net.embed(first, x)  # [batch, steps, width]
        reads = net.read(first, words)
        own_reads = net.read(second, net.embed(second, x))
        h, c = net.start(words)
        own_c = c
        states, routes = [], []
        steps = zip(words.unbind(1), reads.unbind(1), own_reads.unbind(1), strict=True)
        for word, read, own_read in steps:
            route = choose(torch.cat([word, h], -1))  # [batch, 2]
            first_h, c = net.step(first, read, (h, c))
            second_h, own_c = net.step(second, own_read, (h, own_c))
            h = blend(route, first_h, second_h)
            if self.mix_cell:
                c = own_c = blend(route, c, own_c)
            states.append(h)
            routes.append(route)
        return net.decode(first, torch.stack(states, 1)), torch.stack(routes, 1)

    def mean_route(self, routes: Tensor, x: Tensor) -> Tensor:
        return mean_route(routes, self.unrolled.real_steps(x, routes.shape[1]))


Branches = BodyBranches | StepBranches


def branches_of(net: Net, mix_cell: bool = True) -> Branches:
    """How two copies of a part of this net are mixed."""
    unrolled = Unrolled.of(net)
    return BodyBranches(net) if unrolled is None else StepBranches(unrolled, mix_cell)


def check_one_input(net: Net) -> None:
    """Refuse a net of several inputs: it is called as a whole, and no chain of layers."""
    if net.fields is not None:
        names = ", ".join(net.fields.labels)
        raise UserError(
            f"the net has several inputs ({names}), between whose layers nothing can be routed",
            "put them side by side in one array, for an nn.Sequential, or choose another method",
        )


def linear_router(net: Net, inputs: int) -> Net:
    """One fully connected layer to two numbers."""
    return Net.of(lambda: nn.Sequential(nn.Linear(inputs, 2)), dtype=net.dtype)


def input_width(net: Net) -> int:
    """How many numbers one example has."""
    if net.input_shape is not None:
        return prod(net.input_shape)
    layers = [
        module for module in net.template.children() if any(True for _ in module.parameters())
    ]
    if layers and isinstance(layers[0], nn.Linear):
        return layers[0].in_features
    raise UserError(
        "the router needs to know how many numbers one example has",
        "say it when the net is made: Net.of(module, input_shape=(1, 28, 28))",
    )


def flat_inputs(net: Net, x: Tensor) -> Tensor:
    """What a router sees of the examples: [batch, inputs]."""
    return x.flatten(1).to(net.dtype)


@dataclass(frozen=True)
class Paced:
    """An optimizer that gives the first tensors another learning rate, a multiple of
    that of the others.
    """

    base: Optimizer
    first: int  # how many tensors
    pace: float

    @property
    def in_effect(self) -> Optimizer:
        """What it comes to: with a pace of 1, the optimizer of the others."""
        return self.base if self.pace == 1 else self

    @property
    def has_client_numbers(self) -> bool:
        return getattr(self.base, "has_client_numbers", False)

    @property
    def counts_steps(self) -> bool:
        return counts_steps(self.base)

    def at(self, places: Sequence[int]) -> Paced:
        """The same for some of the tensors."""
        return replace(self, first=sum(place < self.first for place in places))

    def memory(self, params: list[Tensor]) -> Memory:
        return self.base.memory(params)

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        for part, rate in ((slice(self.first), lr * self.pace), (slice(self.first, None), lr)):
            if params[part]:
                own = {name: values[part] for name, values in memory.items()}
                self.base.step(params[part], grads[part], own, rate, count)
