"""What was decoded from a data set's files, kept as .npy files that are memory-mapped
the next time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedblocks.data.sets.files import CHUNK, FileSet, LocalFiles, find, roots, verify

# environment variable: where decoded data are kept; default .cache in FEDBLOCKS_DATA
CACHE = "FEDBLOCKS_CACHE"
CONTENTS = "contents.json"
STALE = 3600  # seconds after which another process's unfinished folder is taken for abandoned
Arrays = dict[str, npt.NDArray[Any]]


def cached_arrays(
    files: FileSet, decode: Callable[[LocalFiles], Arrays], version: int = 1, **choices: Any
) -> Arrays:
    """The arrays that `decode` makes of a data set's files, from the cache where it is whole.

    `version` must change when `decode` does; `choices` are plain JSON values that `decode` depends
    on. Files are checked against their known sizes and hashes whenever they are decoded. The arrays
    are read-only.
    """
    local = find(files)
    folder = cache_folder() / f"{files.folder}-{key(local, version, choices)}"
    kept = read(folder)
    if kept is not None:
        return kept
    verify(local)
    arrays = decode(local)
    try:
        write(folder, arrays)
    except OSError as error:
        warnings.warn(
            f"the decoded data set is not kept: {error}; set {CACHE} to a writable folder",
            stacklevel=2,
        )
        return arrays
    return read(folder) or arrays


def cache_folder() -> Path:
    """Where decoded data are kept."""
    named = os.environ.get(CACHE, "")
    return Path(named).expanduser() if named else roots()[0] / ".cache"


def key(local: LocalFiles, version: int, choices: dict[str, Any]) -> str:
    """Changes whenever a file is exchanged, or decoded in another way."""
    stats = [(path.name, path.stat()) for path in local.paths]
    identity = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    text = json.dumps([local.source.form, version, choices, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(folder: Path) -> Arrays | None:
    """Memory-mapped arrays, or nothing where the cache is absent or damaged."""
    try:
        sums: dict[str, int] = json.loads((folder / CONTENTS).read_text())
        if any(checksum(folder / f"{name}.npy") != total for name, total in sums.items()):
            return None
        return {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in sums
        }
    except (OSError, ValueError, AttributeError):
        return None


def checksum(path: Path) -> int:
    """CRC-32 of a file: fast, and enough against damage."""
    total = 0
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            total = zlib.crc32(chunk, total)
    return total


def write(folder: Path, arrays: Arrays) -> None:
    """Write into a neighbour and rename, so that a cache is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
        sums = {name: checksum(unfinished / f"{name}.npy") for name in arrays}
        (unfinished / CONTENTS).write_text(json.dumps(sums))
        unfinished.chmod(0o755)
        put(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def put(unfinished: Path, folder: Path) -> None:
    """Give a finished cache its name, unless another process was faster; a damaged one
    gives way.
    """
    if folder.exists() and read(folder) is None:
        shutil.rmtree(folder)
    try:
        os.rename(unfinished, folder)
    except OSError:
        if read(folder) is None:
            raise


def remove_abandoned(folder: Path) -> None:
    """Delete what a killed process left of this cache."""
    for path in folder.parent.glob(f"{folder.name}.*.tmp"):
        if time.time() - path.stat().st_mtime > STALE:
            shutil.rmtree(path, ignore_errors=True)
