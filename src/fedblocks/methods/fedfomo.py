"""Each client moves towards the peers whose models do well on its own validation data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.arithmetic import each, flat, unflat
from fedblocks.core.blocks import Block, Generated, PerClient, Private, Read, Selection, ServerOnly
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, AtMost, Conflict, Help
from fedblocks.core.parts import Blocks, Params, Sized, Value, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.random import derive, fold, uniform
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads


@dataclass(frozen=True, eq=False)
class FedFomo(Method):
    """First-order model optimisation: peers weighted by how much they help (Zhang et al., 2021)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with First Order Model Optimization",
        "Zhang et al.",
        2021,
        "ICLR",
    )
    needs: ClassVar[tuple[str, ...]] = ("validation",)

    peers: Annotated[
        int, AtLeast(1), Help("M: models of other clients that a client is sent", usual="5 to 10")
    ] = 5
    epsilon: Annotated[
        float,
        AtLeast(0),
        AtMost(1),
        Help("the chance that a peer is drawn at random, not by affinity", usual="0.3"),
    ] = 0.3
    epsilon_decay: Annotated[
        float, AtLeast(0), Help("how much that chance falls in a round", usual="0.05")
    ] = 0.05
    baseline: Annotated[
        Literal["first", "last"],
        Help('peers are compared with the model "first" in the last own training, or "last" in it'),
    ] = "first"

    def conflicts(self) -> list[Conflict]:
        if self.statistics == "local" and any(map(is_statistic, self.net.names)):
            why = "running statistics cannot be left out of the clients' models"
            return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        return []

    def blocks(self) -> dict[str, Block]:
        nobody = Value(torch.zeros(self.peers, dtype=self.net.dtype))
        affinity = Sized(lambda clients: Value(torch.zeros(clients, clients, dtype=torch.double)))
        own: dict[str, Block] = {"model": Private(self.net.whole)}
        if self.baseline == "first":
            own["first"] = Private(self.net.whole)
        return {
            **own,
            "peers": PerClient(self.net.whole, of="model"),
            "gains": PerClient(nobody, of="gains"),  # what each peer was worth: [peers]
            "affinity": ServerOnly(affinity),  # the sum of all gains: [population, population]
        }

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        return {"peers": Selection(self.choose(server, cohort)), "gains": Generated({})}

    def choose(self, server: Blocks, cohort: Cohort) -> Tensor:
        """The peers that each client is sent: [clients, how many]; itself only if there
        is nobody else.
        """
        epsilon = max(0.0, self.epsilon - cohort.round * self.epsilon_decay)
        count = min(self.peers, cohort.population - 1)
        if count == 0:
            return cohort.ids[:, None]
        affinity = server["affinity"]["value"][cohort.ids]  # [clients, population]
        return epsilon_greedy(affinity, cohort.ids, count, epsilon, cohort.seed, cohort.unseen)

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        if not client.training:
            return blocks  # the test is of the model as it was after its last training
        own = blocks["model"]
        base = blocks["first"] if self.baseline == "first" else own
        peers = blocks["peers"].items()
        models = {k: torch.cat([base[k][None], own[k][None], v]) for k, v in peers}
        # [base, own and peers, weights]
        weights = flat({k: v for k, v in models.items() if not is_statistic(k)})
        lengths = (weights[1:] - weights[0]).norm(dim=1)  # [own and peers]
        gains = self.gains(self.losses(models, client.validation), lengths)
        useful = gains.clamp(min=0)
        shares = useful / torch.where(useful.sum() > 0, useful.sum(), 1)
        rows = flat(models)
        moved = torch.where(useful.sum() > 0, rows[0] + shares @ (rows[1:] - rows[0]), rows[1])
        model = unflat(moved, own)
        worth = F.pad(gains[1:], (0, self.peers - len(gains) + 1))
        return {**blocks, "model": model, "first": model, "gains": {"value": worth}}

    def gains(self, losses: Tensor, length: Tensor) -> Tensor:
        """(L(base) - L(candidate)) / |candidate - base|: [candidates], 0 for one that
        is the base itself.
        """
        gains = (losses[0] - losses[1:]) / torch.where(length > 0, length, 1)
        return torch.where(length > 0, gains, 0)

    @torch.no_grad()
    def losses(self, models: Params, client: Client) -> Tensor:
        """The mean loss of every model on the client's examples: [models]."""
        logits = each(self.net.whole, models, client.x)  # [models, examples, ...]
        labels = client.y.expand(len(logits), *client.y.shape)
        summed = client.task.summed_losses(logits.flatten(0, 1), labels.flatten(0, 1))
        loss, count = (values.view(len(logits), -1) for values in summed)  # [models, examples]
        return (loss * client.mask).sum(1) / (count * client.mask).sum(1).clamp(min=1)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model"),), self.epochs)]

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        return ("gains",)

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """Add up what clients have learnt of their peers."""
        chosen = self.choose(before, cohort)
        upload = uploads["gains"]
        gains = upload.copies["value"][:, : chosen.shape[1]] * (upload.weights > 0)
        where = (cohort.ids[:, None].expand_as(chosen), chosen)
        affinity = before["affinity"]["value"].index_put(where, gains.double(), accumulate=True)
        return {**server, "affinity": {"value": affinity}}


def epsilon_greedy(
    affinity: Tensor,
    own: Tensor,
    count: int,
    epsilon: float,
    seed: int,
    unseen: Tensor | None = None,
) -> Tensor:
    """This many others for each client, one after another: the best that is left, or, sometimes,
    any that is left.

    `affinity` is [clients, population], `own` [clients] their numbers, `epsilon` the chance of any:
    [clients, count]. Clients that never train (`unseen`) are nobody's peers.
    """
    population = affinity.shape[1]
    keys = fold(torch.full((), derive(seed, "peers"), device=own.device), own)
    noise = uniform(keys, (2 * population + count,))
    shuffled = noise[:, population:-count].argsort(1)
    explore = noise[:, -count:] < epsilon
    # equals stay as they lie
    falling = affinity.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    best = shuffled.gather(1, falling)
    by_affinity = best.argsort(1).to(noise)  # ranks: [clients, population]
    by_chance = noise[:, :population]
    taken = torch.zeros_like(best, dtype=torch.bool).scatter(1, own[:, None], True)
    chosen: list[Tensor] = []
    if unseen is not None and len(unseen):
        taken = taken.index_fill(1, unseen, True)
    for turn in range(count):
        rank = torch.where(explore[:, turn, None], by_chance, by_affinity)
        chosen.append(rank.masked_fill(taken, torch.inf).argmin(1, keepdim=True))
        taken = taken.scatter(1, chosen[-1], True)
    return torch.cat(chosen, 1)
