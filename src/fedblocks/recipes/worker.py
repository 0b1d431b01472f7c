"""A process that carries out runs: jobs come in as lines of JSON, answers go out as lines of JSON.

`python -m fedblocks.recipes.worker`. A run that was stopped before goes on; a finished one is only measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from fedblocks.core.errors import Interrupted, UserError
from fedblocks.recipes.measures import measured
from fedblocks.reports.compare import partition_hash
from fedblocks.runs.config import Config
from fedblocks.runs.folder import CONFIG
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run

Answer = dict[str, Any]


def answer(job: dict[str, Any]) -> Answer:
    """The numbers of one job; or that its time was up, or what went wrong."""
    try:
        return _carried_out(job)
    except Interrupted:
        return {"stopped": True}
    except UserError as error:
        return {"error": error.message, "fix": error.fix}
    except Exception as error:  # one cell that fails must not take the others with it
        return {"error": f"{type(error).__name__}: {error}", "fix": ""}


def _carried_out(job: dict[str, Any]) -> Answer:
    began, parent = time.monotonic(), os.getppid()
    latest = began + job["seconds"] if job["seconds"] is not None else float("inf")

    def on_round(done: RoundDone) -> None:
        if done.round < done.rounds and (time.monotonic() > latest or os.getppid() != parent):
            raise KeyboardInterrupt

    found = _trained(Path(job["folder"]), Config.of(job["config"]), on_round)
    numbers = measured(found, job["measure"], job["part"])
    return {"numbers": numbers, "seconds": round(found.seconds, 1), "partition": partition_hash(found)}


def _trained(folder: Path, config: Config, on_round: Any) -> RunResult:
    if not (folder / CONFIG).exists():
        return run(config, folder, on_round)
    before = load_run(folder)
    return before if before.status == "finished" else resume(folder, on_round)


def serve() -> None:
    """Answer one job after the other until there are no more; whatever a run prints goes to the error stream."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        channel.write(json.dumps(answer(json.loads(line))) + "\n")
        channel.flush()


if __name__ == "__main__":
    serve()
