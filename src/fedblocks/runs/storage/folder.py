"""A run is a folder: its configuration, what it ran on, its record and its checkpoints;
one process may write it.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import tomli_w

from fedblocks.config.texts import read_text, refuse_large
from fedblocks.config.toml import parse_toml
from fedblocks.core.errors import RunFolderError
from fedblocks.core.full_disks import reason_of
from fedblocks.runs.storage import code_record
from fedblocks.runs.storage.config_record import config_facts
from fedblocks.runs.storage.environment import sync
from fedblocks.runs.storage.links import refuse_links, write_new
from fedblocks.runs.storage.lock import LOCK, note_round, take_lock, writer_of
from fedblocks.runs.storage.store import SUFFIXES, RunStore

Status: TypeAlias = Literal["running", "finished", "interrupted", "failed"]

STATES = get_args(Status)
OTHER_FOLDER = "choose another folder (--out FOLDER, in Python out=...)"
CONFIG, ENVIRONMENT, STORE = "config.toml", "env.json", "run.sqlite"
CHECKPOINTS, CONSTANTS, FROZEN = "checkpoints", "constants.safetensors", "frozen"
SIDE_FILES = {f"{STORE}{suffix}" for suffix in SUFFIXES}
WRITTEN = (ENVIRONMENT, code_record.FILE, CONFIG)
READ = {CHECKPOINTS, CONSTANTS, FROZEN, *WRITTEN}
AFTER_CONFIG = {CONFIG, code_record.FILE, CONSTANTS, FROZEN}  # but before a round is stored
# under which the folder of a real federation's run keeps the name that its clients know
REAL = "federation-run"
BEFORE_CONFIG = {LOCK, *WRITTEN[:-1], *(f".{name}.tmp" for name in WRITTEN)} | SIDE_FILES


class RunFolder:
    """One run on disk; `create` and `claim` take the right to write, `close` or the
    process's end gives it back.
    """

    def __init__(self, path: Path, config: dict[str, Any], store: RunStore) -> None:
        self.path = path
        self.config = config  # resolved: no default is left to guess
        self.store = store
        self.checkpoints = path / CHECKPOINTS
        self._lock: int | None = None
        self.place = place_of(path)

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]
    ) -> RunFolder:
        """A new run, ready to be written; config.toml is written last, so a folder that
        has one is whole.
        """
        config_text, code_text = _config_text(config), code_record.text_of(config)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_used(path)
            lock = take_lock(path)
            try:
                _clear_failure(path)
                environment_text = json.dumps(environment, indent=2, sort_keys=True)
                store = _fill(path, config_text, code_text, environment_text)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run folder {path}: {reason_of(error, path)}",
                OTHER_FOLDER,
            ) from error
        folder = cls(path, _read_config(path), store)
        folder._hold(lock)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, to be read; `claim` it before writing."""
        _refuse_no_run(path)
        refuse_links(path, READ | SIDE_FILES)  # SQLite tidies its files even for a reader
        return cls(path, _read_config(path), RunStore(path / STORE))

    def claim(self) -> None:
        """Take the right to write, or say which process has it."""
        refuse_links(self.path)  # of whatever name: trackers write here, too
        if self._lock is None:
            self._hold(take_lock(self.path))
        self.store.upgrade()

    def _hold(self, lock: int) -> None:
        self._lock = lock
        self.store.witness = partial(note_round, lock)

    def refuse_moved(self, command: str = "") -> None:
        """End a run whose folder, or whose record, is no longer where it was: what it
        writes would be lost. `command` continues it; by default `fedblocks resume`.
        """
        if place_of(self.path) != self.place:
            raise moved_error(self.path, command or f"fedblocks resume {self.path}")

    def close(self) -> None:
        """Close the record and give back the right to write."""
        self.store.close()
        if self._lock is not None:
            os.truncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, Any]:
        """What the run was started on."""
        try:
            table: dict[str, Any] = json.loads(read_text(self.path / ENVIRONMENT))
            words = table.get("command", [])
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError("its command is not a list of words")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            message = f"cannot read {self.path / ENVIRONMENT}: {error}"
            raise RunFolderError(message, "restore the file from a copy") from error
        return table

    @property
    def status(self) -> str:
        """running, finished, interrupted or failed; a run whose process was killed
        counts as interrupted.
        """
        status = self.store.meta("status") or "interrupted"
        is_gone = status == "running" and writer_of(self.path) is None
        return "interrupted" if is_gone or status not in STATES else status

    def set_status(self, status: Status) -> None:
        """Record how the run stands."""
        self.store.set_meta("status", status)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers, and a kill, find the old content or the new, never
    half of it.
    """
    draft = path.with_name(f".{path.name}.tmp")
    try:
        write_new(draft, text)
        sync(draft)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)  # half of it would keep a full disk full
        raise
    sync(path.parent)


def moved_error(path: Path, command: str) -> RunFolderError:
    """Return the error for a folder that is no longer where its run was; `command` continues it."""
    return RunFolderError(
        f"{path} was moved, deleted or replaced while its run went on",
        f"if you moved it, move it back, then: {command}; if it is gone, start the run again",
    )


def place_of(path: Path) -> list[tuple[int, int]] | None:
    """What tells a folder and its record from others of the same name."""
    try:
        return [(one.st_dev, one.st_ino) for one in (path.stat(), (path / STORE).stat())]
    except OSError:
        return None


def _config_text(config: Mapping[str, Any]) -> str:
    text = tomli_w.dumps(config)
    try:
        refuse_large(text.encode())
    except ValueError as error:
        raise RunFolderError(
            f"the configuration cannot be stored: {error}", "put long lists into files of their own"
        ) from error
    return text


def _fill(path: Path, config: str, code: str | None, environment: str) -> RunStore:
    _refuse_used(path)  # again, now that nobody else can fill it
    write_atomically(path / ENVIRONMENT, environment)
    if code is not None:
        write_atomically(path / code_record.FILE, code)
    store = RunStore.create(path / STORE)
    store.write_facts({"status": "running", **config_facts(tomllib.loads(config))})
    write_atomically(path / CONFIG, config)
    return store


def _refuse_used(path: Path) -> None:
    """Refuse a folder with anything in it, but for what a run has left that was killed while it was
    being created, or that failed before a round was stored.
    """
    names = {entry.name for entry in path.iterdir()}
    if _failed_at_once(path, names):
        return
    if CONFIG in names:
        fix = f"continue it with `{_continuing(path)}`, or {OTHER_FOLDER}; "
        fix += "without one, a new folder with a number is made"
        raise RunFolderError(f"{path} already holds a run", fix)
    if names - BEFORE_CONFIG:
        raise RunFolderError(f"{path} is not empty and not a run", OTHER_FOLDER)


def _continuing(path: Path) -> str:
    """Return the command that continues the run of a folder."""
    with suppress(RunFolderError):
        refuse_links(path, READ | SIDE_FILES)
        with closing(RunStore(path / STORE)) as store:
            if store.meta(REAL) is not None:
                return command_for_real(path)
    return f"fedblocks resume {path}"


def command_for_real(path: Path) -> str:
    """Return the command that continues a run of a real federation, which needs its server."""
    if (path / "federation" / "server").is_dir():  # all of it was on this machine
        return f"fedblocks federation local {path}"
    return f"fedblocks federation run {path} --server FOLDER"


def _failed_at_once(path: Path, names: set[str]) -> bool:
    """Whether all that a folder holds is a run that failed before a round of it was stored."""
    if not {CONFIG, STORE} <= names <= BEFORE_CONFIG | AFTER_CONFIG:
        return False
    refuse_links(path)
    with suppress(RunFolderError), closing(RunStore(path / STORE)) as store:
        is_real = store.meta(REAL) is not None  # what its clients keep is on their disks
        return store.meta("status") == "failed" and store.last_round() is None and not is_real
    return False  # a damaged record may be that of more


def _clear_failure(path: Path) -> None:
    """Make way where nothing is lost; the configuration goes last, so that a kill in between
    leaves a run that failed.
    """
    if not _failed_at_once(path, {entry.name for entry in path.iterdir()}):
        return
    if (path / FROZEN).is_dir():
        shutil.rmtree(path / FROZEN)
    for name in (code_record.FILE, CONSTANTS, CONFIG):
        (path / name).unlink(missing_ok=True)


def _refuse_no_run(path: Path) -> None:
    fix = "name a folder that `fedblocks run --out FOLDER` made"
    if not path.is_dir():
        raise RunFolderError(
            f"{path} is not a folder" if path.exists() else f"{path} does not exist", fix
        )
    names = {entry.name for entry in path.iterdir()}
    if not names:
        raise RunFolderError(f"{path} is empty, not a run", fix)
    if CONFIG not in names and STORE in names and names <= BEFORE_CONFIG:
        raise RunFolderError(
            f"{path} is a run that was stopped before it began",
            "start it again with the same --out",
        )
    if CONFIG in names and STORE not in names and any(path.glob("checkpoints/round-*")):
        raise RunFolderError(
            f"{path} has lost its record, {STORE}; its checkpoints are still there",
            f"restore {STORE} from a copy, or start the run again in a new folder: fedblocks run "
            f"{path / CONFIG} --out FOLDER",
        )
    if not {CONFIG, STORE} <= names:
        missing = " and ".join(sorted({CONFIG, STORE} - names))
        raise RunFolderError(f"{path} is not a run: it has no {missing}", fix)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path / CONFIG))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"cannot read {path / CONFIG}: {error}", "restore the file from a copy"
        ) from error
