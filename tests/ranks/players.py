"""What a rank of the tests does: the runs that a plan names, one after the other, in one process.

Started as `python players.py PLAN`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import fedblocks as fb
from fedblocks.runs.result import RunResult
from fedblocks.testing import EXAMPLES
from fedblocks.testing.federations import small_federation, small_net

SINGLE = {"dtype": torch.float32}


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


def main() -> None:
    torch.set_num_threads(1)
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        play(entry["name"], Path(entry["out"]), entry["engine"], entry["precision"])


if __name__ == "__main__":
    main()
