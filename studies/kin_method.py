"""A candidate for a method of our own: who shares which module with whom, found from first updates.

    fedblocks suite kin --code studies/kin_method.py --tuned

A client's first update, always of the same first model, is its calling card. Body and head are each
sent as a mean over the clients that are kin in this module: all, those of its group, all weighted
by the cosine between cards, or the client alone. Corners of it are FedAvg (all, all), FedPer and
FedRep (all, own), ModFL (all, groups) and clusters (groups, groups); docs/suite.md says what came
of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

import fedblocks as fb
from fedblocks.core.blocks import Read
from fedblocks.core.parts import Blocks, Part, Sized, Value
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods._common.clustering import alike

KinOf = Literal["all", "groups", "cosine", "own"]


@dataclass(frozen=True, eq=False)
class Kin(fb.Method):
    """Every client's mean of its kin, module by module."""

    paper: ClassVar[fb.Paper] = fb.Paper("none: a study", "fedblocks", 2026)
    space: ClassVar[dict[str, tuple[Any, ...]]] = {
        "body": ("all", "groups", "cosine"),
        "head": ("groups", "cosine", "own"),
        "head_epochs": (0, 10),
    }

    body: Annotated[KinOf, fb.Help("who shares the body")] = "groups"
    head: Annotated[KinOf, fb.Help("who shares the head")] = "groups"
    sharpness: Annotated[float, fb.AtLeast(0), fb.Help("of the cosines; 0 means all")] = 30.0
    head_epochs: Annotated[int, fb.AtLeast(0), fb.Help("of the head, then the body follows")] = 0

    def blocks(self) -> dict[str, fb.Block]:
        def slots(count: int) -> fb.ServerOnly:
            return fb.ServerOnly(Sized(lambda clients: Value(torch.zeros(clients, count))))

        parts = {"body": self.net.body, "head": self.net.head}
        cards = {f"{name}_cards": slots(count_values(part)) for name, part in parts.items()}
        modules = {name: fb.PerClient(part, of=name) for name, part in parts.items()}
        return {**modules, **cards, "sizes": slots(1), "groups": slots(1)}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        kinds = {"body": self.body, "head": self.head}
        return {n: fb.Mixture(self.shares(server, cohort, n, kind)) for n, kind in kinds.items()}

    def shares(self, server: Blocks, cohort: Cohort, name: str, kind: KinOf) -> Tensor:
        """Of all clients in what each of the round is sent: [clients, population]. Who was not
        heard yet is sent the first model, its own slot; who never trains, the mean of all.
        """
        sizes, group = (server[n]["value"][:, 0] for n in ("sizes", "groups"))  # [population]
        own = torch.eye(len(sizes), device=sizes.device)
        cards = F.normalize(server[f"{name}_cards"]["value"], dim=1)
        cosines = (cards @ cards.T).masked_fill(own.bool() | (sizes == 0), -1)
        nearest = cosines.amax(1, keepdim=True)  # a client is no nearer to itself than its nearest
        kinship = torch.where(own.bool(), nearest, cosines)  # [population, population]
        weights = {
            "all": sizes.expand_as(own),
            "groups": sizes * (group[:, None] == group),
            "cosine": sizes * torch.exp(self.sharpness * (kinship - nearest)),
            "own": own,
        }[kind]
        weights = weights.index_copy(0, cohort.unseen, sizes.expand(len(cohort.unseen), -1))
        is_alone = sizes == 0
        is_alone = is_alone.index_fill(0, cohort.unseen, bool(is_alone.all()))
        weights = torch.where(is_alone[:, None], own, weights)
        return (weights / weights.sum(1, keepdim=True))[cohort.ids]

    def phases(self) -> list[fb.Phase]:
        if self.head_epochs:
            return [*self.joining(), fb.Phase((self.step("body"),), self.epochs)]
        return [fb.Phase((self.step("body", "head"),), self.epochs)]

    def adaptation(self) -> list[fb.Phase]:
        return self.joining() if self.head_epochs and self.head != "own" else []

    def joining(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("head"),), self.head_epochs or self.epochs)]

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """Keep the first update of every client; new ones may change the groups."""
        ids, sizes = cohort.ids, before["sizes"]["value"]
        is_new = (sizes[ids] == 0) & (cohort.sizes > 0)[:, None]  # [clients, 1]
        if not bool(is_new.any()):
            return server
        cards = {}
        for name in ("body", "head"):
            known = before[f"{name}_cards"]["value"]
            first = fb.flat({k: v[ids] for k, v in before[name].items()})
            update = torch.where(is_new, fb.flat(uploads[name].copies) - first, known[ids])
            cards[f"{name}_cards"] = {"value": known.index_copy(0, ids, update)}
        sizes = torch.where(is_new, cohort.sizes[:, None].to(sizes.dtype), sizes[ids])
        sizes = before["sizes"]["value"].index_copy(0, ids, sizes)
        heard = (sizes[:, 0] > 0).nonzero()[:, 0]
        changes = torch.cat([card["value"][heard] for card in cards.values()], 1)
        found = alike(changes, "auto")[:, None].to(sizes.dtype)
        groups = before["groups"]["value"].index_copy(0, heard, found)
        return {**server, **cards, "sizes": {"value": sizes}, "groups": {"value": groups}}


def count_values(part: Part) -> int:
    return sum(value.numel() for value in part.init(0).values())


fb.METHODS["kin"] = Kin
