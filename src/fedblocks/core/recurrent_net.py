"""A recurrent net step by step, for methods that look inside its sequence: embed, cell,
decode as pure functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.core.pieces import Piece

State = tuple[Tensor, Tensor]  # h and c, each [batch, hidden]


class Unrolled:
    """A chain with one LSTM layer: the stages before it embed, those after it decode
    all its states.
    """

    def __init__(self, net: Net, stage: int, path: str, lstm: nn.LSTM) -> None:
        self.net, self.path = net, path
        self.width, self.hidden = lstm.input_size, lstm.hidden_size
        self.embedding = _stretch(net, range(stage))
        self.recurrent = _stretch(net, range(stage, stage + 1))
        self.encoder = _stretch(net, range(stage + 1))
        self.decoder = _stretch(net, range(stage + 1, len(net.stages)))
        self.padding = _padding(net, stage)

    @staticmethod
    def of(net: Net) -> Unrolled | None:
        """The net step by step, or nothing if it is no chain with a stage that is all LSTM."""
        for index, stage in enumerate(net.stages):
            for path, module in net.template.named_modules():
                if (
                    isinstance(module, nn.LSTM)
                    and stage.names
                    and all(n.startswith(f"{path}.") for n in stage.names)
                ):
                    _check(path, module)
                    return Unrolled(net, index, path, module)
        return None

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """What the LSTM reads: [batch, steps, width]."""
        return self.embedding(params, x)

    def start(self, x: Tensor) -> State:
        """The state before the first step of what `embed` gave."""
        # `len` would fix the batch size in an exported graph
        zero = x.new_zeros(x.shape[0], self.hidden)
        return zero, zero

    def cell(self, params: Params, x: Tensor, state: State) -> State:
        """One step, from [batch, width] and a state to the next state."""
        return self.step(params, self.read(params, x), state)

    def read(self, params: Params, x: Tensor) -> Tensor:
        """What the inputs say to the gates, as one product for all steps: [..., width]
        -> [..., 4 hidden].
        """
        bias = params[f"{self.path}.bias_ih_l0"] + params[f"{self.path}.bias_hh_l0"]
        return F.linear(x, params[f"{self.path}.weight_ih_l0"], bias)

    def step(self, params: Params, read: Tensor, state: State) -> State:
        """One step, given what its input says to the gates."""
        h, c = state
        i, f, g, o = (read + F.linear(h, params[f"{self.path}.weight_hh_l0"])).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def decode(self, params: Params, states: Tensor) -> Tensor:
        """Logits from the states of all steps: [batch, steps, hidden]."""
        return self.decoder(params, states)

    def real_steps(self, x: Tensor, steps: int) -> Tensor:
        """[batch, steps], 1 where an input is not padding."""
        if self.padding is None:
            return torch.ones(len(x), steps, dtype=self.net.dtype, device=x.device)
        return (x != self.padding).to(self.net.dtype)


def _stretch(net: Net, stages: range) -> Piece:
    return Piece(net, [name for index in stages for name in net.stages[index].names], stages)


def _padding(net: Net, stage: int) -> int | None:
    """The token that stands for no token, if the net begins with an embedding that has one."""
    first = next(net.template.children())
    return first.padding_idx if stage and isinstance(first, nn.Embedding) else None


def _check(path: str, lstm: nn.LSTM) -> None:
    plain = lstm.num_layers == 1 and lstm.bias and lstm.batch_first
    if not plain or lstm.bidirectional or lstm.proj_size:
        raise UserError(
            f'the LSTM "{path}" cannot be run step by step',
            "use one layer in one direction with bias: nn.LSTM(inputs, hidden, batch_first=True)",
        )
