"""Every method on a real SuperLink and two SuperNodes, beside the same configuration in a
simulation.

    python studies/flower_all_methods.py --out results/flower-all-methods.json [METHOD ...]

Two clients on this machine, two rounds, TLS and keys on. Compared are all blocks of the server, the
personal models' scores and the counted bytes. The file is written after every method, and methods
that are in it are not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.flower.client.host import start_client
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.server.watching import watch
from fedblocks.methods import METHODS
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import run

DATA = {"name": "digits", "clients": 2, "split": [0.6, 0.2, 0.2]}
TABLE: dict[str, Any] = {
    "rounds": 2,
    "threads": 1,
    "engine": "sequential",
    "device": "cpu",
    "allow_degenerate": True,
    "data": DATA,
    "net": {"name": "mlp", "hidden": [16, 12]},
    "evaluation": {"every": 50},
}
TRAINING = {"lr": 0.05, "batch_size": 64}
# where the defaults do not fit two clients and a small perceptron
OPTIONS: dict[str, dict[str, Any]] = {
    "modfl": {"cohorts": "found", "operations": 2, "warmup": 1},
    "fedmn": {"modules": [2, 2], "widths": [16], "dropout": 0.0},
    "fedmn_reference": {"modules": [2, 2], "widths": [16], "dropout": 0.0},
    "pfedmb": {"branches": 2},
}


def farthest(ours: RunResult, theirs: RunResult) -> float:
    """The largest difference between two servers' blocks."""
    one, other = ours.state().server, theirs.state().server
    if one.keys() != other.keys():
        return float("inf")
    pairs = [
        (one[block][key], value)
        for block, tensors in other.items()
        for key, value in tensors.items()
    ]
    return max(
        (float((a.double() - b.double()).abs().max()) for a, b in pairs if b.numel()), default=0.0
    )


def compared(name: str, base: Path, processes: ProcessGroup, federation: str) -> dict[str, Any]:
    """One method in both ways."""
    config = Config.of({**TABLE, "method": {"name": name, **TRAINING, **OPTIONS.get(name, {})}})
    simulated = run(config, base / f"{name}-simulated")
    path = new_run(config, base / f"{name}-real", [])
    job = job_for(path, federation, kind="train", seconds=300.0, patience=300.0)
    running.submit(base / "f" / "server", job)
    real = watch(
        path, lambda done: print(name, done.line(), flush=True), lambda note: None, processes.revive
    )
    scores = real.accuracies(), simulated.accuracies()
    return {
        "largest_difference": farthest(real, simulated),
        "same_scores": all(abs(scores[0][c] - scores[1][c]) < 1e-9 for c in scores[1]),
        "same_bytes": (real.bytes_down, real.bytes_up)
        == (simulated.bytes_down, simulated.bytes_up),
        "seconds": real.seconds,
    }


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("methods", nargs="*", default=list(METHODS))
    arguments.add_argument("--out", type=Path, default=Path("results/flower-all-methods.json"))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    differences: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        set_up(
            base / "f",
            "127.0.0.1",
            {"a": [0], "b": [1]},
            launch.free_port(),
            launch.free_port(),
            data=DATA,
        )
        server = base / "f" / "server"
        variables = {
            **launch.environment(server),
            launch.SERVER: str(server),
            "OMP_NUM_THREADS": "1",
        }
        with ProcessGroup(base / "logs", variables) as processes:
            host = running.start_server(processes, server, print)
            for name in ("a", "b"):
                start_client(processes, base / "f" / name, name)
            for name in [method for method in chosen.methods if method not in differences]:
                try:
                    differences[name] = compared(name, base, processes, host.federation)
                except UserError as error:
                    differences[name] = {"error": error.message}
                print(name, differences[name], flush=True)
                chosen.out.write_text(json.dumps(differences, indent=2) + "\n")


if __name__ == "__main__":
    main()
