"""What a federation's server shows of itself: its certificates, its machines and all its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.expiry import ExpiredError
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.shared_keys import read_shared
from fedblocks.flower.server.jobs import JobRecord, all_jobs
from fedblocks.runs.storage.folder import RunFolder

Row = dict[str, object]


def status_of(folder: Path) -> list[Row]:
    """Return rows for the federation, its certificates, its machines, and all jobs: those that are
    not over come last.
    """
    launch.need_flower()
    host = ServerHost.read(folder)
    certificates = _certificates(host, folder)
    try:
        nodes = _nodes(host, folder)
        standing = f"{host.address}:{host.port}"
    except running.NotRunningError as error:
        nodes = []
        standing = f"not running; {error.fix}"
    except ExpiredError as error:
        nodes = []
        standing = f"running, but {error.message}; {error.fix}"
    own: Row = {"what": "federation", "name": host.federation, "status": standing}
    return [own, *certificates, *nodes, *_jobs(all_jobs(folder))]


def _nodes(host: ServerHost, folder: Path) -> list[Row]:
    rows: list[Row] = [
        {"what": "node", "name": name, "status": status, "id": number}
        for name, status, number in running.list_nodes(host, folder)
    ]
    shared = read_shared(folder).items()
    warnings: list[Row] = [
        {"what": "warning", "name": name, "status": key.sentence(name, folder)}
        for name, key in shared
        if name in host.clients
    ]
    return [*rows, *warnings]


def _certificates(host: ServerHost, folder: Path) -> list[Row]:
    """Return rows that say how long the certificates are valid."""
    if host.insecure:
        return []
    from fedblocks.flower.keys import certificate_checks as checks

    certificates = {
        name: checks.load_certificate(folder / name) for name in ("server.crt", "ca.crt")
    }
    return [
        {"what": "certificate", "name": name, "status": checks.term_of(own)}
        for name, own in certificates.items()
    ]


def _jobs(records: Sequence[JobRecord]) -> list[Row]:
    """Return a row for every job, in the order in which they ended."""
    ordered = sorted(records, key=lambda record: not record.is_over)
    last = {record.job.folder: record.name for record in ordered if record.job.kind == "train"}
    return [
        _describe(record, record.job.kind == "train" and last[record.job.folder] != record.name)
        for record in ordered
    ]


def _describe(record: JobRecord, is_continued: bool) -> Row:
    """Return a row for a job: its kind, its run, how far it is and when it was."""
    why = f": {record.reason}" if record.reason else ""
    status = f"{record.status}{_rounds(record)}{why}"
    if is_continued:
        status = f"{record.status}{why}; a later job went on with it"
    return {
        "what": record.job.kind,
        "name": record.job.folder,
        "status": status,
        "when": _when(record),
        "began": record.began.isoformat() if record.began else None,
        "ended": record.ended.isoformat() if record.ended else None,
    }


def _rounds(record: JobRecord) -> str:
    try:
        with RunFolder.open(Path(record.job.folder)) as run:
            return f", {count_of(run.store.last_round() or 0, 'round')}"
    except UserError:
        is_there = Path(record.job.folder).is_dir()
        return ", its record cannot be read" if is_there else ", its folder is gone"


def _when(record: JobRecord) -> str | None:
    """Return the times of a job on this machine's clock; None for one of an older version."""
    if record.began is None:
        return None
    began = f"{record.began.astimezone():%Y-%m-%d %H:%M}"
    if record.ended is None:
        return f"since {began}"
    ended = f"{record.ended.astimezone():%Y-%m-%d %H:%M}"
    return f"{began} to {ended.removeprefix(began[:11])}"  # the day is said once
