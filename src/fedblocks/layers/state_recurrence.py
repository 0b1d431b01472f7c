"""A GRU or plain recurrent layer over a whole sequence as one operation, as `recurrence` does it
for an LSTM: for one client, or a stack of them with weights of their own.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from fedblocks.layers.dense import stacked

Slopes = tuple[Tensor, Tensor, Tensor]


class RecurrentCell(Protocol):
    """One step of a layer whose state is what it puts out."""

    def forward(self, read: Tensor, said: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The next state, given what the input and the state before say to the gates; and what
        the way back needs to know.
        """

    def backward(self, d_h: Tensor, kept: Tensor, before: Tensor) -> Slopes:
        """The slopes of `read`, of `said`, and what goes past the gates to the state before."""


class GRUCell:
    """r, z, n: what of the state is read for the candidate, what of it stays, the candidate."""

    def forward(self, read: Tensor, said: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if read.is_cuda:
            flat = [t.reshape(-1, t.shape[-1]) for t in (read, said, h)]
            new, kept = torch.ops.aten._thnn_fused_gru_cell(*flat)
            return new.view_as(h), kept.view(*h.shape[:-1], -1)
        r_in, z_in, n_in = read.chunk(3, -1)
        r_state, z_state, n_state = said.chunk(3, -1)
        r = (r_in + r_state).sigmoid()
        z = (z_in + z_state).sigmoid()
        n = (n_in + r * n_state).tanh()
        return n + z * (h - n), torch.cat([r, z, n, n_state], -1)

    def backward(self, d_h: Tensor, kept: Tensor, before: Tensor) -> Slopes:
        if d_h.is_cuda:
            flat = [t.reshape(-1, t.shape[-1]) for t in (d_h, kept)]
            ends = torch.ops.aten._thnn_fused_gru_cell_backward(*flat, False)
            d_read, d_said, d_before = (t.view(*d_h.shape[:-1], -1) for t in ends[:3])
            return d_read, d_said, d_before
        r, z, n, n_state = kept.chunk(4, -1)
        d_n = d_h * (1 - z) * (1 - n * n)
        d_r = d_n * n_state * r * (1 - r)
        d_z = d_h * (before - n) * z * (1 - z)
        return torch.cat([d_r, d_z, d_n], -1), torch.cat([d_r, d_z, d_n * r], -1), d_h * z


class TanhCell:
    def forward(self, read: Tensor, said: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        new = (read + said).tanh()
        return new, new.clone()

    def backward(self, d_h: Tensor, kept: Tensor, before: Tensor) -> Slopes:
        slope = d_h * (1 - kept * kept)
        return slope, slope, torch.zeros_like(d_h)


class ReluCell:
    def forward(self, read: Tensor, said: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        new = (read + said).relu()
        return new, new.clone()

    def backward(self, d_h: Tensor, kept: Tensor, before: Tensor) -> Slopes:
        slope = d_h * (kept > 0)
        return slope, slope, torch.zeros_like(d_h)


class StateRecurrence(torch.autograd.Function):
    """From what the inputs say to the gates, [..., batch, steps, gates x hidden], to all states."""

    @staticmethod
    def forward(
        cell: RecurrentCell, read: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor
    ) -> tuple[Tensor, Tensor]:
        """States [..., batch, steps, hidden]; for the way back what cells kept, steps first."""
        outs, kept = [], []
        for t in range(read.shape[-2]):
            said = h @ weight.mT  # [..., batch, gates x hidden]
            said = said if bias is None else said + bias.unsqueeze(-2)
            h, own = cell.forward(read[..., t, :], said, h)
            outs.append(h)
            kept.append(own)
        return torch.stack(outs, -2), torch.stack(kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.cell, _, weight, bias, h = inputs
        outs, kept = output
        ctx.has_bias = bias is not None
        ctx.mark_non_differentiable(kept)
        ctx.save_for_backward(weight, h, outs, kept)

    @staticmethod
    def backward(ctx: Any, d_outs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, h, outs, kept = ctx.saved_tensors
        # [..., batch, steps, hidden], before each step
        states = torch.cat([h.unsqueeze(-2), outs[..., :-1, :]], -2)
        d_h = torch.zeros_like(h)
        d_reads, d_saids = [], []
        for t in reversed(range(len(kept))):
            slopes = ctx.cell.backward(d_outs[..., t, :] + d_h, kept[t], states[..., t, :])
            d_reads.append(slopes[0])
            d_saids.append(slopes[1])
            d_h = slopes[1] @ weight + slopes[2]
        d_said = torch.stack(d_saids[::-1], -2).flatten(-3, -2)  # [..., batch x steps, gates]
        d_weight = d_said.mT @ states.flatten(-3, -2)
        d_bias = d_said.sum(-2) if ctx.has_bias else None
        return None, torch.stack(d_reads[::-1], -2), d_weight, d_bias, d_h

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], cell: RecurrentCell, *inputs: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        pairs = zip(inputs, in_dims[1:], strict=True)
        full = [stacked(t, dim, info.batch_size) for t, dim in pairs]
        outs, kept = StateRecurrence.apply(cell, *full)  # type: ignore[no-untyped-call]
        return (outs, kept), (0, 1)


def state_recurrence(
    cell: RecurrentCell, read: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [batch, steps, hidden] of a layer, and its last state."""
    outs, _ = StateRecurrence.apply(cell, read, weight, bias, h)  # type: ignore[no-untyped-call]
    return outs, outs[..., -1, :]
