"""What the code that was published with FedMN really does, to explain the number it printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Pool, ServerOnly
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.errors import UserError
from fedblocks.core.options import Conflict, Help
from fedblocks.core.parts import Blocks, Params, Part
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.random import fold
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.fedmn.gates import STREAM, draw_relaxed, edges, matrices, modules_reached
from fedblocks.methods.fedmn.modules import run_modules
from fedblocks.methods.fedmn.options import PoolOptions, Spread
from fedblocks.methods.fedmn.router import Router


@dataclass(frozen=True, eq=False)
class FedMNReference(PoolOptions):
    """FedMN's released code: one module a layer under several names, an untrained
    router, gates that are never 0.
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning via Heterogeneous Modular Networks (released code)",
        "Wang et al.",
        2022,
        "ICDM",
    )
    personal_by: ClassVar[str] = "none"
    weight_label: ClassVar[str | Mapping[str, str]] = "1"

    spread: Spread = 0.01
    client_order: Annotated[
        Literal["parallel", "sequential"],
        Help('"sequential": one client a round goes on from the last; see `conclude`'),
    ] = "parallel"

    def conflicts(self) -> list[Conflict]:
        # spread is not asked for: it has a value, and a modular net its own
        return self.pool_conflicts(dropout=self.dropout)

    @cached_property
    def router(self) -> Router:
        # the last ones, for encoders, are made and not used
        gates = edges(self.modules) + self.modules[0]
        return Router(
            self.path,
            gates,
            self.summary_width,
            self.label_width,
            unit_length=True,
            relu=True,
            samples=0,
        )

    @property
    def layers(self) -> tuple[str, ...]:
        middle = [f"module.{number}" for number in range(2, len(self.modules))]
        return ("encoder", *middle, "output")

    def blocks(self) -> dict[str, Block]:
        parts = zip(self.layers, self.path.stages, strict=True)
        one_each = {name: Pool(part, size=1) for name, part in parts}
        router = Fresh(self.router.net.whole)  # nobody trains it, so that it needs no home
        blocks: dict[str, Block] = {"router": router, **one_each, "gates": Fresh()}
        if self.client_order == "sequential":
            blocks["turns"] = ServerOnly(Zeros(self.path.whole))
        return blocks

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        logits = self.router.of_client(blocks["router"], client)
        return {**blocks, "gates": {"logits": logits, "value": self.draw(logits, client.key)}}

    def draw(self, logits: Tensor, key: Tensor) -> Tensor:
        """Relaxed choices from twice the logits, at temperature 1, and then a softmax over all
        of them: [edges].
        """
        return torch.softmax(draw_relaxed(2 * logits, key, 1.0), 0)[: edges(self.modules)]

    def phases(self) -> list[Phase]:
        # no gradient ever reached the router
        return [Phase((self.step(*self.layers),), self.epochs)]

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        gates = self.draw(blocks["gates"]["logits"], fold(batch.key, STREAM))
        return batch.loss(self.forward(blocks, gates, batch.x))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.forward(blocks, blocks["gates"]["value"], x)

    def forward(self, blocks: Blocks, gates: Tensor, x: Tensor) -> Tensor:
        by_layer = matrices(gates, self.modules)
        counts = zip(self.layers, self.modules, strict=True)
        stacks = [_repeat(blocks[name], count) for name, count in counts]
        outputs = run_modules(self.path.stages, stacks, by_layer, modules_reached(by_layer), x)
        weights = by_layer[-1][0]  # [outputs]
        logits = torch.zeros_like(outputs[0])  # [batch, classes]
        for weight, output in zip(weights, outputs, strict=True):
            # the division stood inside the loop
            logits = (logits + weight * output) / weights.sum()
        return logits

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        one = (client.size > 0).to(client.size.dtype).view(1)  # not weighted by examples
        return dict.fromkeys(self.layers, one)

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        return ()

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """In turn: a round is one client's, who goes on from the last; when all had
        theirs, the mean of the results.
        """
        if self.client_order == "parallel":
            return server
        if len(cohort) > 1:
            raise UserError(
                f'client_order = "sequential" is one client a round, not {len(cohort)}',
                "let clients take part one by one; as many rounds as clients are one round of "
                "the released code",
            )
        now = {k: v[0] for name in self.layers for k, v in server[name].items()}
        took_part = float((cohort.sizes > 0).sum())
        one = torch.ones_like(server["turns"]["count"])
        turns = {k: v + took_part * now.get(k, one) for k, v in server["turns"].items()}
        count = turns["count"][0]
        if (cohort.round + 1) % cohort.population or not float(count):
            return server | {"turns": turns}
        means = {name: {k: (turns[k] / count)[None] for k in server[name]} for name in self.layers}
        return server | means | {"turns": {k: torch.zeros_like(v) for k, v in turns.items()}}


@dataclass(frozen=True, eq=False)
class Zeros:
    """The sum of some copies of a part, and how many they are; at the start of none."""

    part: Part

    def init(self, seed: int) -> Params:
        like = self.part.init(seed)
        count = torch.zeros(1, dtype=next(iter(like.values())).dtype)
        return {name: torch.zeros_like(value) for name, value in like.items()} | {"count": count}


def _repeat(pool: Params, count: int) -> Params:
    """The one module of a layer under several names."""
    return {name: value.expand(count, *value.shape[1:]) for name, value in pool.items()}
