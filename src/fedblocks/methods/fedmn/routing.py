"""How a client of FedMN comes to its gates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.client import Client
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Batch
from fedblocks.core.random import fold
from fedblocks.core.schedules import at
from fedblocks.methods.fedmn.gates import STREAM, connect, draw_relaxed
from fedblocks.methods.fedmn.pool import ModulePool


@dataclass(frozen=True, eq=False)
class Routing(ModulePool):
    """Gates from the routing net: decided once for a round, and again with a gradient in a step."""

    def decide(self, blocks: Blocks, client: Client) -> Params:
        """The gates [edges] with which a client goes through a round or an evaluation, and how
        they are drawn.
        """
        zero = torch.zeros_like(client.size)
        temperature = zero + at(self.temperature, client.round)
        noise = zero + at(self.gate_noise, client.round)
        is_open = (zero + client.round < self.pretrain_rounds).to(zero.dtype)
        router, moments = blocks["router"], blocks.get("moments")
        seen = self.router.see(router, client)
        logits = self.router.of_summary(router, seen, client.size, moments)  # [edges]
        relaxed = draw_relaxed(logits, client.key, temperature, noise)
        drawn = connect((relaxed > 0.5).to(relaxed.dtype), logits, self.modules)
        probable = connect((logits > 0).to(relaxed.dtype), logits, self.modules)
        trained = relaxed if self.gate_mode == "soft" else drawn
        evaluated = {"mode": probable, "sample": drawn, "soft": torch.sigmoid(logits)}
        # a client that only joins does not train
        value = torch.where(client.steps > 0, trained, evaluated[self.eval_gate])
        value = torch.where(is_open > 0, 1, value)
        return {
            "value": value,
            "temperature": temperature,
            "noise": noise,
            "open": is_open,
            "seen": seen,
        }

    def decide_again(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The same gates in a training step, as a function of the routing net: [edges]."""
        decided = blocks["gates"]
        router, moments = blocks["router"], blocks.get("moments")
        if self.train_router == "all":
            logits = self.router.of_step(router, batch, moments)  # [edges]
        else:  # what it sees of a client stays the same
            logits = self.router.of_summary(router, decided["seen"], batch.client.size, moments)
        key = batch.client.key if self.noise_per == "round" else fold(batch.key, STREAM)
        gates = draw_relaxed(logits, key, decided["temperature"], decided["noise"])
        if self.gate_mode == "st_hard":
            # its value is hard, its gradient is soft
            gates = decided["value"] + (gates - gates.detach())
        return torch.where(decided["open"] > 0, 1, gates)
