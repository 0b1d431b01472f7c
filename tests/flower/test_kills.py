"""Servers and clients that are killed at any instant end as those that are not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.messages import Wire
from fedblocks.runs.result import load_run
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, state_leaves

from .federations import everybody, leaves, personal, played

Note = Callable[[str, str], None]
COHORTS = [[0, 1], [1, 2], [0, 2], [1, 2], [0, 1]]
TABLES = ("client_metrics", "traffic", "means")


def kill_servers(root: Path, kills: int) -> dict[str, Any]:
    program = [sys.executable, str(Path(__file__).with_name("kill_host.py"))]
    done = subprocess.run(
        [*program, str(root), str(kills), "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def end_of(base: Path) -> dict[str, Any]:
    """All that a federation has at its end: models, record, and what clients keep."""
    result = load_run(base / "run")
    assert (result.status, result.rounds) == ("finished", 8)
    with RunFolder.open(base / "run") as folder:
        record = {
            table: folder.store.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4")
            for table in TABLES
        }
    kept = {
        client: tree
        for place in sorted((base / "f").glob("*/state/f/*/*/personal/round-000008"))
        for client, tree in checkpoint.load_round(place).clients.items()
    }
    assert len(kept) == 3
    return {"models": state_leaves(result.state()), "record": record, "kept": numbers_of(kept)}


def numbers_of(tree: Any) -> Any:
    """Nested tables with lists in the place of tensors."""
    if isinstance(tree, dict):
        return {key: numbers_of(value) for key, value in tree.items()}
    return tree.tolist() if isinstance(tree, torch.Tensor) else tree


def check_servers(root: Path, kills: int) -> None:
    outcome = kill_servers(root, kills)
    assert outcome["whole"] == 0
    expected = end_of(root / "whole")
    for number, one in enumerate(outcome["killed"]):
        assert one["resumed"] == 0, (root / f"killed-{number}.log").read_text()
        actual = end_of(root / f"killed-{number}")
        assert differences(actual.pop("models"), expected["models"]) == []
        assert actual == {key: value for key, value in expected.items() if key != "models"}
    assert len({one["rounds"] for one in outcome["killed"]}) >= min(kills, 4)


def test_a_server_killed_at_any_instant_goes_on_to_the_same_bits(
    tmp_path: Path, record_property: Note
) -> None:
    check_servers(tmp_path, 5)
    record_property("figure", "messages: 5 of 5 kills")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_killed_often_goes_on_to_the_same_bits(
    tmp_path: Path, record_property: Note
) -> None:
    check_servers(tmp_path, 25)
    record_property("figure", "messages: 25 of 25 kills")


def kill(side: ClientSide, message: Wire, seconds: float | None) -> None:
    """Let a client's process be killed while it answers, after so many seconds of the processor
    (sooner if it has answered by then); None: when its answer is ready and nobody has it.
    """
    child = os.fork()
    if child == 0:
        try:
            if seconds is not None:
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, max(1e-4, seconds))
            side.answer(message)
            if seconds is None:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        assert seconds is not None
        kill(side, message, seconds / 2)


def check_clients(folder: Path, each: int, name: str) -> None:
    """Each answer of ten is killed so many times before it is given."""
    experiment = EXAMPLES[name]().experiment()
    server, sides = everybody(experiment, folder / "whole")
    began = time.process_time()
    expected, _ = played(server, sides, COHORTS)
    longest = 1.5 * (time.process_time() - began) / len(COHORTS) / 2  # of one answer
    rng, done = random.Random(3), server.start()
    for number, clients in enumerate(COHORTS):
        asked = OpenRound(server, done, clients)
        for client, message in asked.downloads.items():
            for turn in range(each):
                _, again = everybody(experiment, folder / "killed")  # as after a restart
                before = personal(again, done)
                is_done = (number + client + turn) % 2 == 0
                kill(again[client], message, None if is_done else rng.uniform(0.0, longest))
                assert differences(personal(again, done), before) == []
        if number % 2:
            asked = OpenRound(server, done, clients)  # the deadline was over: a second attempt
        _, again = everybody(experiment, folder / "killed")
        exchange(asked, answers_of(again))
        done = asked.close(minimum=len(clients)).progress
    assert personal(again, done)
    assert differences(leaves(again, done), leaves(sides, expected)) == []


def test_what_a_killed_client_keeps_is_whole_and_it_goes_on_to_the_same_bits(
    tmp_path: Path, record_property: Note
) -> None:
    check_clients(tmp_path, 1, "fedper")
    record_property("figure", "10 of 10 kills")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fedper", "pfedmb", "scaffold"])
def test_what_a_client_that_is_killed_often_keeps_is_whole(
    name: str, tmp_path: Path, record_property: Note
) -> None:
    check_clients(tmp_path, 5, name)
    record_property("figure", f"{name}: 50 of 50 kills")
