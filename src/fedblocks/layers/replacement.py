"""Layers whose usual form keeps state, draws noise or fuses kernels, in a form that can
be mapped over clients.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.mode import current
from fedblocks.core.precision import is_half, to_single
from fedblocks.layers.attention import MultiheadAttention
from fedblocks.layers.convolution import Conv2d, MaxPool2d, join_a_copy, join_pooling
from fedblocks.layers.copying import copy_module
from fedblocks.layers.dense import dense
from fedblocks.layers.embedding import Embedding
from fedblocks.layers.group_norm import GroupNorm
from fedblocks.layers.noise import drop_out
from fedblocks.layers.recurrent import GRU, LSTM, RNN, LayerByLayer

# weights of a dense layer from which, on a CPU, their layout matters more than a call of our own
_WORTH = 1 << 14
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation that leaves padded rows out of its statistics."""

    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        now = current()
        x = to_single(x) if is_half() else x  # means of many numbers
        if not (now.training and self.training) and self.running_mean is not None:
            return self._plain(x, training=False)
        # torch refuses a single value a channel
        if not now.mapped and now.mask is None and x.numel() > x.shape[1]:
            return self._plain(x, training=True)
        return self._mask(x, now.mask)

    def _plain(self, x: Tensor, training: bool) -> Tensor:
        moments = (self.running_mean, self.running_var)
        return F.batch_norm(x, *moments, self.weight, self.bias, training, self.momentum, self.eps)

    def _mask(self, x: Tensor, mask: Tensor | None) -> Tensor:
        dims = [0, *range(2, x.dim())]
        if mask is None:
            real = torch.ones(len(x), dtype=x.dtype, device=x.device)  # [batch]
        else:
            real = mask.to(x.dtype)
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


class Dropout(nn.modules.dropout._DropoutNd):
    """Dropout whose mask is a function of the step's key, so that every engine draws
    the same one.
    """

    whole_channels = False

    def forward(self, x: Tensor) -> Tensor:
        if not (current().training and self.training):
            return x
        return drop_out(x, self.p, self.whole_channels)


class ChannelDropout(Dropout):
    """Dropout of whole channels."""

    whole_channels = True


class Linear(nn.Linear):
    """A dense layer whose weight gradient, for a stack of clients, lies in memory as
    the weights do.
    """

    def forward(self, input: Tensor) -> Tensor:
        pays = current().mapped and (input.is_cuda or self.weight.numel() >= _WORTH)
        return dense(input, self.weight, self.bias) if pays else super().forward(input)


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_OURS = (MultiheadAttention, LayerByLayer)


def mappable(module: nn.Module) -> nn.Module:
    """A copy of a module, with the same tensors under the same names, that can be mapped over
    clients.

    Layers become others in place, so that whoever refers to one, under whatever name, refers to
    what it became.
    """
    module = copy_module(module)
    for path, part in list(module.named_modules()):
        _convert(path, part)
    _join(module)
    switch(module, training=True)
    return module


def _join(module: nn.Module) -> None:
    """Convolutions do the pooling behind them, in chains; how a user's own module calls
    a chain is not known.
    """
    parts = list(module.named_modules(remove_duplicate=False))
    uses = Counter(id(part) for _, part in parts)
    shared = {part for _, part in parts if uses[id(part)] > 1}
    inside = [f"{path}." if path else "" for path, part in parts if type(part) is not nn.Sequential]
    for path, part in parts:
        if type(part) is nn.Sequential and not path.startswith(tuple(inside)):
            join_pooling(part, shared)
        elif type(part) is nn.Sequential:
            join_a_copy(part)


def switch(module: nn.Module, training: bool) -> None:
    """Tell all parts of a module that they are in training, or that they are not."""
    module.train(training)
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase) and not isinstance(part, _OURS):
            # or it takes a path that cannot be mapped or trained; it holds no noise
            part.training = True


def statistics_of(module: nn.Module) -> list[str]:
    """The names of the running statistics that training moves."""
    norms = [
        (f"{path}." if path else "")
        for path, part in module.named_modules()
        if isinstance(part, BatchNorm) and part.running_mean is not None
    ]
    return [path + name for path in norms for name in ("running_mean", "running_var")]


def can_be_mapped(module: nn.Module) -> bool:
    """Whether this layer can be mapped over clients and padded examples change nothing in it;
    recurrent ones only in the plain form above.
    """
    if isinstance(module, nn.RNNBase):
        return isinstance(module, LayerByLayer)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return module.max_norm is None and not module.scale_grad_by_freq
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin | nn.GLU):
        return module.dim != 0  # over the examples of a batch
    return not isinstance(module, nn.CrossMapLRN2d | nn.LSTMCell)


def _convert(path: str, module: nn.Module) -> None:
    """Make a layer one of ours, with the same tensors and settings and another forward pass."""
    _check_noise(module)
    if isinstance(module, _NORMS):
        _check_own(path, module, _NORMS)
        if module.momentum is None:
            raise UserError(
                "BatchNorm with momentum=None averages over all batches ever seen",
                "give it a momentum, e.g. 0.1",
            )
        _become(module, BatchNorm)
        module.num_batches_tracked = None  # only momentum=None reads it
    elif isinstance(module, _DROPOUTS):
        _check_own(path, module, _DROPOUTS)
        _become(module, Dropout if isinstance(module, nn.Dropout) else ChannelDropout)
    else:
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # the same gradient, as other operations can take it
        _keep_unfused(module)
        _become(module, _form_of(module))


def _keep_unfused(module: nn.Module) -> None:
    """In evaluation mode, encoders would take kernels for all their layers at once, which cannot
    be mapped or trained.
    """
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # torch reads it for these kernels alone
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False


def _become(module: nn.Module, kind: type[nn.Module]) -> None:
    module.__class__ = kind


def key_inner_noise(module: nn.Module) -> nn.Module:
    """The module itself; layers that draw noise inside torch's own code draw it from keys."""
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0:
            _become(part, _form_of(part))
    return module


def _form_of(module: nn.Module) -> type[nn.Module]:
    """What takes a layer's place; a layer without another form stays as it is."""
    if isinstance(module, nn.LSTM) and module.proj_size:  # one client at a time
        return type(module)
    return _FORMS.get(type(module), type(module))


_FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: Conv2d,
    nn.MaxPool2d: MaxPool2d,
    nn.Linear: Linear,
    nn.LSTM: LSTM,
    nn.GRU: GRU,
    nn.RNN: RNN,
    nn.MultiheadAttention: MultiheadAttention,
    nn.Embedding: Embedding,
    nn.GroupNorm: GroupNorm,
}


def _check_own(path: str, module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
    """Refuse a layer that is more than the torch layer it derives from: what it adds
    would be lost.
    """
    base = next(kind for kind in kinds if isinstance(module, kind))
    changed = type(module).forward is not base.forward or is_parametrized(module)
    if changed:
        raise NetError(
            f'the layer "{path}" is a {type(module).__name__}, a {base.__name__} with a forward '
            f"pass of its own, "
            "whose statistics or noise the engines cannot carry",
            f"use nn.{base.__name__}, or derive the layer from nn.Module",
        )


def _check_noise(module: nn.Module) -> None:
    """Refuse layers whose noise or statistics no engine could repeat."""
    name = type(module).__name__
    noisy = isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU)
    noisy |= isinstance(module, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
    inner = isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0
    inner = inner and _form_of(module) is type(module)
    if noisy or (inner and getattr(module, "num_layers", 2) > 1):
        raise UserError(
            f"{name} draws noise that cannot be repeated",
            "use nn.Dropout layers, and dropout=0 inside it",
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise UserError(f"{name} keeps running statistics", "use track_running_stats=False")
    if isinstance(module, nn.SyncBatchNorm):
        raise UserError(
            "SyncBatchNorm joins the statistics of all processes", "use nn.BatchNorm1d, 2d or 3d"
        )
