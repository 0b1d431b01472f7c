"""Two adapters at once: one of all, one of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Mixture, PerClient, Private, Read, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import View
from fedblocks.core.options import Conflict, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.server import Cohort
from fedblocks.methods.lora.adapted import DOWN, HEAD, UP, AdapterMethod

OWN_DOWN, OWN_UP = "own.A", "own.B"


@dataclass(frozen=True, eq=False)
class DualLoRA(AdapterMethod):
    """A client's model is the base, an adapter of the others and one of its own. "mean": the other
    adapter is trained and averaged as in FedAvg (FedDPA: Yang et al., 2024). "rest": it is the mean
    of the own adapters of all other clients that have trained, and is not trained (FedALT: Bian
    et al., 2026).
    """

    paper: ClassVar[Paper] = Paper(
        "Dual-Personalizing Adapter for Federated Foundation Models", "Yang et al.", 2024, "NeurIPS"
    )

    other: Annotated[
        Literal["mean", "rest"],
        Help('the other adapter: averaged ("mean"), or the mean of other clients\' own ("rest")'),
    ] = "mean"
    order: Annotated[
        Literal["local-first", "final"],
        Help('one\'s own trains first in every round, or only before an evaluation ("final")'),
    ] = "local-first"

    def conflicts(self) -> list[Conflict]:
        problems = super().conflicts()
        if self.other == "rest" and self.order == "final":
            why = "the rest of the clients have adapters only if these train in every round"
            problems.append(Conflict("order", why, 'use order="local-first"'))
        return problems

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        if self.order != "final" or self.head != "private":
            return []
        return [
            'order = "final" trains heads of the clients\' own before an evaluation alone: in all '
            "rounds the averaged adapter trains under the head that everybody starts with; "
            'head = "shared" trains that, too'
        ]

    def blocks(self) -> dict[str, Block]:
        down, up = self.adapted.lora_A, self.adapted.lora_B
        if self.other == "rest":
            others: dict[str, Block] = {DOWN: PerClient(down, OWN_DOWN), UP: PerClient(up, OWN_UP)}
        else:
            others = {DOWN: Shared(down), UP: Shared(up)}
        home = Fresh if self.order == "final" else Private
        return {**others, OWN_DOWN: home(down), OWN_UP: home(up), **self.head_block()}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        if self.other == "mean":
            return {}
        others = self.have_trained(server).to(cohort.ids.device).double().repeat(len(cohort), 1)
        others = others.scatter(1, cohort.ids[:, None], 0.0)
        others = cohort.mask_unseen(others, 0.0)
        weights = others / others.sum(1, keepdim=True).clamp(min=1)
        return {DOWN: Mixture(weights), UP: Mixture(weights)}

    def have_trained(self, server: Blocks) -> Tensor:
        """Who has sent an adapter: the factor that starts at zero is not; [clients] of bool."""
        slots = {**server[DOWN], **server[UP]}
        moved = [slots[name].flatten(1).ne(0).any(1) for name in sorted(self.adapted.zero_factors)]
        return torch.stack(moved).any(0)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        """Side by side, the factors of two adapters are those of their sum."""
        down = {k: torch.cat([v, blocks[OWN_DOWN][k]], 0) for k, v in blocks[DOWN].items()}
        up = {k: torch.cat([v, blocks[OWN_UP][k]], -1) for k, v in blocks[UP].items()}
        return self.with_factors(blocks, down, up, x)

    def predict_without_own(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.with_factors(blocks, blocks[DOWN], blocks[UP], x)

    def views(self) -> dict[str, View]:
        return {"personal": self.predict, "shared": self.predict_without_own}

    def loss_without_own(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.predict_without_own(blocks, batch.x))

    def own_phase(self) -> Phase:
        """One's own adapter, beside the other at rest."""
        names = (OWN_DOWN, OWN_UP, HEAD) if self.head == "private" else (OWN_DOWN, OWN_UP)
        return Phase((self.step(*names),), self.epochs)

    def other_phase(self) -> Phase:
        """The averaged adapter alone, as FedAvg trains it."""
        names = (DOWN, UP, HEAD) if self.head == "shared" else (DOWN, UP)
        return Phase((self.step(*names, loss=self.loss_without_own),), self.epochs)

    def phases(self) -> list[Phase]:
        if self.other == "rest":
            return [Phase((self.step(*self.trained(OWN_DOWN, OWN_UP)),), self.epochs)]
        first = [] if self.order == "final" else [self.own_phase()]
        return [*first, self.other_phase()]

    def adaptation(self) -> list[Phase]:
        return [self.own_phase()] if self.order == "final" else []

    def joining(self) -> list[Phase]:
        return [self.own_phase()]
