"""Federations in npz files: rows, tags and names as arrays, everything else in a JSON header."""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.partition import names_arrays, names_from, names_header
from fedblocks.data.rows import Rows
from fedblocks.data.storage import Arrays, Digest, add_content, read_npz, write_npz

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation

KIND = "Federation"
PARTS = ("train", "validation", "test")


def hash_of(federation: Federation) -> str:
    """SHA-256 of inputs, labels and split."""
    classes = np.array(federation.classes, np.int64)
    digest = _pool_digest(federation).copy()
    return add_content(digest, {"classes": classes, **_rows(federation)}).hexdigest()


# inputs -> their labels, what both were known by, the digest of both. Partitions of one data set
# share them, and a large one takes a second.
_pools: Any = WeakTensorKeyDictionary()


def _pool_digest(federation: Federation) -> Digest:
    x, y = federation.x, federation.y
    marks = _mark(x, federation.streamed), _mark(y)
    labels, before, known = _pools.get(x, (lambda: None, None, None))
    if labels() is not y or before != marks:
        known = add_content(hashlib.sha256(), _pool(federation))
        _pools[x] = weakref.ref(y), marks, known
    digest: Digest = known
    return digest


def _mark(tensor: Tensor, in_file: bool = False) -> int:
    """What is another number once a tensor was written to: a checksum, for its memory may be an
    array's, to which people write without torch. A file, or a GPU, is too slow to be read for it.
    """
    if in_file or tensor.device.type != "cpu":
        return tensor._version
    return crc32(np.ascontiguousarray(tensor.detach().numpy()).view(np.uint8).data)


def write_federation(federation: Federation, path: str | Path) -> None:
    """One npz file with a JSON header."""
    if federation.streamed:
        raise DataError(
            "the inputs of the federation are in a file of their own",
            "keep that file; or save data.compact(), which reads the rows of its clients",
        )
    names = federation.names
    header = {
        "classes": federation.classes,
        "about": federation.about,
        "task": federation.task.table(),
        "hash": hash_of(federation),
        **names_header(names),
    }
    tags = {f"tag_{name}": tag for name, tag in federation.tags.items()}
    arrays = {**_pool(federation), **_rows(federation), **tags, **names_arrays(names)}
    write_npz(path, KIND, header, arrays)


def read_federation(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of a saved federation, and its fields."""
    header, arrays = read_npz(path, KIND)
    fields: dict[str, Any] = {
        part: Rows(arrays[f"{part}_index"], arrays[f"{part}_offsets"]) for part in PARTS
    }
    fields |= {name: torch.from_numpy(arrays[name]) for name in ("x", "y")}
    fields |= {name: header[name] for name in ("classes", "about")}
    fields["task"] = Task.of(header.get("task", {}))
    fields["names"] = names_from(header, arrays)
    tags = [name for name in arrays if name.startswith("tag_")]
    fields["tags"] = {name.removeprefix("tag_"): arrays[name] for name in tags}
    return header, fields


def _pool(federation: Federation) -> Arrays:
    return {"x": federation.x.cpu().numpy(), "y": federation.y.cpu().numpy()}


def _rows(federation: Federation) -> Arrays:
    return {
        f"{part}_{kind}": getattr(rows, kind)
        for part, rows in federation.parts.items()
        for kind in ("index", "offsets")
    }
