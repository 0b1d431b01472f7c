"""Recurrent layers that are torch's fused ones for a single client, and layer by layer for a stack
of clients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fedblocks.core.mode import current
from fedblocks.core.precision import is_half, single_precision, to_single
from fedblocks.layers.fused import as_if_training
from fedblocks.layers.noise import drop_out
from fedblocks.layers.recurrence import recurrence
from fedblocks.layers.state_recurrence import (
    GRUCell,
    RecurrentCell,
    ReluCell,
    TanhCell,
    state_recurrence,
)

State = Any  # [layers x directions, batch, hidden], or two of them (h and c)


class LayerByLayer(nn.RNNBase):
    """Stacked and bidirectional layers in terms of one pass over the sequence."""

    def forward(self, input: Any, hx: State | None = None) -> tuple[Any, State]:
        if is_half():  # rounding would add up from step to step
            with single_precision(next(self.parameters()).device):
                states = tree_map_only(Tensor, to_single, hx)
                return self._in_single(input.to(torch.float32), states)
        return self._in_single(input, hx)

    def _in_single(self, input: Any, hx: State | None) -> tuple[Any, State]:
        # torch's own noise between layers could not be repeated on another engine
        if isinstance(input, Tensor) and (current().mapped or self._has_noise()):
            return self._forward(input, hx)
        with as_if_training(self):
            return super().forward(input, hx)  # type: ignore[no-any-return]

    def run(self, x: Tensor, place: str, state: State) -> tuple[Tensor, State]:
        """One layer in one direction: outputs [batch, steps, hidden] and the last state."""
        raise NotImplementedError

    def unstack(self, hx: State, index: int) -> State:
        return hx[index]

    def stack(self, states: list[State]) -> State:
        return torch.stack(states)

    def zeros(self, x: Tensor) -> State:
        return x.new_zeros(len(x), self.hidden_size)

    def tensors(self, place: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The weights for inputs and states, and their biases."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_in, w_state, *biases = (getattr(self, f"{name}_{place}", None) for name in names)
        return w_in, w_state, *(biases if self.bias else (None, None))

    def _has_noise(self) -> bool:
        return self.dropout > 0 and self.num_layers > 1

    def _forward(self, input: Tensor, hx: State | None) -> tuple[Tensor, State]:
        if input.dim() == 2:
            return self._forward_one(input, hx)
        x = input if self.batch_first else input.transpose(0, 1)  # [batch, steps, features]
        directions = ("", "_reverse") if self.bidirectional else ("",)
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout > 0 and current().training and self.training:
                x = drop_out(x, self.dropout, whole_channels=False)
            outs = []
            for direction in directions:
                state = self.zeros(x) if hx is None else self.unstack(hx, len(last))
                seen = x.flip(1) if direction else x
                out, state = self.run(seen, f"l{layer}{direction}", state)
                outs.append(out.flip(1) if direction else out)
                last.append(state)
            x = torch.cat(outs, -1)
        return x if self.batch_first else x.transpose(0, 1), self.stack(last)

    def _forward_one(self, input: Tensor, hx: State | None) -> tuple[Tensor, State]:
        """A sequence without a batch: [steps, features]."""
        batch = 0 if self.batch_first else 1
        if hx is not None:
            pair = isinstance(hx, tuple)
            hx = tuple(h.unsqueeze(1) for h in hx) if pair else hx.unsqueeze(1)
        out, last = self._forward(input.unsqueeze(batch), hx)
        squeezed = tuple(h[:, 0] for h in last) if isinstance(last, tuple) else last[:, 0]
        return out.squeeze(batch), squeezed


class LSTM(LayerByLayer, nn.LSTM):
    """Long short-term memory, without projections."""

    def run(self, x: Tensor, place: str, state: State) -> tuple[Tensor, State]:
        w_in, w_state, b_in, b_state = self.tensors(place)
        bias = None if b_in is None or b_state is None else b_in + b_state
        # [batch, steps, 4 hidden]: one product for all time steps
        return recurrence(F.linear(x, w_in, bias), w_state, *state)

    def unstack(self, hx: State, index: int) -> State:
        return hx[0][index], hx[1][index]

    def stack(self, states: list[State]) -> State:
        return torch.stack([h for h, _ in states]), torch.stack([c for _, c in states])

    def zeros(self, x: Tensor) -> State:
        zero = super().zeros(x)
        return zero, zero


class OneState(LayerByLayer):
    """A layer whose state is what it puts out."""

    def cell(self) -> RecurrentCell:
        raise NotImplementedError

    def run(self, x: Tensor, place: str, state: State) -> tuple[Tensor, State]:
        w_in, w_state, b_in, b_state = self.tensors(place)
        return state_recurrence(self.cell(), F.linear(x, w_in, b_in), w_state, b_state, state)


class GRU(OneState, nn.GRU):
    """Gated recurrent units."""

    def cell(self) -> RecurrentCell:
        return GRUCell()


class RNN(OneState, nn.RNN):
    """A plain recurrent layer."""

    def cell(self) -> RecurrentCell:
        return TanhCell() if self.nonlinearity == "tanh" else ReluCell()
