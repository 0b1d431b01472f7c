"""What a rank of the tests does, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

`python players.py PLAN` carries out the runs that a file names, one after the other;
`python players.py steps FOLDER ROUND` starts a run there, or goes on with it, until some round;
`python players.py long FOLDER` starts one that is to be disturbed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch

import fedblocks as fb
from fedblocks.cli import main as command
from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted
from fedblocks.runs.progress import OnRound, RoundDone
from fedblocks.runs.result import RunResult
from fedblocks.testing import EXAMPLES
from fedblocks.testing.federations import small_federation, small_net

SINGLE = {"dtype": torch.float32}
STEPS, LONG = "steps", "long"


def play(name: str, out: Path, engine: str, precision: str, rounds: int = 3) -> RunResult:
    """A run of a method's example; in double precision, or in single as users have it."""
    example = EXAMPLES[name]()
    changes: dict[str, Any] = {}
    data = example.federation
    if precision == "single":
        tags = tuple(example.federation.tags)
        changes, data = {"net": small_net(torch.float32)}, small_federation(tags=tags, **SINGLE)
    groups = {
        group: [i for i, own in enumerate(example.members) if own == group]
        for group in example.groups
        if group != "all"
    }
    return fb.run(
        example.methods(**changes) if groups else example.methods(**changes)["all"],
        data,
        rounds,
        out,
        groups=groups,
        seed=example.seed,
        cohort=example.cohort,
        engine=engine,
        evaluation={"every": 1, "parts": ["validation", "test"], "local": True},
        device="cpu",
        allow_degenerate=True,
    )


def config_of_steps(**changes: Any) -> Config:
    """Twelve clients with a part of the model each, two that never train, half of them a round."""
    table = {
        "rounds": 6,
        "seed": 3,
        "device": "cpu",
        "engine": "sequential",
        "data": {
            "name": "gaussian",
            "clients": 14,
            "unseen": 0.15,
            "options": {"rows": 420, "classes": 3, "features": 5},
        },
        "cohort": {"size": 6},
        "evaluation": {"every": 2, "local": True},
        "checkpoint": {"every": 2},
        "net": {"name": "mlp", "hidden": [6]},
        "method": {
            "name": "fedper",
            "lr": 0.1,
            "batch_size": 8,
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "keep_optimizer": True,
        },
    }
    return Config.of({**table, **changes})


def long_config() -> Config:
    return config_of_steps(rounds=40)


def stop_after(go: Callable[[OnRound], RunResult], round: int) -> None:
    """A run that its listener ends after some round."""

    def stop(done: RoundDone) -> None:
        print("round", done.round, flush=True)
        if done.round == round:
            raise KeyboardInterrupt

    with suppress(Interrupted):
        go(stop)


def play_steps(folder: Path, until: int) -> None:
    config = config_of_steps()
    if (folder / "config.toml").exists():
        stop_after(lambda listener: fb.resume(folder, on_round=listener), until)
    else:
        stop_after(lambda listener: fb.run(config, folder, on_round=listener), until)


def play_long(folder: Path) -> None:
    """As the command does it, errors included."""
    config = folder.with_suffix(f".{os.getpid()}.toml")
    config.write_text(tomli_w.dumps(long_config().resolved()))
    command(["run", str(config), "--out", str(folder)])


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == STEPS:
        return play_steps(Path(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1] == LONG:
        return play_long(Path(sys.argv[2]))
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        play(entry["name"], Path(entry["out"]), entry["engine"], entry["precision"])


if __name__ == "__main__":
    main()
