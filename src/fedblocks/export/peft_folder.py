"""A client's adapters as a folder that peft reads, and adapters that peft wrote or describes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.lora import LoraNet, lora
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.data.federation import Federation
from fedblocks.export.one_net import tensors_of_one_net
from fedblocks.export.overwriting import refuse_overwriting
from fedblocks.export.peft_config import CONFIG, adapter_config, read_config, scale_of, spec_of
from fedblocks.export.peft_names import from_peft, to_peft
from fedblocks.export.personal import Personal, personal
from fedblocks.runs.newest import Which
from fedblocks.runs.python import Methods
from fedblocks.runs.result import RunResult

TENSORS = "adapter_model.safetensors"
_EXAMPLES = 16  # of the client's own, on which a folder is compared
_ROUNDING = 1e-5  # of the outputs


def lora_from_peft(
    net: Net | nn.Module | Callable[[], nn.Module],
    config: str | Path | Mapping[str, Any] | object,
    *,
    dtype: torch.dtype = torch.float32,
) -> LoraNet:
    """Return a net with the adapters that a peft config describes: a folder or a file of one, a
    dictionary, or a `peft.LoraConfig`. What it asks for and is not here is refused by name.
    """
    plain = net if isinstance(net, Net) else Net.of(net, keep_weights=True, dtype=dtype)
    paths = [path for path, _ in plain.template.named_modules()]
    spec = spec_of(read_config(config), paths)
    adapted = lora(net, spec.rank, spec.alpha, spec.targets, spec.head, dtype=dtype)
    wanted = read_config(config).get("target_modules")
    if isinstance(wanted, str) and {*adapted.targets} != {*spec.targets}:
        also = next(path for path in adapted.targets if path not in spec.targets)
        raise UserError(
            f'target_modules = "{wanted}" leaves out "{also}", and here every path that ends as a '
            "target does is one",
            "widen the pattern, or rename the layer",
        )
    return adapted


def read_peft(net: LoraNet, folder: str | Path) -> Params:
    """The tensors of a folder that peft wrote, as a net with adapters is called with them,
    `net(params, x)` and `net.merge(params)`; in the scale of the net.
    """
    config = read_config(folder)
    path = Path(folder) / TENSORS
    try:
        params = from_peft(net, safetensors.torch.load_file(path))
    except (safetensors.SafetensorError, OSError) as error:
        fix = "name a folder that save_pretrained wrote"
        raise UserError(f"cannot read {path}: {error}", fix) from error
    for target in net.targets:
        name = f"{target}.lora_B"
        params[name] = params[name] * (scale_of(config, target) / net.spec.scale)
    return params


def export_peft(
    run: str | Path | RunResult,
    client: int | str,
    out: str | Path,
    method: Methods | None = None,
    data: Federation | None = None,
    *,
    base_model: str | None = None,
    force: bool = False,
    which: Which = "last",
) -> Path:
    """Write a client's adapters and head as a folder that `peft.PeftModel.from_pretrained` reads
    over the base; where it was written.

    Client, method, data and `which` are those of `export_model`. `base_model` is the name of the
    base, for the config. The folder is read again and compared with the run's own model before it
    is kept.
    """
    folder = Path(out)
    for name in (CONFIG, TENSORS):
        refuse_overwriting(folder / name, [], force)
    model = personal(run, client, method, data, which=which)
    net = model.method.net
    if not isinstance(net, LoraNet):
        raise UserError("the run's net has no adapters", "use fb.export_model(...)")
    x = model.examples(_EXAMPLES).x
    params = tensors_of_one_net(model.method, model.blocks, x, model.data.task)
    drafts = {name: folder / f".draft-{os.getpid()}-{name}" for name in (CONFIG, TENSORS)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drafts[CONFIG].write_text(json.dumps(adapter_config(net, params, base_model), indent=2))
        safetensors.torch.save_file(to_peft(net, params), drafts[TENSORS], {"format": "pt"})
        _compare(model, net, from_peft(net, safetensors.torch.load_file(drafts[TENSORS])))
        for name, draft in drafts.items():
            draft.replace(folder / name)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror or error}"
        raise UserError(message, "choose another folder") from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return folder


def _compare(model: Personal, net: LoraNet, params: Params) -> None:
    """Refuse tensors that are not the model."""
    x = model.examples(_EXAMPLES).x
    wanted = model.predict(x)
    with torch.no_grad(), mode.mode(training=False, mapped=False, task=model.data.task):
        largest = float((net(params, x) - wanted).abs().max())
    if not largest <= _ROUNDING * max(1.0, float(wanted.abs().max())):
        message = f"the folder differs from the model by {largest:.1e}; nothing was kept"
        raise UserError(message, "use fb.personal(...).merged(), and report it")
