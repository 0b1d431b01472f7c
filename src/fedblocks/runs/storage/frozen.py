"""The frozen blocks of a run: stored once under their content hash, and asked for again whenever
the run goes on.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import safetensors.torch

from fedblocks.core.errors import CheckpointError
from fedblocks.core.frozen import is_of_adapters, told_apart
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.parts import Params
from fedblocks.engines.round import Experiment
from fedblocks.runs.storage.environment import sync
from fedblocks.runs.storage.folder import FROZEN, RunFolder

_META = "frozen"  # where the record of a run has its hashes


def store_frozen(folder: RunFolder, experiment: Experiment) -> None:
    """Write each block once, whoever has it; a run without frozen blocks has no such folder."""
    blocks = experiment.frozen.blocks
    for name, block in blocks.items():
        path = _path(folder, experiment.frozen.hashes[name])
        if not path.exists():
            _write(path, block)
    if blocks:
        folder.store.set_meta(_META, json.dumps(experiment.frozen.hashes))


def check_frozen(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse to go on with other frozen blocks than those that the run was started with."""
    before: dict[str, str] = json.loads(folder.store.meta(_META) or "{}")
    now = experiment.frozen.hashes
    _check_adapters(before, now)
    for name in sorted(before.keys() | now.keys()):
        if before and before.get(name) != now.get(name) and not is_of_adapters(name):
            path = _path(folder, before.get(name, ""))
            raise CheckpointError(
                f'the frozen block "{name}" is not the one that the run was started with '
                f"(hash {_brief(now.get(name))}, not {_brief(before.get(name))})",
                f"give the net the weights that are in {path}",
            )
    for name in before:
        if not is_of_adapters(name):
            _check_stored(_path(folder, before[name]))


def _check_stored(path: Path) -> None:
    """Refuse a stored block that is damaged; each file is read once, unless it changes."""
    if path.exists():
        about = path.stat()
        _read_once(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=64)
def _read_once(path: Path, size: int, changed: int) -> None:
    read_frozen(path)


def _check_adapters(before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse adapters of another scale; records of earlier versions do not say which it was."""
    for name in filter(is_of_adapters, before):
        if before[name] != now.get(name):
            raise CheckpointError(
                told_apart(name, now.get(name), before[name], "in the run"),
                "give fb.lora the alpha and the rank that the run was started with",
            )


def read_frozen(path: Path) -> Params:
    """A stored block, checked against the hash that it is stored under."""
    try:
        block: Params = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", "restore it from a copy") from error
    if content_hash(block) != path.stem:
        raise CheckpointError(f"{path} does not hold what its name says", "restore it from a copy")
    return block


def _path(folder: RunFolder, digest: str) -> Path:
    return folder.path / FROZEN / f"{digest}.safetensors"


def _write(path: Path, block: Params) -> None:
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    safetensors.torch.save_file({k: v.cpu().contiguous() for k, v in block.items()}, draft)
    sync(draft)
    draft.replace(path)


def _brief(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]
