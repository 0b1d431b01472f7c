"""Whether a run of a real federation can go on, asked before anybody is told that it does."""

from __future__ import annotations

import os
from pathlib import Path

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.server.jobs import ServerJob, all_jobs
from fedblocks.runs.extension import is_stopped_early
from fedblocks.runs.run import check_untouched
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import REAL, RunFolder


def check_run(path: Path) -> int:
    """Refuse a run that is in use, damaged or edited; return the round after which it goes on.
    A finished one that was given more rounds is finished no more.
    """
    with RunFolder.open(path) as folder:
        folder.claim()
        check_untouched(folder)
        if is_stopped_early(folder):
            folder.set_status("interrupted")
        is_over = folder.status == "finished"
        if is_over or not checkpoint.has_checkpoints(folder.checkpoints):
            return 0
        return checkpoint.load(folder.checkpoints, folder.store.last_round() or 0).round


def refuse_copy(server: Path, job: ServerJob) -> None:
    """Refuse a copy of a run that this server has trained in another folder: clients know both by
    one name, and would mix what they keep of the two.
    """
    others = [
        Path(record.job.folder)
        for record in all_jobs(server)
        if record.job.kind == "train" and record.job.spec.run == job.spec.run
    ]
    for other in others:
        if _is_same_run(other, job.spec.run) and not os.path.samefile(other, job.folder):
            raise RunFolderError(
                f"{job.folder} is a copy of {other}, which this server has trained: clients keep "
                "one personal state for both",
                f"go on with that one; or, to give it up for this one, move it away or remove it; "
                f"or start a run of its own: fedblocks federation run "
                f"{Path(job.folder) / 'config.toml'} --server {server} --out FOLDER",
            )


def _is_same_run(path: Path, run: str) -> bool:
    try:
        with RunFolder.open(path) as folder:
            return folder.store.meta(REAL) == run
    except (UserError, OSError):  # it was moved, or another thing has its place
        return False
