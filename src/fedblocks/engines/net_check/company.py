"""Whether a net answers each example by itself, whoever stands beside it: a stack of clients pads
batches, and what a layer over the batch makes of padding is wrong. Asked of nets that nobody else
looks at, those of torch's layers alone; a few forward passes answer it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.net_check.inspection import code_of
from fedblocks.engines.net_check.known_again import key_of
from fedblocks.engines.net_check.trial import BATCH, EXACT, ROUGH, SEED, _precise
from fedblocks.engines.steadiness import other_companies
from fedblocks.layers.embedding import Embedding
from fedblocks.layers.replacement import BatchNorm, Dropout, Linear

DEPENDS = "the output of an example depends on those beside it"
PRECISE = 1_000_000  # parameters up to which a net is tried in double precision

# layers that treat examples one by one, whatever their arguments and their inputs
_ONE_BY_ONE = {
    *(nn.Sequential, nn.Identity, Linear, Embedding, Dropout),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish),
}
_found: dict[Hashable, str] = {}  # by the net's code, as reports are


def mixes_examples(net: Net, data: Tensor) -> str:
    """Why a net cannot stand in a padded stack; empty: it can, or it takes no such inputs."""
    if all(map(_is_one_by_one, net.template.modules())):
        return ""
    own = (*code_of(net.template), key_of((net.output, net.fields)))
    key = (*own, tuple(data.shape[1:]), data.dtype, net.dtype)
    if key not in _found:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch, about a dimension that nobody named
            _found[key] = _why(net, inputs_like(net, data))
    return _found[key]


def _is_one_by_one(layer: nn.Module) -> bool:
    if type(layer) is nn.Flatten:
        return layer.start_dim > 0
    return type(layer) in _ONE_BY_ONE


def inputs_like(net: Net, data: Tensor, count: int = BATCH) -> Tensor:
    """Rows that differ from each other, also where those of the data are alike."""
    draw = torch.Generator().manual_seed(SEED)
    shape = (count, *data.shape[1:])
    if net.fields is not None:  # numbers drawn here would be no tokens
        return data[torch.arange(count) % len(data)].cpu()
    if data.is_floating_point():
        return torch.randn(shape, generator=draw)
    values = torch.cat(
        [data.new_zeros(1), data.flatten()]
    ).cpu()  # 0 is another token, surely known
    return values[torch.randint(0, len(values), shape, generator=draw)]


def _why(net: Net, x: Tensor) -> str:
    tolerance = ROUGH
    try:
        if net.size() <= PRECISE:
            net, x = _precise(net, x)
            tolerance = EXACT if net.dtype == torch.float64 else ROUGH
        params = _stirred(net.init(0))
        usual = net(params, x)
    except Exception:  # not of this check: a run says it with the data that it concerns
        return ""
    if not bool(usual.isfinite().all()):
        return ""
    companies = (_compare(net, params, x, rows, usual, tolerance) for rows in other_companies(x))
    return next((why for why in companies if why), "")


def _compare(
    net: Net, params: Params, x: Tensor, rows: list[int], usual: Tensor, tolerance: float
) -> str:
    """What is wrong when some of the examples stand in another order or alone."""
    try:
        with _norms_see(net, len(rows)):
            outputs = net(params, x[rows])
    except Exception as error:
        return f"a batch of {len(rows)} fails ({str(error).partition('. ')[0]})"
    if outputs.shape != usual[rows].shape:
        return f"of {len(rows)} rows it makes {list(outputs.shape)}"
    differs = (outputs - usual[rows]).abs() > tolerance * (1 + usual[rows].abs())
    return DEPENDS if bool(differs.any()) else ""


@contextmanager
def _norms_see(net: Net, examples: int) -> Iterator[None]:
    """Refuse rows before a batch normalisation that are no examples: in training it leaves padded
    examples out.
    """

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) != examples:
            raise ValueError("a batch normalisation sees other rows than the examples")

    layers = net._on(torch.device("cpu")).module.modules()
    hooks = [part.register_forward_pre_hook(look) for part in layers if isinstance(part, BatchNorm)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stirred(params: Params) -> Params:
    """A start without tensors that are all zeros, behind which nothing would show."""
    draw = torch.Generator().manual_seed(SEED)
    stirred = dict(params)
    for name, value in params.items():
        if value.numel() and not value.any():
            noise = torch.randn(value.shape, generator=draw) / max(1, value[0].numel()) ** 0.5
            stirred[name] = noise.to(value)
    return stirred
