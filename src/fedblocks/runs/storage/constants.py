"""The constants of a run's nets: written when it starts, and put back whenever its
models are used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from fedblocks.core.errors import CheckpointError
from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.runs.storage.environment import sync
from fedblocks.runs.storage.folder import CONSTANTS

FILE = CONSTANTS


def store_constants(folder: Path, methods: Mapping[str, Method]) -> None:
    """Write them once; a run whose nets have none has no such file."""
    # copies: safetensors refuses tensors that share memory, as those of one net in two groups do
    tensors = {
        f"{group}/{name}": v.clone(memory_format=torch.contiguous_format)
        for group, one in methods.items()
        for name, v in _of(one).items()
    }
    if not tensors or (folder / FILE).exists():
        return
    draft = folder / f".{FILE}.tmp"
    safetensors.torch.save_file(tensors, draft)
    sync(draft)
    draft.replace(folder / FILE)


def restore_constants(folder: Path, methods: Mapping[str, Method]) -> None:
    """Give the nets the constants that the run was started with, whatever made them this time."""
    if not (folder / FILE).is_file():
        return
    try:
        tensors = safetensors.torch.load_file(folder / FILE)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(
            f"cannot read {folder / FILE}: {error}", "restore the file from a copy"
        ) from error
    for group, method in methods.items():
        start = f"{group}/"
        method.net.set_constants(
            {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        )


def _of(method: Method) -> Params:
    return method.net.constants
