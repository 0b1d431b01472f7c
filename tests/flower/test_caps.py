"""No client decides more than its share of a slot, of what all groups write there together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from fedblocks.core.admission import cap_weights
from fedblocks.core.blocks import Block, Shared
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment
from fedblocks.flower.local import answers_of, exchange, sides_of
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.methods.fedper import FedPer
from fedblocks.testing import small_federation

from .federations import RUN

SHARE = 0.3
CLIENTS = [0, 1, 2, 3]


@dataclass(frozen=True, eq=False)
class OneHead(FedPer):
    """A body for each architecture, one head for all."""

    architecture: str = "narrow"

    def blocks(self) -> dict[str, Block]:
        return {
            "body": Shared(self.net.body, name=f"body/{self.architecture}"),
            "head": Shared(self.net.head),
        }


def net(hidden: int) -> Net:
    body = lambda: nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 5), nn.Tanh())
    return Net.of(lambda: nn.Sequential(body(), nn.Linear(5, 4)), head="1", dtype=torch.float64)


def head_after(clients: list[int], share: float, folder: Path) -> torch.Tensor:
    data = small_federation()
    methods = {"narrow": OneHead(net(4)), "wide": OneHead(net(8), architecture="wide")}
    groups = tuple("wide" if client == 3 else "narrow" for client in range(data.clients))
    server, sides = sides_of(
        Experiment(methods, data, seed=3, groups=groups), range(data.clients), RUN, folder
    )
    server = replace(server, share=share)
    asked = OpenRound(server, server.start(), clients)
    exchange(asked, answers_of(sides))
    assert asked.report.refusals == []
    return asked.close().progress.state.server["head"]["1.weight"]


def test_a_share_is_one_of_what_all_groups_write(tmp_path: Path) -> None:
    sizes = [len(small_federation().train[client]) for client in CLIENTS]
    weights = cap_weights(torch.tensor(sizes, dtype=torch.double)[:, None], SHARE)[:, 0]
    alone = torch.stack([head_after([client], 1.0, tmp_path / str(client)) for client in CLIENTS])
    expected = torch.einsum("c,c...->...", weights / weights.sum(), alone)
    assert weights.tolist() != sizes  # the share cuts somebody
    assert torch.allclose(head_after(CLIENTS, SHARE, tmp_path / "all"), expected, atol=1e-12)
