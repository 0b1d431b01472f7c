"""An LSTM layer over a whole sequence as one operation, for one client or a stack of them with
weights of their own.

Left to itself, autograd adds up the gradient of the recurrent weights step by step: as many passes
over the weights of all clients as there are steps. Here it is one product at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedblocks.layers.dense import stacked

Cell = tuple[Tensor, Tensor, Tensor]  # h, c, and the four gates after their activations


class Recurrence(torch.autograd.Function):
    """From what the inputs say to the gates, [..., batch, steps, 4 hidden], to all
    states of the layer.
    """

    @staticmethod
    def forward(
        read: Tensor, weight: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs [..., batch, steps, hidden], the last c; for the way back also all c
        and all gates, steps first.
        """
        outs, cells, gates = [], [], []
        for t in range(read.shape[-2]):
            h, c, gate = _cell(read[..., t, :], h @ weight.mT, c)
            outs.append(h)
            cells.append(c)
            gates.append(gate)
        return torch.stack(outs, -2), c, torch.stack(cells), torch.stack(gates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, h, c = inputs
        outs, _, cells, gates = output
        ctx.mark_non_differentiable(cells, gates)
        ctx.save_for_backward(weight, h, c, outs, cells, gates)

    @staticmethod
    def backward(ctx: Any, d_outs: Tensor, d_c: Tensor, *unused: Tensor) -> tuple[Tensor, ...]:
        weight, h, c, outs, cells, gates = ctx.saved_tensors
        d_h = torch.zeros_like(h)
        slopes = []
        for t in reversed(range(len(cells))):
            before = cells[t - 1] if t else c
            slope, d_c = _cell_backward(d_outs[..., t, :] + d_h, d_c, before, cells[t], gates[t])
            d_h = slope @ weight
            slopes.append(slope)
        d_read = torch.stack(slopes[::-1], -2)  # [..., batch, steps, 4 hidden]
        # [..., batch, steps, hidden], before each step
        states = torch.cat([h.unsqueeze(-2), outs[..., :-1, :]], -2)
        d_weight = d_read.flatten(-3, -2).mT @ states.flatten(-3, -2)
        return d_read, d_weight, d_h, d_c

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], int]:
        full = [stacked(t, dim, info.batch_size) for t, dim in zip(inputs, in_dims, strict=True)]
        read, weight, h, c = full
        outs, last, cells, gates = Recurrence.apply(read, weight, h, c)  # type: ignore[no-untyped-call]
        return (outs, last, cells, gates), (0, 0, 1, 1)  # type: ignore[return-value]


def recurrence(
    read: Tensor, weight: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Outputs [batch, steps, hidden] of an LSTM layer, and its last state."""
    outs, last, _, _ = Recurrence.apply(read, weight, h, c)  # type: ignore[no-untyped-call]
    return outs, (outs[..., -1, :], last)


def _cell(read: Tensor, said: Tensor, c: Tensor) -> Cell:
    """One step, given what its input and the state before it say to the gates."""
    if read.is_cuda:
        flat = [t.reshape(-1, t.shape[-1]) for t in (read, said, c)]
        h, new, gates = torch.ops.aten._thnn_fused_lstm_cell(*flat)
        return h.view_as(c), new.view_as(c), gates.view_as(said)
    i, f, g, o = (read + said).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], -1)


def _cell_backward(
    d_h: Tensor, d_c: Tensor, before: Tensor, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The slopes of the gates before their activations, and of the c before the step."""
    if d_h.is_cuda:
        flat = [t.reshape(-1, t.shape[-1]) for t in (d_h, d_c, before, c, gates)]
        slope, d_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, False)
        return slope.view_as(gates), d_before.view_as(before)
    i, f, g, o = gates.chunk(4, -1)
    bent = c.tanh()
    d_c = d_c + d_h * o * (1 - bent * bent)
    slopes = [
        d_c * g * i * (1 - i),
        d_c * before * f * (1 - f),
        d_c * i * (1 - g * g),
        d_h * bent * o * (1 - o),
    ]
    return torch.cat(slopes, -1), d_c * f
