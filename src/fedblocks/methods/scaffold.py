"""FedAvg whose clients correct each step for where their own data pull them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import Conflict, Help, Positive
from fedblocks.core.parts import Blocks, Filled, is_statistic
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.rules import MovingAverage
from fedblocks.core.schedules import at
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.fedavg import FedAvg

ONE_EACH = {"model": "1", "control": "1"}


@dataclass(frozen=True, eq=False)
class Scaffold(FedAvg):
    """Control variates: the gradient of everybody in the place of the client's own
    (Karimireddy et al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "Karimireddy et al.",
        2020,
        "ICML",
    )
    weight_label: ClassVar[str | Mapping[str, str]] = by_options(
        "n", lambda method: "n" if method.weigh_by == "examples" else ONE_EACH
    )

    server_lr: Annotated[
        float, Positive(), Help("eta_g: of the step to the clients' mean", usual="1")
    ] = 1.0
    weigh_by: Annotated[
        Literal["examples", "clients"],
        Help(
            'how clients count in both means: "examples", or "clients" (all alike, as in the paper)'
        ),
    ] = "examples"

    def conflicts(self) -> list[Conflict]:
        if self.optimizer != SGD():
            why = "SCAFFOLD reads gradients off its steps, which only plain SGD allows"
            return [Conflict("optimizer", why, "use plain SGD()")]
        return []

    def blocks(self) -> dict[str, Block]:
        zeros = Filled(self.net.piece(n for n in self.net.names if not is_statistic(n)), 0.0)
        return {
            "model": Shared(self.net.whole, rule=MovingAverage(self.server_lr)),  # x
            "control": Shared(zeros, of="change"),  # c
            "own": Private(zeros),  # c_i
            "change": Fresh(zeros),  # of c_i in this round
        }

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model", loss=self.corrected_loss),), self.epochs)]

    def corrected_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """Its gradient is that of the loss, minus c_i, plus c."""
        own, control, model = blocks["own"], blocks["control"], blocks["model"]
        tilt = [((control[name] - own[name]) * model[name]).sum() for name in own]
        return self.loss(blocks, batch) + torch.stack(tilt).sum()

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        """c_i+ = c_i - c + (x - y) / (K eta): the mean gradient of this round."""
        length = client.steps * at(self.lr, client.round)  # 0: an empty client, which keeps its own
        per_step = 1 / torch.where(length > 0, length, 1)
        x, y = start["model"], blocks["model"]
        change = {
            k: torch.where(length > 0, (x[k] - y[k]) * per_step - c, 0)
            for k, c in blocks["control"].items()
        }
        own = {k: c + change[k] for k, c in blocks["own"].items()}
        return {**blocks, "own": own, "change": change}

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        has_data = (client.size > 0).to(client.size.dtype)
        weight = client.size if self.weigh_by == "examples" else has_data
        return {"model": weight.view(1), "control": weight.view(1)}

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        return ()  # how many took part, and the mean of their changes, say it all

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """c moves by the mean change of those who took part, times their share of all clients."""
        share = (uploads["control"].weights > 0).sum().double() / cohort.population
        change = server["control"]
        control = {k: c + share * change[k] for k, c in before["control"].items()}
        return {**server, "control": control}

    def joining(self) -> list[Phase]:
        return []  # what clients keep serves training only: a new one is given the shared model
