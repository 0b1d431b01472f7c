"""Each client's net is a choice of modules from a shared pool, made by a router that looks at its data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.aggregate import Uploads
from fedblocks.core.blocks import Block, Fresh, Pool, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.modular_net import ModularNet
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.random import fold, uniform
from fedblocks.core.schedules import Exponential, Schedule, at
from fedblocks.core.server import Cohort
from fedblocks.methods.fedmn.parts import (
    concrete,
    connected,
    edges,
    matrices,
    mixed,
    path_of,
    pool_conflicts,
    reached,
    run_modules,
    used,
)
from fedblocks.methods.fedmn.router import Router

_GATES = 1 << 22  # the number of a noise stream that no layer reaches


@dataclass(frozen=True, eq=False)
class FedMN(Method):
    """Federated modular network: hard gates on the edges of a pool, drawn from a routing net (Wang et al., 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning via Heterogeneous Modular Networks", "Wang et al.", 2022, "ICDM"
    )

    modules: Annotated[
        tuple[int, ...], AtLeast(1), Length(2),
        Help("encoders, blocks of each middle layer, outputs", usual="[2, 2, 2]"),
    ] = (2, 2, 2)
    widths: Annotated[
        tuple[int, ...] | None, AtLeast(1),
        Help("outputs of an encoder and of each middle block; default: 512, then 256"),
    ] = None
    dropout: Annotated[
        float | None, AtLeast(0), Below(1), Help("in middle blocks; default: 0.5")
    ] = None
    spread: Annotated[
        float | None, AtLeast(0),
        Help("standard deviation of the blocks' first weights; default: as torch makes them"),
    ] = None
    summary_width: Annotated[int, AtLeast(1), Help("of what the router sees of an input")] = 128
    label_width: Annotated[int, AtLeast(1), Help("of what it sees of a label")] = 64
    unit_length: Annotated[
        bool, Help("the router scales each example's summary to length 1")
    ] = True
    router_relu: Annotated[bool, Help("and leaves out negative numbers")] = True
    router_lr: Annotated[
        float | Schedule | None, Positive(),
        Help("of a router that steps after the modules; default: with them, at their lr"),
    ] = None
    router_samples: Annotated[
        int, AtLeast(0), Help("examples that the router looks at in a step; 0: all", usual="256")
    ] = 256
    gate_mode: Annotated[
        Literal["st_hard", "soft"],
        Help('"st_hard": hard choices, soft gradients; "soft": relaxed choices, every module travels'),
    ] = "st_hard"
    noise_per: Annotated[
        Literal["round", "step"],
        Help('"round": one draw of the gates; "step": a new one for each batch, soft gates only'),
    ] = "round"
    eval_gate: Annotated[
        Literal["mode", "sample", "soft"],
        Help('"mode": the more probable choice; "sample": a draw; "soft": the probabilities'),
    ] = "mode"
    temperature: Annotated[
        float | Schedule, Positive(), Help("tau of the gates")
    ] = field(default_factory=lambda: Exponential(1.0, 0.1, 150))
    normalise_blocks: Annotated[
        bool, Help("average over those who used a block; false: over all clients, as printed")
    ] = True

    def conflicts(self) -> list[Conflict]:
        given = {"dropout": self.dropout, "spread": self.spread}
        found = pool_conflicts(self.net, self.modules, self.widths, given)
        if self.gate_mode == "st_hard" and self.noise_per == "step":
            why = "hard gates drawn anew would use modules that were not sent"
            found.append(Conflict("noise_per", why, 'use gate_mode = "soft", or noise_per = "round"'))
        return found

    # the pool and its router

    @cached_property
    def path(self) -> ModularNet:
        """One module of each layer."""
        return path_of(self.net, self.modules, self.widths, self.dropout, self.spread)

    @cached_property
    def router(self) -> Router:
        flags = self.unit_length, self.router_relu, self.router_samples
        return Router(self.path, edges(self.modules), self.summary_width, self.label_width, *flags)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the blocks that hold the modules."""
        return ("encoders", *(f"modules.{number}" for number in range(2, len(self.modules))), "outputs")

    def blocks(self) -> dict[str, Block]:
        pools = zip(self.layers, self.path.stages, self.modules, strict=True)
        pool: dict[str, Block] = {name: Pool(part, n, on_request=name != "encoders") for name, part, n in pools}
        return {"router": Shared(self.router.net.whole), **pool, "gates": Fresh()}

    # on the client

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        alive = reached(matrices(self.decide(blocks["router"], client), self.modules))
        return dict(zip(self.layers[1:], alive[1:-1], strict=True))

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        temperature = torch.zeros_like(client.size) + at(self.temperature, client.round)
        return {**blocks, "gates": {"value": self.decide(blocks["router"], client), "temperature": temperature}}

    def phases(self) -> list[Phase]:
        if self.router_lr is None:
            return [Phase((self.step(*self.layers, "router"),), self.epochs)]
        return [Phase((self.step(*self.layers), self.step("router", lr=self.router_lr)), self.epochs)]

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        logits = self.router.of_step(blocks["router"], batch)
        key = batch.client.key if self.noise_per == "round" else fold(batch.key, _GATES)
        soft = concrete(logits, self.noise(key), blocks["gates"]["temperature"])
        if self.gate_mode == "st_hard":
            soft = blocks["gates"]["value"] + (soft - soft.detach())  # its value is hard, its gradient is soft
        return batch.loss(self.forward(blocks, soft, batch.x))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.forward(blocks, blocks["gates"]["value"], x)

    def forward(self, blocks: Blocks, gates: Tensor, x: Tensor) -> Tensor:
        """The logits of the net that these gates choose."""
        found = matrices(gates, self.modules)
        stacks = [blocks[name] for name in self.layers]
        outputs = run_modules(self.path.stages, stacks, found, x)
        return mixed(found[-1], reached(found)[-2], outputs)[0]

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"gates": blocks["gates"]["value"]}

    def slim(self, blocks: Blocks) -> tuple[Method, Blocks]:
        """A pool of the modules between the input and the prediction; the router has done its work."""
        gates = matrices(blocks["gates"]["value"], self.modules)
        kept = used(gates)
        left = [gate[after][:, before] for gate, before, after in zip(gates, kept, kept[1:], strict=False)]
        pools = {n: {k: v[where] for k, v in blocks[n].items()} for n, where in zip(self.layers, kept, strict=False)}
        smaller = replace(self, modules=tuple(len(where) for where in kept[:-1]))
        return smaller, {**pools, "gates": {"value": torch.cat([gate.flatten() for gate in left])}}

    # gates

    def decide(self, router: Params, client: Client) -> Tensor:
        """The gates with which a client goes through a round or an evaluation: [edges]."""
        logits = self.router.of_client(router, client)
        drawn = concrete(logits, self.noise(client.key), at(self.temperature, client.round))
        hard = connected((drawn > 0.5).to(drawn.dtype), logits, self.modules)
        training = drawn if self.gate_mode == "soft" else hard
        match self.eval_gate:
            case "mode":
                evaluated = connected((logits > 0).to(drawn.dtype), logits, self.modules)
            case "sample":
                evaluated = hard
            case _:
                evaluated = torch.sigmoid(logits)
        return torch.where(client.steps > 0, training, evaluated)  # a client that only joins does not train

    def noise(self, key: Tensor) -> Tensor:
        return uniform(key, (edges(self.modules),)).to(self.path.dtype).clamp(1e-6, 1 - 1e-6)

    # on the server

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        everybody = cohort.sizes.sum()
        if self.normalise_blocks or everybody == 0:
            return server
        used = {name: uploads[name].weights.sum(0) / everybody for name in self.layers[1:]}  # [modules]
        return server | {name: _scaled(server[name], share) for name, share in used.items()}

    def degenerate(self) -> list[str]:
        single = all(count == 1 for count in self.modules)
        return [f"modules = {self.modules} leaves one path: FedAvg on that net"] if single else []


def _scaled(slots: Params, share: Tensor) -> Params:
    return {name: value * share.to(value.dtype).view(-1, *[1] * (value.dim() - 1)) for name, value in slots.items()}
