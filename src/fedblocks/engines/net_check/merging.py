"""Whether an adapter stands for its layer's weights wherever a module reads them: one beside a
layer whose weights are also read directly would be half of what merged weights are.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import NetError
from fedblocks.core.lora import LoraNet
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.net_check.report import ENGINES, NOT_TRUE, Finding

ADAPTERS = "adapters are what their merged weights are"
_TRIED = 2  # examples
_SIZE = 0.3  # of the change of a layer's weights, of that of the weights
_ROUNDING = 1e-4  # of the outputs
_SHARE = 0.01  # of what the adapters change, that is still rounding in a deep net


def findings_on_adapters(net: Net, x: Tensor) -> list[Finding]:
    """What a report says of a net's adapters, if it has any."""
    if not isinstance(net, LoraNet):
        return []
    wrong = unlike_merged(net, x)
    return [Finding(ADAPTERS, dict.fromkeys(ENGINES, wrong) if wrong else {})]


def require_merging(net: Net, x: Tensor) -> None:
    """Refuse a net whose adapters are not what their merged weights are."""
    if isinstance(net, LoraNet) and (wrong := unlike_merged(net, x)):
        raise NetError(f"{NOT_TRUE}: {ADAPTERS}: {wrong}", "leave the layer out of the targets")


def unlike_merged(net: LoraNet, x: Tensor) -> str:
    """What differs, as the end of a sentence, between a net with adapters and one with the same
    changes in its weights; empty: nothing.
    """
    rows = x[:_TRIED].cpu()
    if not _differ(net, rows, net.targets):
        return ""
    wrong = [path for path in net.targets if _differ(net, rows, [path])]
    named = f'"{(wrong or net.targets)[0]}"'
    return f"the module reads the weights of {named} directly, and not by calling the layer alone"


def _differ(net: LoraNet, x: Tensor, paths: Collection[str]) -> bool:
    """Whether changes of some layers have another effect as adapters than as weights."""
    start = net.init(0)
    factors = _factors(net, start, paths)
    zeros = {name: torch.zeros_like(start[name]) for name in net.adapters.names}
    merged = net.merge({**start, **factors})
    changed = {name: merged[name] for name in merged if name in net.base}
    with torch.no_grad(), mode.mode(training=False, mapped=False):
        plain = net({**start, **zeros}, x)
        ours = net({**start, **factors}, x)
        theirs = net({**start, **zeros, **changed}, x)
    if not bool(ours.isfinite().all() and theirs.isfinite().all()):
        return False  # which is told elsewhere
    effect = (theirs - plain).abs().max()
    bearable = _ROUNDING * (1 + theirs.abs().max()) + _SHARE * effect
    return bool((ours - theirs).abs().max() > bearable)


def _factors(net: LoraNet, start: Params, paths: Collection[str]) -> Params:
    """Factors whose products are a part of the weights in size; zero for other layers."""
    source = torch.Generator().manual_seed(0)
    factors = {
        name: torch.randn(start[name].shape, generator=source).to(net.dtype)
        for name in net.adapters.names
    }
    for path, change in net.changes(factors).items():
        usual = net.base[net.weight_name(path)].square().mean().sqrt().clamp(min=0.01)
        size = _SIZE * usual / change.square().mean().sqrt() if path in paths else 0.0
        name = f"{path}.lora_B" if path else "lora_B"
        factors[name] = factors[name] * size
    return factors
