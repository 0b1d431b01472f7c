"""FedMN as printed: a router that sees a client's data chooses its net from a shared pool."""

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
from fedblocks.core.random import fold
from fedblocks.core.schedules import at
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.fedmn.gates import STREAM, connect, draw_relaxed, matrices, modules_reached
from fedblocks.methods.fedmn.modules import mix, run_modules, scale
from fedblocks.methods.fedmn.pool import ModulePool


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
        parts = zip(self.layers, self.path.stages, self.modules, strict=True)
        pool = {n: Pool(part, count, on_request=n != "encoders") for n, part, count in parts}
        return {"router": Shared(self.router.net.whole), **pool, "gates": Fresh()}

    # 1. receive the router, draw the gates V from Pi(D)

    def decide(self, router: Params, client: Client) -> Tensor:
        """The gates with which a client goes through a round or an evaluation: [edges]."""
        logits = self.router.of_client(router, client)  # [edges]
        relaxed = draw_relaxed(logits, client.key, at(self.temperature, client.round))
        drawn = connect((relaxed > 0.5).to(relaxed.dtype), logits, self.modules)
        probable = connect((logits > 0).to(relaxed.dtype), logits, self.modules)
        trained = relaxed if self.gate_mode == "soft" else drawn
        evaluated = {"mode": probable, "sample": drawn, "soft": torch.sigmoid(logits)}
        # a client that only joins does not train
        return torch.where(client.steps > 0, trained, evaluated[self.eval_gate])

    # 2. tell the server which modules an input reaches, receive those

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        alive = modules_reached(matrices(self.decide(blocks["router"], client), self.modules))
        return dict(zip(self.layers[1:], alive[1:-1], strict=True))

    # 3. train encoders, chosen modules and router under these gates

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        gates = self.decide(blocks["router"], client)
        temperature = torch.zeros_like(client.size) + at(self.temperature, client.round)
        return {**blocks, "gates": {"value": gates, "temperature": temperature}}

    def phases(self) -> list[Phase]:
        if self.router_lr is None:
            return [Phase((self.step(*self.layers, "router"),), self.epochs)]
        router = self.step("router", lr=self.router_lr)
        return [Phase((self.step(*self.layers), router), self.epochs)]

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        logits = self.router.of_step(blocks["router"], batch)  # [edges]
        key = batch.client.key if self.noise_per == "round" else fold(batch.key, STREAM)
        gates = draw_relaxed(logits, key, blocks["gates"]["temperature"])
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
        return mix(by_layer[-1], modules_reached(by_layer)[-2], outputs)[0]

    # 4. upload; a module is averaged over those who used it or, as printed, over everybody

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        everybody = cohort.sizes.sum()
        if self.normalise_blocks or everybody == 0:
            return server
        shares = {n: uploads[n].weights.sum(0) / everybody for n in self.layers[1:]}  # [modules]
        return server | {name: scale(server[name], share) for name, share in shares.items()}
