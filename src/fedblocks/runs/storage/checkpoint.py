"""Checkpoints: all that a run needs to go on after a round, safe against a kill, a full
disk and damaged files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.core.full_disks import reason_of
from fedblocks.core.private_state import ShardedState
from fedblocks.runs.storage.environment import alive, sync
from fedblocks.runs.storage.links import refusal
from fedblocks.runs.storage.manifest import (
    FORMAT,
    MANIFEST,
    PACKED,
    Entry,
    NewerFormat,
    files_of,
    read_manifest,
    read_verified,
    refuse_nonsense,
    seal,
)
from fedblocks.runs.storage.shards import clients_of, shards_of, stem_of, tree_of
from fedblocks.runs.storage.trees import Tree, pack, unpack

# .old-: a round just being replaced by itself
FOLDER_NAME = re.compile(r"(?:\.old-)?round-(\d{6,})")
LEFTOVER_NAME = re.compile(r"\.tmp-(\d{1,9})-.*")


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
    *,
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
        raise refusal(root, root.parent)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        _write(draft, round, shared, clients, *_reusable(root, round, clients, changed))
        _put_in_place(draft, folder)
        _prune(root, round, keep, best_round)
    except OSError as error:
        raise RunFolderError(
            f"cannot write checkpoint {folder}: {reason_of(error, root)}",
            fix="free space or make the folder writable, then resume: earlier checkpoints are "
            "unharmed",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone already, unless something failed
    return folder


def load(
    root: Path, recorded: int | None = None, read: Callable[[Path], Loaded] | None = None
) -> Loaded:
    """The newest checkpoint whose files are all whole, of a round on record where those are known;
    `skipped` says what was wrong with newer ones. `read` is another way to read one.
    """
    skipped: list[str] = []
    for round, folder in _folders(root):
        if recorded is not None and round > recorded:
            skipped.append(f"{folder.name}: the record of the run ends with round {recorded}")
            continue
        try:
            return (read or load_round)(folder)._replace(skipped=skipped)
        except NewerFormat:
            raise
        except CheckpointError as error:
            skipped.append(error.message)
    reasons = "".join(f"\n  {reason}" for reason in skipped)
    fix = "start the run again in a new folder"
    if recorded is not None and any(round > recorded for round, _ in _folders(root)):
        fix = f"restore run.sqlite and run.sqlite-wal together from a copy, or {fix}"
    raise CheckpointError(f"no usable checkpoint in {root}{reasons}", fix)


def load_of_round(root: Path, round: int) -> Loaded:
    """The checkpoint of one round."""
    folder = next((folder for number, folder in _folders(root) if number == round), None)
    if folder is None:
        stored = ", ".join(str(number) for number, _ in reversed(_folders(root))) or "none"
        raise CheckpointError(f"checkpoints are of rounds {stored}", "take another round")
    return load_round(folder)


def has_checkpoints(root: Path) -> bool:
    """Whether a run has stored any, whole or not."""
    return bool(_folders(root))


def newest_round(root: Path) -> int:
    """The round of the newest checkpoint whose manifest is whole; 0: there is none."""
    for round, folder in _folders(root):
        with suppress(CheckpointError), refuse_nonsense(folder.name):
            read_manifest(folder)
            return round
    return 0


def drop_later(root: Path, round: int) -> None:
    """Remove the checkpoints of later rounds, which are about to be played again: no reader must
    take them for rounds that the record has lost.
    """
    try:
        for number, folder in _folders(root):
            if number > round:
                _discard(folder)
    except OSError as error:
        raise RunFolderError(
            f"cannot remove {folder}: {error.strerror or error}", "make the folder writable"
        ) from error


def load_round(folder: Path) -> Loaded:
    """One checkpoint, every file checked against the manifest's size and SHA-256."""
    with refuse_nonsense(folder.name):
        return _load_round(folder)


def _load_round(folder: Path) -> Loaded:
    manifest = read_manifest(folder)

    def tree(stem: str) -> dict[str, Any]:
        tensors, structure = (
            read_verified(folder, name, manifest["files"].get(name)) for name in files_of(stem)
        )
        return unpack(tensors, structure)

    return Loaded(manifest["round"], tree("shared"), clients_of(manifest["clients"], tree), [])


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
    shards = shards_of(clients)
    written = _write_tree(draft, "shared", shared)
    linked: dict[str, Entry] = {}
    for stem, ids in shards.items():
        unchanged = {name: reusable[name] for name in files_of(stem) if name in reusable}
        same = _link(draft, older, unchanged)
        linked |= same
        written |= {} if same else _write_tree(draft, stem, tree_of(clients, ids))
    counts = {stem: len(ids) for stem, ids in shards.items()}
    kind = PACKED if isinstance(clients, ShardedState) else FORMAT
    manifest = {"format": kind, "round": round, "clients": counts, "files": {**linked, **written}}
    (draft / MANIFEST).write_bytes(seal(manifest))
    # after all writes, so that the disk can take them together; linked files are there already
    for path in [*(draft / name for name in (*written, MANIFEST, "clients")), draft]:
        sync(path)


def _write_tree(draft: Path, stem: str, tree: Tree) -> dict[str, Entry]:
    contents = dict(zip(files_of(stem), pack(tree)))
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
        previous, older = (read_manifest(folder) for folder in folders)
    except CheckpointError:
        return root, {}
    touched = {stem_of(client) for client in changed}
    counts = previous["clients"]
    there = [stem for stem, ids in shards_of(clients).items() if counts.get(stem) == len(ids)]
    names = [files_of(stem) for stem in there if stem not in touched]
    old, new = older["files"], previous["files"]
    same = [pair for pair in names if all(old.get(name) == new[name] for name in pair)]
    return folders[1], {name: old[name] for pair in same for name in pair}


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
            _discard(folder)


def _discard(folder: Path) -> None:
    gone = folder.with_name(f".tmp-{os.getpid()}-gone-{folder.name}")
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
    if root.exists() and not root.is_dir():
        raise RunFolderError(f"{root} is not a folder", "restore it from a copy, or remove it")
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    numbered = [
        (int(match[1]), root / match[0]) for name in names if (match := FOLDER_NAME.fullmatch(name))
    ]
    return sorted(numbered, reverse=True)  # of one round, .old- comes after the other
