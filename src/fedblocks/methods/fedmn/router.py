"""FedMN's routing net: from a client's labelled examples to the logits of its gates."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core import mode
from fedblocks.core.client import Client
from fedblocks.core.modular_net import ModularNet
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.core.phases import Batch
from fedblocks.core.random import fold, uniform

PIECE = 256  # examples in one pass over all that a client has
# numbers of noise streams that the layers of the modules do not reach
_SUBSET = 1 << 20
_LAYERS = 1 << 21


@dataclass(frozen=True, eq=False)
class Router:
    """Looks at the joint distribution: the mean over examples of h([phi_x(input),
    phi_y(label)]).
    """

    path: ModularNet
    gates: int  # how many it decides
    summary_width: int  # of phi_x
    label_width: int  # of phi_y
    unit_length: bool
    relu: bool
    samples: int  # that a training step looks at; 0: all

    @cached_property
    def net(self) -> Net:
        """Its three pieces: phi_x, phi_y and h."""
        return Net.of(self._module, dtype=self.path.dtype)

    def _module(self) -> nn.Module:
        of_input = self.path.summary(self.summary_width)
        of_label = nn.Linear(self.path.classes, self.label_width)
        to_gates = nn.Linear(self.summary_width + self.label_width, self.gates)
        return nn.Sequential(OrderedDict(inputs=of_input, labels=of_label, gates=to_gates))

    def of_client(self, params: Params, client: Client) -> Tensor:
        """G, from all training examples of a client: [gates]."""
        pieces = zip(torch.split(client.rows, PIECE), torch.split(client.mask, PIECE), strict=True)
        sums = [self._sum(params, client, rows, real) for rows, real in pieces]
        return torch.stack(sums).sum(0) / client.size.clamp(min=1)

    def of_step(self, params: Params, batch: Batch) -> Tensor:
        """G, from the examples that a training step looks at: [gates]."""
        client = batch.client
        rows, real = client.rows, client.mask
        if self.samples:
            order = uniform(fold(batch.key, _SUBSET), tuple(rows.shape))
            rows, real = subset(rows, real, self.samples, order)
        with mode.mode(True, mode.current().mapped, real, fold(batch.key, _LAYERS)):
            return self._sum(params, client, rows, real) / real.sum().clamp(min=1)

    def _sum(self, params: Params, client: Client, rows: Tensor, real: Tensor) -> Tensor:
        """The sum over some examples, [gates]; sequences count by their mean over time."""
        of_input, of_label, to_gates = self.net.stages
        # padding must not bring in other people's data
        rows = torch.where(real > 0, rows, client.rows[0])
        y = client.source.y[rows]
        is_label = y[..., None] == torch.arange(self.path.classes, device=y.device)  # one-hot
        labels = is_label.to(self.path.dtype)
        seen = [of_input(params, client.source.x[rows]), of_label(params, labels)]
        # [examples, width]
        summary = torch.cat([s if s.dim() == 2 else s.flatten(1, -2).mean(1) for s in seen], -1)
        summary = F.normalize(summary, dim=-1) if self.unit_length else summary
        summary = F.relu(summary) if self.relu else summary
        return torch.where(real[:, None] > 0, to_gates(params, summary), 0).sum(0)


def subset(rows: Tensor, real: Tensor, count: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Some of a client's examples, the real ones with the lowest numbers in `order`:
    rows, and 1 = real.
    """
    # padding comes last
    chosen = torch.where(real > 0, order, 2).argsort(stable=True)[: min(count, rows.shape[-1])]
    return rows.gather(0, chosen), real.gather(0, chosen)
