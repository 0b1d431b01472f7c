"""Jobs of a server without a run behind them, for the tests beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedblocks.flower.server.jobs import JobRecord, ServerJob, add_job, update_job
from fedblocks.flower.wire.run_spec import RunSpec

SPEC: dict[str, Any] = {
    "version": "1", "federation": "f", "run": "run-1", "population": 4, "rounds": 2, "seed": 0,
    "input_shape": (2,), "classes": 3, "net": {"name": "mlp"}, "method": {"name": "fedavg"},
}  # fmt: skip


def job_of(folder: Path | str = "/run", **more: Any) -> ServerJob:
    wanted = {"kind": "train", "seconds": 9.0, "patience": 5.0, **more}
    return ServerJob(folder=str(folder), spec=RunSpec(**SPEC), **wanted)


def stored(
    server: Path, folder: Path | str = "/run", kind: str = "train", **changes: Any
) -> JobRecord:
    """A job as it stands in a server's folder."""
    server.mkdir(exist_ok=True)
    record = add_job(server, job_of(folder, kind=kind))
    return update_job(server, record.name, **changes) if changes else record
