"""Records of runs that were never trained: what a report says of them is known by hand."""

from __future__ import annotations

from pathlib import Path

from fedblocks import read_config
from fedblocks.reports.html.gather import Story, gather
from fedblocks.runs.federations import federation_of
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    RefusalRow,
    RoundRecord,
    Snapshot,
    Traffic,
)

METHODS = {"fedavg": 5, "local": 0, "pfedmb": 9}  # and what tells their accuracies apart
SEEDS = (3, 5)
CLIENTS = 6
ROUNDS = 4
EVALUATED = (2, 4)
EXAMPLES = 20
BYTES = {"down": 1_000_000, "up": 400_000}  # of a client in a round, in all blocks


def correct(method: str, seed: int, number: int, client: int) -> int:
    """How many of 20 test examples; the last client has none in seed 5, and no accuracy."""
    return (METHODS[method] + 7 * client + 3 * number + seed * client) % 17


def accuracy(method: str, seed: int, number: int) -> dict[int, float]:
    """Of each client that has test examples, in an evaluated round."""
    clients = [c for c in range(CLIENTS) if (seed, c) != (5, 5)]
    return {c: correct(method, seed, number, c) / EXAMPLES for c in clients}


def seconds(number: int) -> float:
    """Rounds with an evaluation take 3 seconds, the others 1; the first of a kind 9 more."""
    return (3.0 if number in EVALUATED else 1.0) + (9.0 if number in (1, 2) else 0.0)


def logits(number: int, client: int) -> list[float]:
    """Of 4 branches in 2 layers: each client favours one branch, more and more."""
    favourite = [0.0] * 4
    favourite[client % 3] = float(number) + 0.1 * client
    return [*favourite, *favourite[::-1]]


def write_run(folder: Path, method: str, seed: int) -> None:
    """A finished run."""
    config = read_config(
        "digits-pfedmb",
        [f"seed={seed}", f"rounds={ROUNDS}", f"data.clients={CLIENTS}", f"method={method}"],
    )
    environment = {
        "python": "3",
        "packages": {"torch": "2", "numpy": "1"},
        "cores": [0, seed],
        "gpu": None,
        "command": ["fedblocks", "run", "a b"],
    }
    with RunFolder.create(folder, config.resolved(), environment) as opened:
        opened.store.set_meta("federation", federation_of(config).hash())
        for number in range(1, ROUNDS + 1):
            opened.store.record_round(_record(method, seed, number))
        opened.set_status("finished")


def _record(method: str, seed: int, number: int) -> RoundRecord:
    metrics = [
        ClientMetric("test", "personal", c, correct(method, seed, number, c), EXAMPLES)
        for c in accuracy(method, seed, number)
    ]
    own = method == "pfedmb"
    sent = [("head", 4), ("body", 1)] if method != "local" else []
    is_evaluated = number in EVALUATED
    return RoundRecord(
        number,
        seconds(number),
        CLIENTS,
        metrics=metrics if is_evaluated else [],
        traffic=[
            Traffic(c, block, way, BYTES[way] // share)  # type: ignore[arg-type]
            for c in range(CLIENTS)
            for block, share in sent
            for way in ("down", "up")
        ],
        refusals=[RefusalRow(number, "too late", "by 2 s")] if own and number > 2 else [],
        snapshots=[Snapshot("alpha", c, logits(number, c)) for c in range(CLIENTS)]
        if own and is_evaluated
        else [],
        notes=[Note("the engine is sequential")] if number < 3 else [],
    )


def write_all(folder: Path) -> Story:
    """A run of each method with each seed, and their story."""
    for method in METHODS:
        for seed in SEEDS:
            write_run(folder / f"{method}-{seed}", method, seed)
    return gather(folder)
