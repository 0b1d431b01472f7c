"""A server's jobs, a file each: train a run, or give new clients their models."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.core.full_disks import FULL, write_error, writing
from fedblocks.core.small_files import read_small
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.private_files import open_own
from fedblocks.flower.wire.run_spec import RunSpec
from fedblocks.runs.storage.folder import write_atomically

Status = Literal["submitted", "running", "finished", "failed", "stopped"]


class ServerJob(BaseModel):
    """What the server was asked to do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["train", "adapt"]
    folder: str  # of the run
    spec: RunSpec
    seconds: float = Field(gt=0)  # that a round may take
    patience: float = Field(gt=0)  # seconds to wait for clients that are not there
    # share of the clients asked for whose updates make a round
    minimum: float = Field(default=0.8, gt=0, le=1)
    more: float = Field(default=1.0, ge=1)  # clients that are asked, for each one that is needed
    # the largest part of a slot that one client may decide
    share: float = Field(default=1.0, gt=0, le=1)
    attempts: int = Field(default=3, ge=1)  # at one round
    # that a client may claim; None: as server.toml says
    largest_examples: int | None = Field(default=None, ge=1)
    clients: tuple[int, ...] = ()  # that are given their models


class JobRecord(BaseModel):
    """A job and its status, in a file of its own: several jobs can run side by side,
    and all are resumed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    job: ServerJob
    status: Status = "submitted"  # running: its app has begun
    flower_run: str = ""  # the number that Flower gave it last
    submissions: int = 0
    reason: str = ""  # why it failed
    fix: str = ""  # what to do about that
    exit_code: int = UserError.exit_code  # of the command that waits for it, if it failed
    # None in records of older versions
    began: AwareDatetime | None = None
    ended: AwareDatetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status in ("finished", "failed", "stopped")


def add_job(server: Path, job: ServerJob) -> JobRecord:
    """Store a job under a new name, where the server's app finds it."""
    name = f"{job.kind}-{secrets.token_hex(4)}"
    record = JobRecord(name=name, job=job, began=datetime.now(UTC))
    with writing(server / "jobs"):
        (server / "jobs").mkdir(exist_ok=True, mode=0o700)
        write_atomically(_file(server, record.name), record.model_dump_json())
    return record


def load_job(server: Path, name: str) -> JobRecord:
    """Read the job of a name."""
    try:
        return JobRecord.model_validate_json(read_small(_file(server, name)))
    except FileNotFoundError as error:
        raise UserError(
            f'there is no job "{name}" in {server}', "see `fedblocks federation status`"
        ) from error


def update_job(server: Path, name: str, **changes: Any) -> JobRecord:
    """Change fields of a job's record; commands and apps may do so at the same time."""
    with _locked(server / "jobs" / "lock", wait=True):
        record = load_job(server, name).model_copy(update=changes)
        ended = (record.ended or datetime.now(UTC)) if record.is_over else None
        record = record.model_copy(update={"ended": ended})
        with writing(_file(server, name)):
            write_atomically(_file(server, name), record.model_dump_json())
    return record


def all_jobs(server: Path) -> list[JobRecord]:
    """Read every job of a server; the one that changed last comes last."""
    files = sorted(
        (server / "jobs").glob("*-????????.json"), key=lambda file: file.stat().st_mtime_ns
    )
    return [load_job(server, file.stem) for file in files]


def unfinished_jobs(server: Path) -> list[JobRecord]:
    """Read the jobs that are not over."""
    return [record for record in all_jobs(server) if not record.is_over]


@contextmanager
def working_on(server: Path, name: str) -> Iterator[ServerJob]:
    """Hold a job while its app works on it, and note how it ended.

    A process that is killed or asked to end leaves its job unfinished; the next one resumes it.
    """
    with _locked(_file(server, name).with_suffix(".lock"), wait=False):
        if (record := load_job(server, name)).is_over:
            raise UserError(
                f"job {name} is over: {record.status}",
                f"start it again with: {command_for(server, record.job.folder)}",
            )
        update_job(server, name, status="running")
        try:
            yield record.job
        except Exception as error:
            if not load_job(server, name).is_over:  # it was not stopped meanwhile
                with suppress(RunFolderError):  # a full disk must not hide the first error
                    update_job(server, name, status="failed", **_cause(error))
            raise
        update_job(server, name, status="finished")


def _cause(error: Exception) -> dict[str, Any]:
    """Return why a job failed, as its record keeps it."""
    if isinstance(error, OSError) and error.errno in FULL:
        error = write_error(Path(error.filename or "a file"), error)
    if isinstance(error, UserError):
        message, fix, code = error.message, error.fix, error.exit_code
    else:
        message, fix, code = str(error), "", UserError.exit_code
    return {"reason": message[:1000], "fix": fix[:1000], "exit_code": code}


def is_worked_on(server: Path, name: str) -> bool:
    """Whether a process holds a job."""
    try:
        with _locked(_file(server, name).with_suffix(".lock"), wait=False):
            return False
    except UserError:
        return True


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[None]:
    """Hold a lock that the system drops when its process ends, however it ends."""
    descriptor = open_own(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise UserError(
            f"another process works on job {path.stem}", "wait until it ends, or stop it"
        ) from error
    finally:
        os.close(descriptor)


def _file(server: Path, name: str) -> Path:
    if not re.fullmatch(r"[a-z]+-[0-9a-f]{8}", name):
        raise UserError(
            f'"{name[:40]}" is not the name of a job', "start runs with `fedblocks federation run`"
        )
    return server / "jobs" / f"{name}.json"


def command_for(server: Path, folder: str | Path) -> str:
    """Return the command that continues a run: its server may be one on this machine alone, whose
    folder lies in that of the run.
    """
    if server.resolve() != (Path(folder) / "federation" / "server").resolve():
        return f"fedblocks federation run {folder} --server {server}"
    kind = "simulate" if ServerHost.read(server).insecure else "local"
    return f"fedblocks federation {kind} {folder}"


def write_app(folder: Path, module: str, **settings: str) -> Path:
    """Write the app that Flower is given: a file that names both apps of a module of this
    package, and what they find in their context; clients on other machines never ask for it.
    """
    project = {
        "name": "fedblocks-run",
        "version": "1.0.0",
        "description": "a fedblocks run",
        "dependencies": [],
    }
    components = {"serverapp": f"{module}:server_app", "clientapp": f"{module}:client_app"}
    app = {"publisher": "fedblocks", "components": components, "config": settings}
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(text)
    return folder
