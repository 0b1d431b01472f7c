"""How runs on several ranks end before their time: killed, stopped, stuck; always resumable."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from tests.warm import WarmProcess

from .players import LONG, long_config
from .processes import PLAYERS, end_ranks, start_ranks, unlike


def start(count: int, folder: Path, **more: str) -> list[WarmProcess]:
    """Ranks of a long run, once its third round is on record."""
    processes = start_ranks(count, str(PLAYERS), LONG, str(folder), **more)
    for line in processes[0].stdout:
        if "round 3/" in line:
            break
    return processes


def check_goes_on(folder: Path, tmp_path: Path) -> None:
    """The run goes on alone, and ends where one ends that was never disturbed."""
    ended = resume(folder)
    assert (ended.status, ended.rounds) == ("finished", ended.config.rounds)
    run(long_config(), tmp_path / "whole")
    # single precision, and momentum makes of each last bit ten: 1.4e-6 were seen after 40 rounds
    assert unlike(folder, tmp_path / "whole", 1e-5) == []


def test_a_killed_rank_ends_the_others_with_its_name_and_the_run_goes_on(tmp_path) -> None:
    processes = start(3, tmp_path / "run")
    processes[2].kill()
    ends = end_ranks(processes, 60)
    assert [code for code, _, _ in ends] == [1, 1, -signal.SIGKILL]
    message = f"error: rank 2 (process {processes[2].pid}) has ended; this was rank 0 of 3"
    assert message in ends[0][2], ends
    assert ends[1][2] == ""  # it is said once
    assert load_run(tmp_path / "run").status == "failed"
    check_goes_on(tmp_path / "run", tmp_path)


def test_a_killed_first_rank_ends_the_others_and_the_run_goes_on(tmp_path) -> None:
    processes = start(2, tmp_path / "run")
    processes[0].kill()
    code, _, errors = end_ranks(processes, 60)[1]
    assert code == 1
    assert f"rank 0 (process {processes[0].pid}) has ended; this was rank 1 of 2" in errors
    assert load_run(tmp_path / "run").status == "interrupted"
    check_goes_on(tmp_path / "run", tmp_path)


def test_ctrl_c_at_any_rank_stores_the_round_and_stops_all(tmp_path) -> None:
    processes = start(2, tmp_path / "run")
    processes[1].send_signal(signal.SIGINT)
    ends = end_ranks(processes, 60)
    assert [code for code, _, _ in ends] == [130, 130], ends
    said = re.search(r"error: stopped; round (\d+) is stored", ends[0][2])
    ended = load_run(tmp_path / "run")
    assert said is not None and int(said[1]) == ended.rounds == ended.state().round
    assert ended.status == "interrupted"
    assert "stopped" not in ends[1][2]
    check_goes_on(tmp_path / "run", tmp_path)


def test_a_rank_that_does_not_answer_ends_the_others_after_the_time_they_were_given(
    tmp_path,
) -> None:
    processes = start(2, tmp_path / "run", FEDBLOCKS_RANK_TIMEOUT="5")
    os.kill(processes[1].pid, signal.SIGSTOP)
    try:
        _, errors = processes[0].communicate(timeout=60)
    finally:
        end_stopped(processes)
    assert processes[0].returncode == 1
    assert "another rank did not answer within 5 s" in errors
    assert load_run(tmp_path / "run").status == "failed"


def end_stopped(processes: list[WarmProcess]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
