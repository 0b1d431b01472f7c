"""Content hashes, and arrays with a JSON header in one npz file that holds no pickles."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError, UserError
from fedblocks.core.special_files import missing_file, refuse_special

FORMAT = 1
LARGE = 2**30  # bytes of arrays that any file may hold
MOST_RATIO = 100  # of what arrays take in memory to what their file has, where that is more
Arrays = dict[str, npt.NDArray[Any]]
Digest: TypeAlias = "hashlib._Hash"


def content_hash(**arrays: npt.NDArray[Any]) -> str:
    """SHA-256 over names, types, shapes and little-endian bytes: the same on every machine."""
    return add_content(hashlib.sha256(), arrays).hexdigest()


def add_content(digest: Digest, arrays: Arrays) -> Digest:
    """The digest with names, types, shapes and bytes of more arrays in it."""
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(json.dumps([name, little.dtype.str, list(array.shape)]).encode())
        digest.update(little.data)
    return digest


def write_npz(path: str | Path, kind: str, header: dict[str, Any], arrays: Arrays) -> None:
    """Write to a temporary neighbour and rename, so that a file is whole or not there."""
    path = Path(path)
    text = json.dumps({"kind": kind, "format": FORMAT, **header}).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        fix = "choose a folder that exists and is writable"
        raise DataError(f"cannot write {path}: {error.strerror}", fix) from error


def read_arrays(path: str | Path) -> Arrays:
    """Every array of an npz file; object arrays are refused."""
    refuse_special(path)
    try:
        check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an npz")
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except UserError:
        raise
    except Exception as error:  # whatever a broken archive leads to
        fix = "save plain numeric or string arrays with numpy.savez; object arrays are refused"
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read as npz: {reason}", fix) from error


def check_sizes(path: str | Path) -> None:
    """Refuse an archive that would fill the memory: arrays larger than their bytes, and
    bytes far more than the file has.
    """
    size = os.path.getsize(path)
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an archive")
    with zipfile.ZipFile(path) as archive:
        total = sum(info.file_size for info in archive.infolist())
        if total > max(LARGE, MOST_RATIO * size):
            raise DataError(
                f"{path} has {size / 1e6:.1f} MB and would take {total / 1e9:.1f} GB of memory",
                "save its arrays without compression (numpy.savez) if they are that large",
            )
        for info in archive.infolist():
            with archive.open(info) as member:
                _check_array(info.filename, member, info.file_size)


def _check_array(name: str, member: IO[bytes], size: int) -> None:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, kind = read(member)
    if kind.hasobject:
        raise ValueError(f"{name} holds objects")
    if any(n < 0 for n in shape) or member.tell() + math.prod(shape) * kind.itemsize != size:
        raise ValueError(f"{name} says it has shape {list(shape)[:8]}, which it has not")


@contextmanager
def told_as_damage(path: str | Path, kind: str) -> Iterator[None]:
    """Errors in making something of a file's arrays mean that the file is damaged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(
            f"{path} is damaged, or not a saved {kind} ({reason})", "make the file again"
        ) from error


def read_columns(path: str | Path, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Arrays of an npz file by name; one that is missing is an error that says what is there."""
    arrays = read_arrays(path)
    for name in names:
        if name not in arrays:
            there = ", ".join(sorted(arrays))
            fix = f"it holds {there}: name the columns, or give a partition instead of a user"
            raise DataError(f"{path} has no array {name}", fix)
    return [arrays[name] for name in names]


def read_npz(path: str | Path, kind: str) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays that `write_npz` stored."""
    arrays = read_arrays(path)
    try:
        header: dict[str, Any] = dict(json.loads(arrays.pop("header").tobytes()))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a saved {kind}", f"load a file that {kind}.save wrote"
        ) from error
    if header.get("kind") != kind or header.get("format") != FORMAT:
        stored = f"{header.get('kind')} of format {header.get('format')}"
        fix = f"load it with {header.get('kind')}.load of the version that wrote it"
        raise DataError(f"{path} holds a {stored}, not a {kind} of format {FORMAT}", fix)
    return header, arrays


def verify(path: str | Path, header: dict[str, Any], content: str) -> None:
    """Refuse a file whose content is not what was saved."""
    if header["hash"] != content:
        raise DataError(
            f"{path} is damaged: its content does not match its hash", "make the file again"
        )
