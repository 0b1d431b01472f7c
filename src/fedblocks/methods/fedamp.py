"""Every client is pulled to its own average of all the others, which counts the
like-minded most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.arithmetic import flat
from fedblocks.core.blocks import Block, Mixture, PerClient, Private, Read
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AnyNumber, AtLeast, AtMost, Conflict, Help, Positive
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Phase, Pull
from fedblocks.core.server import Cohort


@dataclass(frozen=True, eq=False)
class Attentive(Method):
    """What FedAMP and its heuristic form have in common: attention on the server, a
    pull on the client.
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Cross-Silo Federated Learning on Non-IID Data", "Huang et al.", 2021, "AAAI"
    )

    strength: Annotated[
        float,
        AtLeast(0),
        Help("lambda: of the pull to the average that was sent", usual="0.1 to 1"),
    ] = 1.0
    start: Annotated[
        Literal["cloud", "model"],
        Help('local training starts from the "cloud" model that was sent, or from the own "model"'),
    ] = "cloud"

    def conflicts(self) -> list[Conflict]:
        if self.statistics == "local" and any(map(is_statistic, self.net.names)):
            why = "running statistics cannot be left out of the clients' models"
            return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        return []

    def blocks(self) -> dict[str, Block]:
        return {"model": Private(self.net.whole), "cloud": PerClient(self.net.whole, of="model")}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        """u_i: what attention to the others leaves over goes to the client's own model."""
        # [population, parameters]
        models = flat({k: v for k, v in server["cloud"].items() if not is_statistic(k)})
        own = F.one_hot(cohort.ids, len(models)).bool()  # [clients, population]
        others = self.attention(models, cohort, cohort.mask_unseen(own, True))
        left_over = (1 - others.sum(1, keepdim=True)).clamp(min=0)  # [clients, 1]
        return {"cloud": Mixture(torch.where(own, left_over, others))}

    def attention(self, models: Tensor, cohort: Cohort, hidden: Tensor) -> Tensor:
        """How much each client of a round attends to every other: [clients, population].

        0 where `hidden`: for itself, and for clients that never train.
        """
        raise NotImplementedError("FedAMP and its heuristic form differ in this")

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        begins = client.training and self.start == "cloud"  # the test is of the client's own model
        return {**blocks, "model": blocks["cloud"]} if begins else blocks

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        pull = Pull("model", to="cloud", strength=self.pull_strength)
        return [Phase((self.step("model", pull=pull),), self.epochs)]

    @property
    def pull_strength(self) -> float:
        return self.strength


@dataclass(frozen=True, eq=False)
class FedAMP(Attentive):
    """Attentive message passing: attention falls with the distance between models
    (Huang et al., 2021).
    """

    step_size: Annotated[
        float,
        Positive(),
        Help("alpha_k: of the server's step; the pull is strength / step_size", usual="1"),
    ] = 1.0
    sigma: Annotated[
        float, Positive(), Help("squared distance at which attention has fallen to 1/e", usual="1")
    ] = 1.0
    relative: Annotated[
        bool, Help("squared distances in units of their mean, so that sigma need not fit the net")
    ] = False

    def attention(self, models: Tensor, cohort: Cohort, hidden: Tensor) -> Tensor:
        """alpha A'(|w_i - w_j|^2), A'(x) = exp(-x / sigma) / sigma; a row may not add
        up to more than 1.
        """
        exact = "donot_use_mm_for_euclid_dist"
        apart = torch.cdist(models[cohort.ids], models, compute_mode=exact).square()
        if self.relative:
            mean = mean_square_distance(cohort.without_unseen(models))
            apart = apart / mean.clamp(min=torch.finfo(models.dtype).tiny)
        attention = self.step_size / self.sigma * torch.exp(-apart / self.sigma)
        weights = attention.masked_fill(hidden, 0)
        return weights / weights.sum(1, keepdim=True).clamp(min=1)

    @property
    def pull_strength(self) -> float:
        return self.strength / self.step_size


@dataclass(frozen=True, eq=False)
class HeurFedAMP(Attentive):
    """FedAMP's heuristic form: attention by the cosine between models, a fixed share
    for one's own.
    """

    scale: Annotated[float, AnyNumber(), Help("s: of the cosines", usual="25")] = 25.0
    own_share: Annotated[
        float | None,
        AtLeast(0),
        AtMost(1),
        Help(
            "xi_ii: of the client's own model; default: 1 / number of clients",
            usual="0.1 to 0.5",
        ),
    ] = None

    def attention(self, models: Tensor, cohort: Cohort, hidden: Tensor) -> Tensor:
        """(1 - xi) exp(s cos(w_i, w_j)), normalised over the others."""
        rows = F.normalize(models, dim=1)
        share = 1 / cohort.population if self.own_share is None else self.own_share
        cosines = self.scale * rows[cohort.ids] @ rows.T  # [clients, population]
        weights = torch.softmax(cosines.masked_fill(hidden, -torch.inf), 1)
        return (1 - share) * weights.nan_to_num(0)  # a client that is alone attends to nobody

    def degenerate(self) -> list[str]:
        if self.own_share != 1:
            return []
        return ["own_share = 1 leaves clients alone with their own models"]


def mean_square_distance(models: Tensor) -> Tensor:
    """The mean of |w_i - w_j|^2 over pairs, from the distances to the mean model."""
    count = len(models)
    return 2 * (models - models.mean(0)).square().sum() / max(count - 1, 1)
