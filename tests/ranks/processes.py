"""Ranks as processes of this machine, and how their runs are compared with those of one process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedblocks.runs.result import load_run
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing.compare import differences, state_leaves
from tests.warm import WarmProcess

PLAYERS = Path(__file__).with_name("players.py")
PLAIN = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
TABLES = {  # what is compared, and in which order
    "client_metrics": "round, part, view, client, correct, examples, loss",
    "traffic": "round, client, block, direction, bytes",
    "refusals": "round, client, reason, detail",
    "snapshots": "round, name, client, numbers",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(count: int, *words: str, port: int | None = None, **more: str) -> list[WarmProcess]:
    """So many ranks of a script."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    ranks = [{"RANK": str(n), "WORLD_SIZE": str(count), "LOCAL_RANK": str(n)} for n in range(count)]
    envs = [{**os.environ, **PLAIN, **where, **own, **more} for own in ranks]
    return [WarmProcess(words, env, imports=(str(PLAYERS),)) for env in envs]


def end_ranks(processes: Sequence[WarmProcess], seconds: float = 120) -> list[Any]:
    """Exit code, output and errors of each; none may hang."""
    ends = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=seconds)
            ends.append((process.returncode, output, errors))
    finally:
        for process in processes:
            process.kill()
    return ends


def run_ranks(count: int, *command: str, seconds: float = 120, **more: Any) -> list[Any]:
    return end_ranks(start_ranks(count, *command, **more), seconds)


def play_on_ranks(count: int, plan: Sequence[dict[str, str]], folder: Path) -> None:
    """All runs of a plan on so many ranks, which are started once."""
    file = folder / f"plan-{count}.json"
    file.write_text(json.dumps(plan))
    for code, _, errors in run_ranks(count, str(PLAYERS), str(file), seconds=1500):
        assert code == 0, errors


def unlike(path: Path, other: Path, tolerance: float) -> list[str]:
    """Where two runs differ: in what they learned, or in any row of their records."""
    ours, theirs = (state_leaves(load_run(one).state()) for one in (path, other))
    found = [str(one) for one in differences(ours, theirs, tolerance)]
    for table, columns in TABLES.items():
        rows = [rows_of(one, table, columns) for one in (path, other)]
        if len(rows[0]) != len(rows[1]):
            found.append(f"{table}: {len(rows[0])} rows, not {len(rows[1])}")
        pairs = zip(*rows, strict=False)
        found += [f"{table}: {a}, not {b}" for a, b in pairs if not alike(a, b, tolerance)]
    return found


def rows_of(path: Path, table: str, columns: str) -> list[list[Any]]:
    with RunFolder.open(path) as folder:
        rows = folder.store.rows(f"SELECT {columns} FROM {table} ORDER BY {columns}")
    return [[decoded(value) for value in row.values()] for row in rows]


def decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


def alike(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        same = len(one) == len(other)
        return same and all(alike(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return bool(torch.isclose(torch.tensor(one), torch.tensor(other), tolerance, tolerance))
    return bool(one == other)
