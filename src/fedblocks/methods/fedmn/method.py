"""FedMN as printed: a client's net is a choice of modules from a shared pool, made by a
router that sees its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Pool, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.random import fold, uniform
from fedblocks.core.schedules import at
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.fedmn.parts import (
    concrete,
    connected,
    edges,
    matrices,
    mixed,
    reached,
    run_modules,
)
from fedblocks.methods.fedmn.pool import ModulePool

_GATES = 1 << 22  # the number of a noise stream that no layer reaches


@dataclass(frozen=True, eq=False)
class FedMN(ModulePool):
    """Federated modular network: hard gates on the edges of a pool, drawn from a
    routing net (Wang et al., 2022).
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning via Heterogeneous Modular Networks",
        "Wang et al.",
        2022,
        "ICDM",
    )

    def blocks(self) -> dict[str, Block]:
        pools = zip(self.layers, self.path.stages, self.modules, strict=True)
        pool = {
            name: Pool(part, count, on_request=name != "encoders") for name, part, count in pools
        }
        return {"router": Shared(self.router.net.whole), **pool, "gates": Fresh()}

    # 1. receive the router, draw the gates V from Pi(D)

    def decide(self, router: Params, client: Client) -> Tensor:
        """The gates with which a client goes through a round or an evaluation: [edges]."""
        logits = self.router.of_client(router, client)  # [edges]
        relaxed = concrete(logits, self.noise(client.key), at(self.temperature, client.round))
        drawn = connected((relaxed > 0.5).to(relaxed.dtype), logits, self.modules)
        probable = connected((logits > 0).to(relaxed.dtype), logits, self.modules)
        trained = relaxed if self.gate_mode == "soft" else drawn
        evaluated = {"mode": probable, "sample": drawn, "soft": torch.sigmoid(logits)}[
            self.eval_gate
        ]
        # a client that only joins does not train
        return torch.where(client.steps > 0, trained, evaluated)

    def noise(self, key: Tensor) -> Tensor:
        return uniform(key, (edges(self.modules),)).to(self.path.dtype).clamp(1e-6, 1 - 1e-6)

    # 2. tell the server which modules an input reaches, receive those

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        alive = reached(matrices(self.decide(blocks["router"], client), self.modules))
        return dict(zip(self.layers[1:], alive[1:-1], strict=True))

    # 3. train encoders, chosen modules and router under these gates

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        temperature = torch.zeros_like(client.size) + at(self.temperature, client.round)
        return {
            **blocks,
            "gates": {"value": self.decide(blocks["router"], client), "temperature": temperature},
        }

    def phases(self) -> list[Phase]:
        if self.router_lr is None:
            return [Phase((self.step(*self.layers, "router"),), self.epochs)]
        return [
            Phase((self.step(*self.layers), self.step("router", lr=self.router_lr)), self.epochs)
        ]

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        logits = self.router.of_step(blocks["router"], batch)  # [edges]
        key = batch.client.key if self.noise_per == "round" else fold(batch.key, _GATES)
        gates = concrete(logits, self.noise(key), blocks["gates"]["temperature"])
        if self.gate_mode == "st_hard":
            # its value is hard, its gradient is soft
            gates = blocks["gates"]["value"] + (gates - gates.detach())
        return batch.loss(self.forward(blocks, gates, batch.x))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.forward(blocks, blocks["gates"]["value"], x)

    def forward(self, blocks: Blocks, gates: Tensor, x: Tensor) -> Tensor:
        """The logits of the net that these gates choose."""
        by_layer = matrices(gates, self.modules)
        outputs = run_modules(self.path.stages, [blocks[name] for name in self.layers], by_layer, x)
        return mixed(by_layer[-1], reached(by_layer)[-2], outputs)[0]

    # 4. upload what was trained; a module is averaged over those who used it, or, as printed, over
    # everybody

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        everybody = cohort.sizes.sum()
        if self.normalise_blocks or everybody == 0:
            return server
        # [modules]
        users = {name: uploads[name].weights.sum(0) / everybody for name in self.layers[1:]}
        return server | {name: _scale(server[name], share) for name, share in users.items()}


def _scale(slots: Params, share: Tensor) -> Params:
    return {
        name: value * share.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        for name, value in slots.items()
    }
