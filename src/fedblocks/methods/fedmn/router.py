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
TINY = 1e-6  # added to a variance
# numbers of noise streams that the layers of the modules do not reach
_SUBSET = 1 << 20
_LAYERS = 1 << 21


@dataclass(frozen=True, eq=False)
class Moments:
    """Of a summary, over the examples of everybody: mean and mean square of each number."""

    width: int
    dtype: torch.dtype

    def init(self, seed: int) -> Params:
        """Nothing is known yet: a summary is left as it is."""
        zeros = torch.zeros(self.width, dtype=self.dtype)
        return {"mean": zeros, "square": torch.ones_like(zeros)}


@dataclass(frozen=True, eq=False)
class Router:
    """Looks at a client's labelled examples: h(mean over examples of [phi_x(input),
    phi_y(label)]).
    """

    path: ModularNet
    gates: int  # how many it decides
    summary_width: int  # of phi_x
    label_width: int  # of phi_y
    unit_length: bool
    relu: bool
    samples: int  # that a training step looks at; 0: all
    spread: float = 1.0  # first weights of h, times what torch makes them
    joint: bool = False  # a layer that sees input and label together, before the mean

    @property
    def width(self) -> int:
        """Of a summary."""
        return self.summary_width + self.label_width

    @cached_property
    def net(self) -> Net:
        """Its pieces: phi_x, phi_y, h, and before h a layer for pairs if there is one."""
        return Net.of(self._module, dtype=self.path.dtype)

    def _module(self) -> nn.Module:
        of_input = self.path.summary(self.summary_width)
        of_label = nn.Linear(self.path.classes, self.label_width)
        parts = OrderedDict[str, nn.Module](inputs=of_input, labels=of_label)
        if self.joint:
            parts["pairs"] = nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU())
        to_gates = parts["gates"] = nn.Linear(self.width, self.gates)
        with torch.no_grad():
            to_gates.weight *= self.spread
        return nn.Sequential(parts)

    def of_client(self, params: Params, client: Client, moments: Params | None = None) -> Tensor:
        """G, from all training examples of a client: [gates]."""
        return self.of_summary(params, self.see(params, client), client.size, moments)

    def of_step(self, params: Params, batch: Batch, moments: Params | None = None) -> Tensor:
        """G, from the examples that a training step looks at: [gates]."""
        client = batch.client
        rows, real = client.rows, client.mask
        if self.samples:
            order = uniform(fold(batch.key, _SUBSET), tuple(rows.shape))
            rows, real = subset(rows, real, self.samples, order)
        with mode.mode(True, mode.current().mapped, real, fold(batch.key, _LAYERS)):
            total, _ = self._sums(params, client, rows, real)
            mean = total / real.sum().clamp(min=1)
            return self.of_summary(params, mean, real.sum(), moments)

    def see(self, params: Params, client: Client) -> Tensor:
        """The mean summary of all training examples of a client: [width]."""
        return self._mean(params, client)[0]

    def measure(self, params: Params, client: Client) -> Params:
        """The moments of a client's own summaries."""
        mean, square = self._mean(params, client)
        return {"mean": mean, "square": square}

    def of_summary(
        self, params: Params, mean: Tensor, count: Tensor, moments: Params | None = None
    ) -> Tensor:
        """G: the routing head on the mean summary of so many examples, in units of the federation
        if its moments are there.
        """
        if moments is not None:
            mean = in_units_of(moments, mean)
        *_, to_gates = self.net.stages
        return torch.where(count > 0, to_gates(params, mean), 0)  # without data: no preference

    def _mean(self, params: Params, client: Client) -> Tensor:
        """Over all training examples of a client, a piece at a time: [2, width]."""
        pieces = zip(torch.split(client.rows, PIECE), torch.split(client.mask, PIECE), strict=True)
        sums = [self._sums(params, client, rows, real) for rows, real in pieces]
        return torch.stack(sums).sum(0) / client.size.clamp(min=1)

    def _sums(self, params: Params, client: Client, rows: Tensor, real: Tensor) -> Tensor:
        """Of the summaries of some examples, and of their squares: [2, width]; sequences count
        by their mean over time.
        """
        of_input, of_label, *of_pair, _ = self.net.stages
        # padding must not bring in other people's data
        rows = torch.where(real > 0, rows, client.rows[0])
        y = client.source.y[rows]
        labels = client.task.encode(y, self.path.classes, self.path.dtype)
        seen = [of_input(params, client.source.x[rows]), of_label(params, labels)]
        # [examples, width]
        summary = torch.cat([s if s.dim() == 2 else s.flatten(1, -2).mean(1) for s in seen], -1)
        for layer in of_pair:
            summary = layer(params, summary)
        summary = F.normalize(summary, dim=-1) if self.unit_length else summary
        summary = F.relu(summary) if self.relu else summary
        summary = torch.where(real[:, None] > 0, summary, 0)
        return torch.stack([summary.sum(0), summary.square().sum(0)])


def in_units_of(moments: Params, mean: Tensor) -> Tensor:
    """Mean summaries, [..., width], less the federation's mean, in its standard deviations."""
    variance = moments["square"] - moments["mean"].square()
    return (mean - moments["mean"]) / (variance.clamp(min=0) + TINY).sqrt()


def subset(rows: Tensor, real: Tensor, count: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Some of a client's examples, the real ones with the lowest numbers in `order`:
    rows, and 1 = real.
    """
    # padding comes last
    chosen = torch.where(real > 0, order, 2).argsort(stable=True)[: min(count, rows.shape[-1])]
    return rows.gather(0, chosen), real.gather(0, chosen)
