"""Checkpoints: all that a run needs to go on after a round, safe against a kill, a full
disk and damaged files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.core.private_state import ShardedState
from fedblocks.runs.storage.environment import alive, sync
from fedblocks.runs.storage.links import refusal
from fedblocks.runs.storage.shards import clients_of, shards_of, stem_of, tree_of

Node: TypeAlias = "Tensor | int | float | str | bool | Sequence[Node] | Mapping[str, Node] | None"
Tree: TypeAlias = Mapping[str, Node]
Entry: TypeAlias = dict[str, Any]  # size and sha256 of a file, as in the manifest

FORMAT = [1, 0]  # major: older programs cannot read it; minor: they can
PACKED = [2, 0]  # the same with packed clients
# .old-: a round just being replaced by itself
FOLDER_NAME = re.compile(r"(?:\.old-)?round-(\d{6,})")
LEFTOVER_NAME = re.compile(r"\.tmp-(\d{1,9})-.*")


class NewerFormat(CheckpointError):
    """The checkpoint was written by a newer version of the program."""


class Loaded(NamedTuple):
    """A checkpoint in memory, its tensors on the CPU."""

    round: int
    shared: dict[str, Any]
    clients: Mapping[int, dict[str, Any]]
    skipped: list[str]  # why newer checkpoints were passed over


def save(
    root: Path,
    round: int,
    shared: Tree,
    clients: Mapping[int, Tree],
    changed: Collection[int] | None,
    keep: int = 2,
    best_round: int | None = None,
) -> Path:
    """Store the state after `round`; `changed` are the clients that differ from the
    last checkpoint (None: any may).
    """
    if round < 0 or keep < 1 or next(iter(shards_of(clients).values()), [0])[0] < 0:
        raise ValueError("round and client ids start at 0, and at least one checkpoint is kept")
    folder = root / f"round-{round:06d}"
    draft = root / f".tmp-{os.getpid()}-{folder.name}"
    if root.is_symlink():
        raise refusal(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        _write(draft, round, shared, clients, *_reusable(root, round, clients, changed))
        _put_in_place(draft, folder)
        _prune(root, round, keep, best_round)
    except OSError as error:
        raise RunFolderError(
            f"cannot write checkpoint {folder}: {error.strerror or error}",
            fix="free space or make the folder writable, then resume: earlier checkpoints are "
            "unharmed",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone already, unless something failed
    return folder


def load(root: Path) -> Loaded:
    """The newest checkpoint whose files are all whole; `skipped` says what was wrong
    with newer ones.
    """
    skipped: list[str] = []
    for _, folder in _folders(root):
        try:
            return load_round(folder)._replace(skipped=skipped)
        except NewerFormat:
            raise
        except CheckpointError as error:
            skipped.append(error.message)
    reasons = "".join(f"\n  {reason}" for reason in skipped)
    raise CheckpointError(
        f"no usable checkpoint in {root}{reasons}", fix="start the run again in a new folder"
    )


def load_round(folder: Path) -> Loaded:
    """One checkpoint, every file checked against the manifest's size and SHA-256."""
    manifest = _read_manifest(folder)

    def tree(stem: str) -> dict[str, Any]:
        tensors, structure = (
            _read_verified(folder, name, manifest["files"].get(name)) for name in _files(stem)
        )
        return unpack(tensors, structure)

    return Loaded(manifest["round"], tree("shared"), clients_of(manifest["clients"], tree), [])


def pack(tree: Tree) -> tuple[bytes, bytes]:
    """A tree as the contents of two files: tensors (safetensors) and everything else (JSON)."""
    tensors: dict[str, Tensor] = {}
    structure = _describe(tree, "", tensors)
    return safetensors.torch.save(tensors), json.dumps(structure, separators=(",", ":")).encode()


def unpack(tensors: bytes, structure: bytes) -> dict[str, Any]:
    """The tree that `pack` was given."""
    # A copy, because the loader's memory is not aligned as torch's own, and sums can differ in the
    # last bit with it.
    by_path = {path: tensor.clone() for path, tensor in safetensors.torch.load(tensors).items()}
    tree: dict[str, Any] = _rebuild(json.loads(structure), "", by_path)
    return tree


def _describe(node: Node, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a node: dicts as they are, ["list", ...] for a list, ["tensor"] for one
    that goes to `tensors`.
    """
    if isinstance(node, Tensor):
        tensors[path] = _plain(node, path)
        return ["tensor"]
    if isinstance(node, Mapping):
        return {key: _describe(child, _below(path, key), tensors) for key, child in node.items()}
    if isinstance(node, list):
        return [
            "list",
            *(_describe(child, _below(path, str(i)), tensors) for i, child in enumerate(node)),
        ]
    if node is None or type(node) in (bool, int, float, str):
        return node
    raise TypeError(
        f"{path}: a checkpoint holds tensors, numbers, text, lists and dicts, not "
        f"{type(node).__name__}"
    )


def _rebuild(node: Any, path: str, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, dict):
        return {key: _rebuild(child, _below(path, key), tensors) for key, child in node.items()}
    if isinstance(node, list) and node[0] == "list":
        return [_rebuild(child, _below(path, str(i)), tensors) for i, child in enumerate(node[1:])]
    return tensors[path] if isinstance(node, list) else node


def _below(path: str, key: str) -> str:
    """The path of a child; a key's own slashes are escaped as in JSON pointers, so two
    paths never meet.
    """
    if not isinstance(key, str):
        raise TypeError(
            f"{path}: the keys of a checkpoint are text, not {type(key).__name__} ({key!r})"
        )
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _plain(tensor: Tensor, path: str) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise TypeError(
            f"{path}: a checkpoint holds dense real tensors, not {tensor.dtype} with "
            f"{tensor.layout}"
        )
    # Always a copy: safetensors refuses tensors that share memory, such as tied weights.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _write(
    draft: Path,
    round: int,
    shared: Tree,
    clients: Mapping[int, Tree],
    older: Path,
    reusable: Mapping[str, Entry],
) -> None:
    draft.mkdir()  # fails where there is a link of that name
    (draft / "clients").mkdir()
    written, linked, shards = (
        _write_tree(draft, "shared", shared),
        dict[str, Entry](),
        shards_of(clients),
    )
    for stem, ids in shards.items():
        same = _link(
            draft, older, {name: reusable[name] for name in _files(stem) if name in reusable}
        )
        linked |= same
        written |= {} if same else _write_tree(draft, stem, tree_of(clients, ids))
    counts = {stem: len(ids) for stem, ids in shards.items()}
    kind = PACKED if isinstance(clients, ShardedState) else FORMAT
    manifest = {"format": kind, "round": round, "clients": counts, "files": {**linked, **written}}
    (draft / "manifest.json").write_bytes(_seal(manifest))
    for path in [
        *(draft / name for name in written),
        draft / "manifest.json",
        draft / "clients",
        draft,
    ]:
        # after all writes, so that the disk can take them together; linked files are there already
        sync(path)


def _write_tree(draft: Path, stem: str, tree: Tree) -> dict[str, Entry]:
    contents = dict(zip(_files(stem), pack(tree)))
    for name, content in contents.items():
        (draft / name).write_bytes(content)
    return {name: {"size": len(c), "sha256": sha256(c).hexdigest()} for name, c in contents.items()}


def _link(draft: Path, older: Path, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Share files of an older checkpoint; nothing where the disk cannot, so that they
    are written instead.
    """
    try:
        for name in entries:
            os.link(older / name, draft / name)
    except OSError:
        for name in entries:
            (draft / name).unlink(missing_ok=True)
        return {}
    return entries


def _reusable(
    root: Path, round: int, clients: Mapping[int, Tree], changed: Collection[int] | None
) -> tuple[Path, dict[str, Entry]]:
    """The checkpoint *before* the previous one, and those of its files whose clients have not
    changed since.

    Neighbouring checkpoints thus never share a file, and damage to one file always leaves a whole
    checkpoint.
    """
    folders = [folder for number, folder in _folders(root) if number < round][:2]
    if changed is None or len(folders) < 2:
        return root, {}
    try:
        previous, older = (_read_manifest(folder) for folder in folders)
    except CheckpointError:
        return root, {}
    touched = {stem_of(client) for client in changed}
    there = [
        stem
        for stem, ids in shards_of(clients).items()
        if previous["clients"].get(stem) == len(ids)
    ]
    old, new = older["files"], previous["files"]
    same = [
        stem
        for stem in there
        if stem not in touched and all(old.get(n) == new[n] for n in _files(stem))
    ]
    return folders[1], {name: old[name] for stem in same for name in _files(stem)}


def _put_in_place(draft: Path, folder: Path) -> None:
    """Rename the finished draft; a folder of the same round stays readable under
    another name until then.
    """
    if folder.exists():
        replaced = folder.with_name(f".old-{folder.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(folder, replaced)
    os.rename(draft, folder)
    sync(folder.parent)


def _prune(root: Path, round: int, keep: int, best_round: int | None) -> None:
    """Keep the last few rounds and the best one; later rounds belong to a future that
    was given up.
    """
    numbers = sorted({number for number, _ in _folders(root) if number <= round})
    kept = {*numbers[-keep:], best_round}
    for number, folder in _folders(root):
        if number > round or number not in kept or folder.name.startswith(".old-"):
            gone = root / f".tmp-{os.getpid()}-gone-{folder.name}"
            os.rename(folder, gone)  # at once, so that nobody finds half a checkpoint
            shutil.rmtree(gone, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed process left half-written; another process that is alive
    keeps its own.
    """
    for path in root.iterdir():
        match = LEFTOVER_NAME.fullmatch(path.name)
        if match and (int(match[1]) == os.getpid() or not alive(int(match[1]))):
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)


def _folders(root: Path) -> list[tuple[int, Path]]:
    """(round, folder) of all checkpoints, the newest first."""
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    numbered = [
        (int(match[1]), root / match[0]) for name in names if (match := FOLDER_NAME.fullmatch(name))
    ]
    return sorted(
        numbered, key=lambda item: (item[0], not item[1].name.startswith(".old-")), reverse=True
    )


def _seal(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as JSON, with its own SHA-256 inside."""
    seal = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "seal": seal}, sort_keys=True, indent=1).encode()


def _read_manifest(folder: Path) -> dict[str, Any]:
    content = _read(folder, "manifest.json")
    try:
        manifest: dict[str, Any] = json.loads(content)
        manifest.pop("seal")
        whole = _seal(manifest) == content
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


def _read_verified(folder: Path, name: str, entry: Entry | None) -> bytes:
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


def _files(stem: str) -> tuple[str, str]:
    return f"{stem}.safetensors", f"{stem}.json"
