"""The same as `torchrun` starts and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from fedblocks.runs.result import load_run

from .players import long_config
from .processes import PLAIN, free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def torchrun(count: int, *words: str) -> subprocess.Popen[str]:
    start = ["--nproc-per-node", str(count), "--master-port", str(free_port()), "-m", "fedblocks"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *start, *words],
        env={**os.environ, **PLAIN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started(count: int, tmp_path: Path) -> subprocess.Popen[str]:
    """A long run on so many ranks, in its third round."""
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(long_config().resolved()))
    process = torchrun(count, "run", str(config), "--out", str(tmp_path / "run"))
    for line in process.stdout or ():
        if "round 3/" in line:
            break
    return process


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ranks that torchrun has started, rank 0 first."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(int(pid) for pid in path.read_text().split())


def test_a_killed_rank_ends_the_run_and_another_number_of_ranks_goes_on(tmp_path) -> None:
    process = started(2, tmp_path)
    writer = int((tmp_path / "run" / "run.lock").read_text().split()[0])
    victim = next(pid for pid in children(process) if pid != writer)
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"error: rank 1 (process {victim}) has ended; this was rank 0 of 2" in errors
    assert load_run(tmp_path / "run").status == "failed"
    again = torchrun(3, "resume", str(tmp_path / "run"))
    output, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert "finished: 40 rounds" in output
    assert load_run(tmp_path / "run").status == "finished"


def test_ctrl_c_stores_the_round_and_stops_all_ranks(tmp_path) -> None:
    process = started(2, tmp_path)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    ended = load_run(tmp_path / "run")
    assert ended.status == "interrupted" and ended.rounds == ended.state().round
    assert f"stopped; round {ended.rounds} is stored" in errors
