"""Models of Hugging Face transformers, with the weights of a local folder or of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError, nearest
from fedblocks.core.fields import Fields
from fedblocks.core.net import Net
from fedblocks.core.requirements import require_packages

# what a model is for -> the class of transformers that makes it
MODELS = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "audio-classification": "AutoModelForAudioClassification",
}


def load_pretrained(
    source: str | Path,
    inputs: Fields | None = None,
    *,
    model: str = "sequence-classification",
    head: str | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Net:
    """A model of a local folder (`save_pretrained`) or of a name on the hub, as a net.

    `inputs` are the fields of the data, `model` what it is for, and `config` what to change in its
    configuration, such as num_labels=5 or attn_implementation="eager". Weights that the source has
    are those at the start; others, such as a new head, are drawn by the seed.
    """
    require_packages("a model of Hugging Face", "hub", "transformers")
    if model not in MODELS:
        raise NetError(f'"{model}" is no kind of model', nearest(model, MODELS))
    transformers = import_module("transformers")
    kind = getattr(transformers, MODELS[model])
    settings = _settings(transformers, source, config)
    weights = _weights(kind, source, settings)
    return Net.of(
        lambda: _make(kind, settings, weights),
        head,
        dtype=dtype,
        output="logits",
        inputs=inputs,
    )


def _settings(transformers: Any, source: str | Path, config: Mapping[str, Any]) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(source, **config)
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        fix = "name a folder that save_pretrained wrote, or a model of the hub (with a network)"
        raise NetError(f"there is no model {source}: {line}", fix) from error


def _weights(kind: Any, source: str | Path, settings: Any) -> dict[str, Tensor]:
    """The tensors that the source has, in the names of the model."""
    try:
        with torch.device("cpu"):  # a net whose size alone is asked for is made without numbers
            module, report = kind.from_pretrained(
                source,
                config=settings,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                use_safetensors=True,  # other files can run code
            )
    except (OSError, ValueError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        fix = "save it again with save_pretrained, and choose the kind of model that it is"
        raise NetError(f"the weights of {source} cannot be read: {line}", fix) from error
    drawn = {*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])}
    tensors = module.state_dict()
    return {name: value for name, value in tensors.items() if name not in drawn}


def _make(kind: Any, settings: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    module: nn.Module = kind.from_config(settings)
    if not any(parameter.is_meta for parameter in module.parameters()):
        module.load_state_dict(dict(weights), strict=False)
    return module
