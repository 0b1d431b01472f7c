"""The manifest of a checkpoint: which files belong to it, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from fedblocks.core.errors import CheckpointError, UserError

MANIFEST = "manifest.json"
Entry: TypeAlias = dict[str, Any]  # size and sha256 of a file, as in the manifest

FORMAT = [1, 0]  # major: older programs cannot read it; minor: they can
PACKED = [2, 0]  # the same with packed clients


class NewerFormat(CheckpointError):
    """The checkpoint was written by a newer version of the program."""


def seal(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as JSON, with its own SHA-256 inside."""
    digest = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "seal": digest}, sort_keys=True, indent=1).encode()


@contextmanager
def refuse_nonsense(name: str) -> Iterator[None]:
    """Whatever goes wrong in making something of a checkpoint means that it is none: somebody may
    have sealed anything.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise CheckpointError(f"{name}: it holds no state of a run ({reason})") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, if it is whole and of a format that can be read."""
    content = _read(folder, MANIFEST)
    try:
        manifest: dict[str, Any] = json.loads(content)
        manifest.pop("seal")
        whole = seal(manifest) == content
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole or folder.name.removeprefix(".old-") != f"round-{manifest['round']:06d}":
        raise CheckpointError(f"{folder.name}: manifest.json is damaged")
    if manifest["format"][0] > PACKED[0]:
        raise NewerFormat(
            f"{folder} has checkpoint format {manifest['format'][0]}; this version reads up to "
            f"{PACKED[0]}",
            fix="update fedblocks",
        )
    return manifest


def read_verified(folder: Path, name: str, entry: Entry | None) -> bytes:
    """A file of a checkpoint, if it has the size and the SHA-256 of its entry."""
    content = _read(folder, name)
    if entry is None:
        raise CheckpointError(f"{folder.name}: {name} is not in the manifest")
    if len(content) != entry["size"]:
        raise CheckpointError(
            f"{folder.name}: {name} has {len(content)} bytes, not {entry['size']}"
        )
    if sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"{folder.name}: {name} is damaged (its SHA-256 differs from the manifest's)"
        )
    return content


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder.name}: {name} cannot be read: {error.strerror}") from error


def files_of(stem: str) -> tuple[str, str]:
    """The two files of a tree."""
    return f"{stem}.safetensors", f"{stem}.json"
