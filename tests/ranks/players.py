"""What a rank of the tests does, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

`python players.py PLAN` carries out the runs that a file names, one after the other;
`python players.py steps FOLDER ROUND` starts a run there, or goes on with it, until some round;
`python players.py long FOLDER` starts one that is to be disturbed; `wrong FOLDER` what is refused,
`many FOLDER` one of many clients, `file CONFIG FOLDER` the run of a configuration.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch

import fedblocks as fb
from fedblocks.cli import main as command
from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.core.state import State
from fedblocks.engines.round import Engine
from fedblocks.runs import loop
from fedblocks.runs.progress import OnRound, RoundDone
from fedblocks.runs.ranks import build
from fedblocks.runs.ranks.errors import is_silent
from fedblocks.runs.ranks.joining import together
from fedblocks.runs.ranks.rounds import RankRun
from fedblocks.runs.result import RunResult
from fedblocks.testing import EXAMPLES
from fedblocks.testing.federations import small_federation, small_net

SINGLE = {"dtype": torch.float32}
STEPS, LONG, WRONG, MANY, FILE = "steps", "long", "wrong", "many", "file"


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


def play_wrong(folder: Path) -> None:
    """What is refused, one thing after the other, and then a run that is not."""
    rank = int(os.environ["RANK"])
    gaussian = {"name": "gaussian", "options": {"rows": 60, "classes": 3, "features": 5}}
    few = lambda: config_of_steps(data={**gaussian, "clients": 2}, cohort={"size": 2})
    missing = {"name": "none"} if rank == 1 else {}
    rates = {"name": "fedavg", "lr": 0.1 if rank < 2 else 0.2}
    wrong = {
        "few clients": few,
        "other options": lambda: config_of_steps(method=rates),
        "other rounds": lambda: config_of_steps(rounds=6 + rank),
        "processes": lambda: config_of_steps(engine="processes"),
        "no data at one": lambda: config_of_steps(data={**gaussian, "clients": 14, **missing}),
    }
    for what, config in wrong.items():
        show_refusal(what, lambda config=config: fb.run(together(config), folder / "wrong"))
    show_refusal("compare", lambda: fb.compare("digits-pfedmb"))
    code = build._code()
    build._code = lambda: {**code, "torch": "0.1" if rank == 1 else code["torch"]}
    show_refusal("other code", lambda: fb.run(config_of_steps(), folder / "code"))
    build._code = lambda: code
    print("status", fb.run(config_of_steps(), folder / "good").status, flush=True)


def many_clients(clients: int, cohort: int) -> Config:
    """Clients of four rows each that keep a whole model."""
    options = {"rows": 4 * clients, "classes": 3, "features": 64}
    data = {"name": "gaussian", "clients": clients, "split": [1.0, 0.0, 0.0], "options": options}
    return config_of_steps(
        rounds=9,
        engine="vectorised",
        chunk=512,
        data=data,
        cohort={"size": cohort},
        evaluation={"every": 100, "parts": ["train"]},
        checkpoint={"every": 100},
        net={"name": "mlp", "hidden": []},
        method={"name": "local", "lr": 0.1, "batch_size": 4},
    )


def play_many(folder: Path) -> None:
    """Two rounds of many clients: the memory that they have taken, and how many keep something."""
    fb.run(many_clients(64, 8), folder / "few")  # everything is imported now
    before = resident()

    def shown(rounds: int, private: Sized) -> None:
        if rounds == 2:
            gc.collect()
            print(json.dumps({"megabytes": resident() - before, "kept": len(private)}), flush=True)
            os._exit(0)

    if int(os.environ["WORLD_SIZE"]) > 1:
        play_part = RankRun.play

        def play_and_show(run: RankRun, state: State, engine: Engine) -> Any:
            shown(state.round, state.private)
            return play_part(run, state, engine)

        RankRun.play = play_and_show
    else:
        play_whole = loop.play

        def play_all_and_show(lanes: Any, prepared: Any, states: Any, engine: Engine) -> Any:
            shown(states[0].round, states[0].private)
            return play_whole(lanes, prepared, states, engine)

        loop.play = play_all_and_show
    fb.run(many_clients(60_000, 15_000), folder / "many")


def resident() -> float:
    """Megabytes of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def show_refusal(what: str, go: Callable[[], object]) -> None:
    try:
        go()
    except UserError as error:
        print(json.dumps([what, error.message, error.fix, is_silent(error)]), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == STEPS:
        return play_steps(Path(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1] == MANY:
        return play_many(Path(sys.argv[2]))
    if sys.argv[1] == WRONG:
        return play_wrong(Path(sys.argv[2]))
    if sys.argv[1] == FILE:
        fb.run(fb.read_config(sys.argv[2]), Path(sys.argv[3]))
        return None
    if sys.argv[1] == LONG:
        return play_long(Path(sys.argv[2]))
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        play(entry["name"], Path(entry["out"]), entry["engine"], entry["precision"])


if __name__ == "__main__":
    main()
