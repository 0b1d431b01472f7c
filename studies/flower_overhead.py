"""What a real federation costs beside its work: bytes on the wire, and seconds a round beside
Flower's own FedAvg.

    python studies/flower_overhead.py --out results/flower-overhead.json

Two clients on this machine, TLS and keys on. Bytes are those that the SuperLink counts for a run.
Ours and Flower's FedAvg train the same perceptron on as many rows; Flower's evaluates in messages
of their own, ours in the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.config.model import Config
from fedblocks.flower.client.host import start_client
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.server.watching import watch
from fedblocks.runs.result import RunResult

DATA = {"name": "digits", "clients": 2, "split": [0.6, 0.2, 0.2]}
HIDDEN = [512, 256]
ROUNDS = 2  # of each method whose bytes are counted
TRAINING = {"lr": 0.1, "batch_size": 32}
# FedMN's communication setting: perceptrons of 8 layers, or of 8 blocks in layers of 1, 4 and 3
EIGHT = [256] * 7
ENCODER = [64]  # FedMN's net is the one that its blocks stand on
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "pfedmb": {"branches": 2},
    "fedmn": {
        "modules": [1, 4, 3],
        "widths": [256, 256],
        "dropout": 0.0,
        "module_start": "independent",
        "lr_scale": "printed",
        "router_start": "drawn",
        "gate_noise": {"name": "linear", "start": 1.0, "end": 0.0, "rounds": 0.5},
    },
}
STOCK = Path(__file__).with_name("stock_flower")


class Place:
    """A server and two nodes on this machine."""

    def __init__(self, base: Path) -> None:
        self.base, self.server = base, base / "server"
        set_up(
            base,
            "127.0.0.1",
            {"one": [0], "two": [1]},
            launch.free_port(),
            launch.free_port(),
            data=DATA,
        )
        variables = {
            **launch.environment(self.server),
            launch.SERVER: str(self.server),
            "OMP_NUM_THREADS": "1",
        }
        self.processes = ProcessGroup(base / "logs", variables)

    def start(self, ours: bool) -> None:
        self.host = running.start_server(self.processes, self.server, print)
        for number, name in enumerate(("one", "two")):
            folder = self.base / name
            if ours:
                start_client(self.processes, folder, name)
            else:
                partition = ["--node-config", f"partition-id={number} num-partitions=2"]
                self.processes.start(
                    name, [*self.stock_client(folder), *partition], **launch.environment(folder)
                )

    def stock_client(self, folder: Path) -> list[str]:
        """Flower's own, with the key of ours."""
        address = [
            f"127.0.0.1:{self.host.port}",
            "--host",
            "127.0.0.1",
            "--port",
            str(launch.free_port()),
        ]
        key = ["--auth-supernode-private-key", str(folder / "client.key")]
        return [
            "flower-supernode",
            "--superlink",
            *address,
            "--root-certificates",
            str(folder / "ca.crt"),
            *key,
        ]

    def ours(self, name: str, rounds: int, hidden: list[int]) -> tuple[RunResult, dict[str, int]]:
        table = {
            "rounds": rounds,
            "threads": 1,
            "data": DATA,
            "net": {"name": "mlp", "hidden": hidden},
        }
        method = {"name": name, **TRAINING, **METHODS[name]}
        config = Config.of({**table, "method": method, "evaluation": {"every": 1}})
        path = new_run(config, self.base / f"run-{name}-{time.monotonic_ns()}", [])
        choices = {"seconds": 300.0, "patience": 300.0}
        number = running.submit(
            self.server, job_for(path, self.host.federation, kind="train", **choices)
        ).flower_run
        result = watch(
            path,
            lambda done: print(name, done.line(), flush=True),
            lambda note: None,
            self.processes.revive,
        )
        return result, self.traffic(number)

    def stock(self, rounds: int) -> list[float]:
        """Seconds of every round of Flower's own strategy."""
        out = self.base / f"stock-{time.monotonic_ns()}.json"
        app = self.base / "app"
        app.mkdir(exist_ok=True)
        (app / "stock.py").write_text((STOCK / "stock.py").read_text())
        components = {"serverapp": "stock:server", "clientapp": "stock:client"}
        settings = {"rounds": rounds, "out": str(out)}
        flower_app = {"publisher": "fedblocks", "components": components, "config": settings}
        project = {"name": "stock", "version": "1.0.0", "description": "stock", "dependencies": []}
        (app / "pyproject.toml").write_text(
            tomli_w.dumps({"project": project, "tool": {"flwr": {"app": flower_app}}})
        )
        launch.ask(self.server, "run", str(app))
        launch.until(out.exists, 900, self.processes.check, "Flower's FedAvg")
        seconds_of_rounds: list[float] = json.loads(out.read_text())
        return seconds_of_rounds

    def traffic(self, number: str) -> dict[str, int]:
        run = launch.ask(self.server, "list", "--run-id", number)["runs"][0]
        return {
            key: int(value)
            for key, value in run["network-traffic"].items()
            if key in ("inbound-bytes", "outbound-bytes")
        }


def wire(place: Place) -> dict[str, Any]:
    """Bytes that the library counts, and bytes that the SuperLink counted."""
    sizes = {}
    for name in METHODS:
        result, counted = place.ours(name, ROUNDS, ENCODER if name == "fedmn" else EIGHT)
        ours = result.bytes_down + result.bytes_up
        # after the last round models travel once more, to be tried
        evaluation = result.bytes_down // ROUNDS
        theirs = sum(counted.values())
        sizes[name] = {
            "library": ours + evaluation,
            "superlink": theirs,
            "ratio": theirs / (ours + evaluation),
            **counted,
        }
        print(name, sizes[name], flush=True)
    return sizes


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=Path("results/flower-overhead.json"))
    arguments.add_argument("--rounds", type=int, default=4)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "ours")
        with place.processes:
            place.start(ours=True)
            bytes_ = wire(place)
            result, _ = place.ours("fedavg", chosen.rounds, HIDDEN)
            loads = [os.getloadavg()[0]]
        seconds = [row["seconds"] for row in _rounds(result)]
        stock = Place(Path(folder) / "stock")
        with stock.processes:
            stock.start(ours=False)
            theirs = stock.stock(chosen.rounds)
            loads.append(os.getloadavg()[0])
    report = {
        "bytes": bytes_,
        "seconds_a_round": {
            "ours": statistics.median(seconds[1:]),
            "flower": statistics.median(theirs[1:]),
        },
        "all_rounds": {"ours": seconds, "flower": theirs},
        # processes that wanted a core in the last minute
        "load": {"ours": loads[0], "flower": loads[1]},
        "cores": os.cpu_count(),
    }
    chosen.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def _rounds(result: RunResult) -> list[dict[str, Any]]:
    from fedblocks.runs.storage.folder import RunFolder

    with RunFolder.open(result.folder) as folder:
        return folder.store.rows("SELECT round, seconds FROM rounds ORDER BY round")


if __name__ == "__main__":
    main()
