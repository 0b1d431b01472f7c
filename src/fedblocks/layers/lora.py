"""Layers with a low-rank adapter beside weights that rest: output = base(x) + scale * B A x.

In a stack of clients the base is one tensor and A and B are stacks, so the base is one product for
all clients and the adapters are a batch of small ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.errors import NetError
from fedblocks.core.mode import current
from fedblocks.layers.attention import MultiheadAttention
from fedblocks.layers.dense import dense
from fedblocks.layers.embedding import Embedding, embed
from fedblocks.layers.large_batches import convolve_in_parts

FITTING = (
    "nn.Linear, nn.Conv2d with 1x1 filters, nn.Embedding, nn.MultiheadAttention and GPT-2's Conv1D"
)


class AdapterSize(NamedTuple):
    """What an adapter maps from and to."""

    inputs: int
    outputs: int


class Adapter(nn.Module):
    """What layers with an adapter have in common."""

    lora_A: nn.Parameter  # [rank, inputs]
    lora_B: nn.Parameter  # [outputs, rank]
    lora_scale: float
    weight_name = "weight"  # of the weights that it adds to
    zero_factor = "B"  # the factor that is zero at the start, so that the model is the base

    def adapter_output(self, x: Tensor) -> Tensor:
        """scale * B A x, over the last dimension of x."""
        product = dense if current().mapped else F.linear
        return product(product(x, self.lora_A, None), self.lora_B, None) * self.lora_scale

    def merge_change(self, weight: Tensor, change: Tensor) -> Tensor:
        """The layer's weights with B A, [outputs, inputs], times the scale added to them."""
        return weight + change.view_as(weight)


class LoraLinear(nn.Linear, Adapter):
    """A dense layer at rest, and its adapter."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.adapter_output(input)


class LoraTransposed(Adapter):
    """A dense layer at rest whose weights are [inputs, outputs] (GPT-2's), and its adapter."""

    weight: Tensor
    bias: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.mT, self.bias) + self.adapter_output(input)

    def merge_change(self, weight: Tensor, change: Tensor) -> Tensor:
        return weight + change.mT


class LoraConv2d(nn.Conv2d, Adapter):
    """A convolution with 1x1 filters at rest, and its adapter: a dense layer for every pixel."""

    def forward(self, input: Tensor) -> Tensor:
        return convolve_in_parts(self, self._convolve, input)

    def _convolve(self, input: Tensor) -> Tensor:
        down, right = self.stride
        pixels = input[..., ::down, ::right]
        change = self.adapter_output(pixels.movedim(-3, -1)).movedim(-1, -3)
        return super().forward(input) + change


class LoraEmbedding(Embedding, Adapter):
    """An embedding at rest, and its adapter: row i is B times column i of A."""

    zero_factor = "A"  # as peft has it

    def forward(self, input: Tensor) -> Tensor:
        product = dense if current().mapped else F.linear
        columns = embed(input, self.lora_A.mT)
        change = product(columns, self.lora_B, None) * self.lora_scale
        if self.padding_idx is not None:  # its row stays as it is, as in torch
            change = torch.where((input == self.padding_idx)[..., None], 0.0, change)
        return super().forward(input) + change

    def merge_change(self, weight: Tensor, change: Tensor) -> Tensor:
        rows = change.mT
        if self.padding_idx is not None:
            rows = rows.index_fill(0, torch.tensor(self.padding_idx, device=rows.device), 0.0)
        return weight + rows


class LoraAttention(MultiheadAttention, Adapter):
    """Attention at rest, and an adapter of its three projections together."""

    weight_name = "in_proj_weight"

    def is_fused(self) -> bool:
        return False

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        inputs = [t if self.batch_first else t.transpose(0, 1) for t in (query, key, value)]
        if query is key and key is value:  # one product serves all three
            changes = self.adapter_output(inputs[0]).chunk(3, -1)
        else:
            changes = tuple(self.adapter_output(t).chunk(3, -1)[n] for n, t in enumerate(inputs))
        return q + changes[0], k + changes[1], v + changes[2]


class RestingConv2d(nn.Conv2d):
    """A convolution of the base: torch's own serves all clients of a stack as one batch, where the
    kernels for trained filters would hold some for each client.
    """

    def forward(self, input: Tensor) -> Tensor:
        return convolve_in_parts(self, super().forward, input)


class RestingBatchNorm(nn.Module):
    """Batch normalisation with the statistics of the base, which no client moves."""

    running_mean: Tensor
    running_var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        moments = (self.running_mean, self.running_var)
        return F.batch_norm(x, *moments, self.weight, self.bias, False, 0.0, self.eps)


def form_with_adapter(layer: nn.Module) -> type[Adapter] | None:
    """What a layer becomes; nothing where no adapter fits."""
    if _is_transposed(layer):
        return LoraTransposed
    return None if why_unfit(layer) else _FORMS.get(type(layer))


_FORMS: dict[type[nn.Module], type[Adapter]] = {
    nn.Linear: LoraLinear,
    nn.Conv2d: LoraConv2d,
    nn.Embedding: LoraEmbedding,
    nn.MultiheadAttention: LoraAttention,
}


def _is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is GPT-2's Conv1D: a dense layer whose weights are [inputs, outputs]."""
    kind = type(layer)
    return (kind.__name__, kind.__module__) == ("Conv1D", "transformers.pytorch_utils")


def why_unfit(layer: nn.Module) -> str:
    """Why no adapter fits a layer, as the end of a sentence; empty: one does."""
    if isinstance(layer, Adapter):
        return "that has an adapter already"
    known = next((kind for kind in _FORMS if isinstance(layer, kind)), None)
    if known is None:
        return "" if _is_transposed(layer) else "that no adapter fits"
    if type(layer) is not known:
        return f"of its own code: an adapter would make it a plain nn.{known.__name__}"
    match layer:
        case nn.Conv2d() if layer.kernel_size != (1, 1):
            return f"with filters of {' x '.join(map(str, layer.kernel_size))}, not 1 x 1"
        case nn.Conv2d() if layer.groups != 1:
            return f"with groups={layer.groups}, and an adapter would mix them"
        case nn.Conv2d() if layer.padding not in ((0, 0), 0, "valid"):
            return f"with padding={layer.padding}, where an adapter has no pixels"
        case nn.Embedding() if layer.max_norm is not None:
            return "with max_norm, which writes to weights that rest"
        case nn.Embedding() if layer.sparse or layer.scale_grad_by_freq:
            option = "sparse" if layer.sparse else "scale_grad_by_freq"
            return f"with {option}=True, which is about gradients that an adapter has not"
        case nn.MultiheadAttention() if not layer._qkv_same_embed_dim:
            return "with another kdim or vdim, so that it has no common projection"
    return ""


def adapter_size(layer: nn.Module) -> AdapterSize:
    """What the adapter of a layer maps from and to."""
    match layer:
        case nn.Embedding():
            return AdapterSize(layer.num_embeddings, layer.embedding_dim)
        case nn.MultiheadAttention():
            return AdapterSize(layer.embed_dim, 3 * layer.embed_dim)
        case nn.Conv2d():
            return AdapterSize(layer.in_channels, layer.out_channels)
        case nn.Linear():
            return AdapterSize(layer.in_features, layer.out_features)
    if _is_transposed(layer):
        inputs, outputs = layer.get_parameter("weight").shape
        return AdapterSize(inputs, outputs)
    raise NetError(f"a {type(layer).__name__} has no adapter", f"adapters fit {FITTING}")


def add_adapter(layer: nn.Module, rank: int, scale: float) -> None:
    """Give a layer an adapter, in place; its own tensors keep their names."""
    form = form_with_adapter(layer)
    if form is None:
        raise NetError(f"a {type(layer).__name__} has no adapter", f"adapters fit {FITTING}")
    inputs, outputs = adapter_size(layer)
    layer.__class__ = form
    bound = 1 / math.sqrt(inputs)  # as peft has it
    if form.zero_factor == "B":
        down = torch.empty(rank, inputs).uniform_(-bound, bound)
        up = torch.zeros(outputs, rank)
    else:
        down, up = torch.zeros(rank, inputs), torch.randn(outputs, rank)
    layer.lora_A, layer.lora_B = nn.Parameter(down), nn.Parameter(up)
    layer.__dict__["lora_scale"] = scale


def put_to_rest(module: nn.Module, trained: set[nn.Module]) -> None:
    """Make the parameters of a module, but for adapters and some parts, buffers of the same names:
    tensors that nobody trains.
    """
    resting: dict[int, Tensor] = {}  # a tensor that layers share stays one
    for part in module.modules():
        if part in trained:
            continue
        for name, value in list(part._parameters.items()):
            if value is not None and not name.startswith("lora_"):
                del part._parameters[name]
                part.register_buffer(name, resting.setdefault(id(value), value.detach()))
        if type(part) is nn.Conv2d:
            part.__class__ = RestingConv2d
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.__class__ = RestingBatchNorm  # type: ignore[assignment]
            part.register_buffer("num_batches_tracked", None)
