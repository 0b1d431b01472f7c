"""Layers whose usual form keeps state, draws noise or fuses kernels, in a form that can be mapped over clients."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.mode import current
from fedblocks.core.random import uniform
from fedblocks.layers.convolution import Conv2d, MaxPool2d, join_pooling
from fedblocks.layers.dense import dense
from fedblocks.layers.recurrence import recurrence

_WORTH = 1 << 14  # weights of a dense layer from which, on a CPU, their layout matters more than a call of our own
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchNorm(nn.Module):
    """Batch normalisation that leaves padded rows out of its statistics."""

    def __init__(self, like: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias
        self.register_buffer("running_mean", like.running_mean)
        self.register_buffer("running_var", like.running_var)
        if like.momentum is None:
            raise UserError(
                "BatchNorm with momentum=None averages over all batches ever seen", "give it a momentum, e.g. 0.1"
            )
        self.eps, self.momentum = like.eps, like.momentum

    running_mean: Tensor | None
    running_var: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        now = current()
        if not now.training and self.running_mean is not None:
            return self._plain(x, training=False)
        if not now.mapped and now.mask is None and x.numel() > x.shape[1]:  # torch refuses a single value a channel
            return self._plain(x, training=True)
        return self._mask(x, now.mask)

    def _plain(self, x: Tensor, training: bool) -> Tensor:
        moments = (self.running_mean, self.running_var)
        return F.batch_norm(x, *moments, self.weight, self.bias, training, self.momentum, self.eps)

    def _mask(self, x: Tensor, mask: Tensor | None) -> Tensor:
        dims = [0, *range(2, x.dim())]
        real = torch.ones(len(x), dtype=x.dtype, device=x.device) if mask is None else mask.to(x.dtype)  # [batch]
        row = real.view(-1, *[1] * (x.dim() - 1))
        count = real.sum() * (x[0, 0].numel() if x.dim() > 2 else 1)
        mean = (x * row).sum(dims) / count  # [channels]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        centred = x - mean.view(shape)
        variance = (centred.square() * row).sum(dims) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """In place, on the copies that one training step made for itself."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.copy_(torch.lerp(self.running_mean, mean, self.momentum))
            self.running_var.copy_(torch.lerp(self.running_var, variance, self.momentum))


class Dropout(nn.Module):
    """Dropout whose mask is a function of the step's key, so that every engine draws the same one."""

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels

    def forward(self, x: Tensor) -> Tensor:
        now = current()
        if not now.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.whole_channels else tuple(x.shape)
        keep = (uniform(now.next_key(), shape) >= self.p).to(x.dtype)
        return x * keep / (1 - self.p)


class LSTM(nn.LSTM):
    """An LSTM that is the fused one for a single client and a plain cell when mapped over clients."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if not current().mapped:
            return super().forward(input, hx)
        x = input if self.batch_first else input.transpose(0, 1)  # [batch, steps, features]
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            zero = x.new_zeros(len(x), self.hidden_size)
            state = (zero, zero) if hx is None else (hx[0][layer], hx[1][layer])
            x, (h, c) = self._layer(layer, x, state)
            last_h.append(h)
            last_c.append(c)
        out = x if self.batch_first else x.transpose(0, 1)
        return out, (torch.stack(last_h), torch.stack(last_c))

    def _layer(self, layer: int, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        w_in, w_state = getattr(self, f"weight_ih_l{layer}"), getattr(self, f"weight_hh_l{layer}")
        bias = getattr(self, f"bias_ih_l{layer}") + getattr(self, f"bias_hh_l{layer}") if self.bias else None
        inputs = F.linear(x, w_in, bias)  # [batch, steps, 4 hidden]: one product for all time steps
        return recurrence(inputs, w_state, *state)


class Linear(nn.Linear):
    """A dense layer whose weight gradient, for a stack of clients, lies in memory as the weights do."""

    def forward(self, input: Tensor) -> Tensor:
        pays = current().mapped and (input.is_cuda or self.weight.numel() >= _WORTH)
        return dense(input, self.weight, self.bias) if pays else super().forward(input)


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.RNNBase)


def mappable(module: nn.Module) -> nn.Module:
    """A copy of a module, with the same tensors under the same names, that can be mapped over clients."""
    module = _convert(copy.deepcopy(module))
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            setattr(parent, name, _convert(child))
        if type(parent) is nn.Sequential:
            join_pooling(parent)
    module.eval()  # our layers ask the `Mode`; any other must not draw noise or keep statistics of its own
    for part in module.modules():
        if isinstance(part, _FUSED):
            part.training = True  # or it takes a path that cannot be mapped or trained; it holds no noise of its own
    return module


def can_be_mapped(module: nn.Module) -> bool:
    """Whether torch can map this layer over clients; recurrent ones only in the plain form above."""
    return not isinstance(module, nn.RNNBase) or isinstance(module, LSTM)


def _convert(module: nn.Module) -> nn.Module:
    _check_noise(module)
    if isinstance(module, _NORMS):
        return BatchNorm(module)
    if isinstance(module, _DROPOUTS):
        return Dropout(module.p, whole_channels=not isinstance(module, nn.Dropout))
    if type(module) is nn.LSTM:
        return _plain_lstm(module)
    if type(module) is nn.Conv2d:
        module.__class__ = Conv2d  # the same tensors and settings, another forward pass
    if type(module) is nn.MaxPool2d:
        module.__class__ = MaxPool2d
    if type(module) is nn.Linear:
        module.__class__ = Linear
    return module


def _check_noise(module: nn.Module) -> None:
    """Refuse layers whose noise or statistics no engine could repeat."""
    name = type(module).__name__
    noisy = isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU)
    inner = isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0
    if noisy or (inner and getattr(module, "num_layers", 2) > 1):
        raise UserError(f"{name} draws noise that cannot be repeated", "use nn.Dropout layers, and dropout=0 inside it")
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise UserError(f"{name} keeps running statistics", "use track_running_stats=False")


def _plain_lstm(module: nn.LSTM) -> nn.LSTM:
    if module.bidirectional or module.proj_size:
        return module  # stays as it is: such nets run on the sequential engine only
    sizes = (module.input_size, module.hidden_size, module.num_layers, module.bias, module.batch_first)
    plain = LSTM(*sizes, dtype=module.weight_ih_l0.dtype)
    plain.load_state_dict(module.state_dict())
    return plain
