"""What the admission gate costs beside the aggregation of the same uploads: python
studies/gate_cost.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch

from fedblocks.core.admission import admit
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.uploads import Upload

# clients, tensors, numbers in each
SIZES = [(100, 4, 50_000), (100, 10, 10_000), (20, 8, 125_000), (10, 20, 250_000)]
REPEATS = 9


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some repeats: other processes can only add to it."""
    actual = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        actual.append(time.process_time() - began)
    return min(actual)


def measured(clients: int, tensors: int, numbers: int) -> dict[str, float]:
    slots = {f"t{i}": torch.zeros(1, numbers) for i in range(tensors)}
    copies = {name: torch.randn(clients, numbers) for name in slots}
    weights = torch.full((clients, 1), 30.0, dtype=torch.double)
    upload = Upload("model", torch.arange(clients), copies, weights, False, Average())
    limits = torch.full((clients,), 30.0, dtype=torch.double)
    after = {"model": reduce_slots(slots, upload)[0]}
    reduce = seconds(lambda: reduce_slots(slots, upload))
    gate = seconds(
        lambda: admit({"model": upload}, {}, upload.ids, limits, {"model": slots}, after)
    )
    return {
        "clients": clients,
        "parameters": tensors * numbers,
        "reduce_ms": 1e3 * reduce,
        "gate_ms": 1e3 * gate,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [measured(*size) for size in SIZES]
    for row in rows:
        row["share"] = row["gate_ms"] / row["reduce_ms"]
    print(json.dumps(rows, indent=2), statistics.median(row["share"] for row in rows))
