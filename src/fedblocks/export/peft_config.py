"""peft's `adapter_config.json`: what of it can be said of adapters here, both ways."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError
from fedblocks.core.lora import LoraNet
from fedblocks.core.lora_targets import LoraSpec
from fedblocks.core.parts import Params
from fedblocks.export.peft_names import is_transposed, target_modules

Config = Mapping[str, Any]
CONFIG = "adapter_config.json"
_KNOWN = {"peft_type", "r", "lora_alpha", "target_modules", "modules_to_save", "use_rslora"}
# options that say nothing of the adapters themselves, or are settings of what is refused below
_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "megatron_core", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "task_type",
}  # fmt: skip


def read_config(source: object) -> Config:
    """A config from a folder or a file, from a dictionary, or from a `peft.LoraConfig`."""
    if isinstance(source, str | Path):
        path = Path(source)
        path = path / CONFIG if path.is_dir() else path
        try:
            config: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            fix = f"name a folder with an {CONFIG}"
            raise UserError(f"cannot read a peft config from {path}: {error}", fix) from error
    else:
        config = source.to_dict() if hasattr(source, "to_dict") else source
    if not isinstance(config, Mapping) or not {"r", "lora_alpha"} <= config.keys():
        raise UserError("this is no config of LoRA adapters", f"give an {CONFIG} of peft")
    return config


def spec_of(config: Config, paths: Sequence[str]) -> LoraSpec:
    """Adapters that a config describes, on a module with parts at these paths."""
    kind = config.get("peft_type", "LORA")
    if getattr(kind, "value", kind) != "LORA":
        raise UserError(f"the peft config is of {kind} adapters", "only LORA adapters can be read")
    for name, value in config.items():
        if name not in _KNOWN | _HARMLESS and value and not (name == "bias" and value == "none"):
            raise UserError(
                f"the peft config says {name} = {value!r}, which adapters here do not have",
                f"leave {name} out of it",
            )
    if config.get("init_lora_weights", True) is not True:
        message = f"init_lora_weights = {config['init_lora_weights']!r} is another start"
        raise UserError(message, "leave it out: A is random and B zero")
    heads = list(config.get("modules_to_save") or [])
    if len(heads) > 1:
        message = f"modules_to_save = {heads} names several parts, and a net has one head"
        raise UserError(message, "name a part that holds them, or one of them")
    head = _full_path(heads[0], paths) if heads else None
    rank = int(config["r"])
    alpha = float(config["lora_alpha"]) * (math.sqrt(rank) if config.get("use_rslora") else 1.0)
    return LoraSpec(rank, alpha, _targets(config.get("target_modules"), paths), head)


def _targets(wanted: Any, paths: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(wanted, str):
        return tuple(sorted(wanted or ()))
    if wanted == "all-linear":
        message = 'target_modules = "all-linear" is other layers in every kind of model'
        raise UserError(message, "name them; a config that peft has saved does so")
    return tuple(path for path in paths if re.fullmatch(wanted, path))


def _full_path(name: str, paths: Sequence[str]) -> str:
    """peft takes how a path ends; a head is one part."""
    matching = [path for path in paths if path == name or path.endswith(f".{name}")]
    if len(matching) != 1:
        message = f'modules_to_save = "{name}" is {len(matching)} parts of the module'
        raise UserError(message, "name one by its path")
    return matching[0]


def scale_of(config: Config, path: str) -> float:
    """What the product of a layer's factors is multiplied with."""
    rank, alpha = (
        next((v for key, v in config.get(pattern, {}).items() if _names(key, path)), config[name])
        for pattern, name in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
    )
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _names(pattern: str, path: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", path) is not None


def adapter_config(net: LoraNet, params: Params, base_model: str | None) -> dict[str, Any]:
    """What peft has to know of the tensors that a net is called with; factors of two adapters side
    by side have a larger rank and alpha, in the same scale.
    """
    ranks = {path: params[f"{path}.lora_A"].shape[0] for path in net.targets}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    others = {re.escape(path): rank for path, rank in ranks.items() if rank != usual}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base_model,
        "r": usual,
        "lora_alpha": _alpha(net, usual),
        "rank_pattern": others,
        "alpha_pattern": {path: _alpha(net, rank) for path, rank in others.items()},
        "target_modules": target_modules(net),
        "modules_to_save": None if net.spec.head is None else [net.spec.head],
        "fan_in_fan_out": is_transposed(net),
        "lora_dropout": 0.0,
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "task_type": None,
    }


def _alpha(net: LoraNet, rank: int) -> float:
    """The alpha with which factors of a rank have the net's scale; whole where that is."""
    alpha = net.spec.alpha if rank == net.spec.rank else net.spec.scale * rank
    return int(alpha) if alpha == int(alpha) else alpha
