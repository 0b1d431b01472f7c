"""What modular methods found in a run, in one sentence each: paths, routes, cohorts, branches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedblocks.reports.groups import adjusted_rand, find_groups
from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.folder import RunFolder

Floats = npt.NDArray[np.float64]
BLOCKS = {
    "fedmn": "gates",
    "flow": "route",
    "modfl": "operation cohort",
    "pfedmb": "alpha",
}
# Why a method may end below Local on the digits of the quickstart
REASONS: Mapping[str, str] = {
    "fedavg": "one model for all cannot serve groups that give the same image other labels",
    "fedavg_ft": "a few epochs of tuning do not undo a common model that fits no group",
    "fedper": "the body is common to groups that see the images at other angles",
    "fedem": "its components have not parted yet; more rounds or a larger lr help",
    "pfedmb": "its branches have not parted yet; more rounds or a larger lr help",
    "modfl": "its cohorts do not match the groups, so that unlike clients share a module",
    "fedmn": "its router sends unlike clients through the same modules",
    "flow": "its copies are tuned to few examples, and the head under them is common to all groups",
}


def tell_idea(method: str, result: RunResult, hidden: Sequence[int]) -> str:
    """What a method found, beside the hidden group of each client; nothing for other methods."""
    numbers = last_numbers(result, BLOCKS[method]) if method in BLOCKS else {}
    clients = sorted(numbers)
    if len(clients) < 2:
        return ""
    rows = np.array([numbers[client] for client in clients])  # [clients, numbers]
    if method == "flow":
        return tell_routes(rows)
    if method == "pfedmb":
        rows = branch_weights(rows, int(result.config.method.table["branches"]))
    groups = groups_in(method, rows, len(set(hidden)))
    index = adjusted_rand([hidden[client] for client in clients], groups)
    count = int(groups.max()) + 1
    words = {
        "fedmn": f"{len(clients)} clients take {count} paths through its modules",
        "modfl": f"it found {count} cohorts of clients",
        "pfedmb": f"by the branches that they rely on, clients form {count} groups",
    }
    return f"{words[method]}; adjusted Rand index with the hidden groups {index:.2f}"


def tell_routes(routes: Floats) -> str:
    """Of [clients, 3]: the mean shares of the shared and of the local branch, and the deviation."""
    local, apart = routes[:, 1], routes[:, 2]
    return (
        f"the local branch has {local.min():.0%} to {local.max():.0%} of a client's answers; from "
        f"one instance to the next this share varies by {apart.mean():.1%} (standard deviation)"
    )


def branch_weights(logits: Floats, branches: int) -> Floats:
    """pFedMB's alpha, which is kept as logits: [clients, layers x branches]."""
    chances = np.exp(logits - logits.max()).reshape(len(logits), -1, branches)
    weights: Floats = chances / chances.sum(-1, keepdims=True)
    return weights.reshape(logits.shape)


def groups_in(method: str, rows: Floats, hidden: int) -> npt.NDArray[np.int64]:
    """The group of each client: equal rows, or of branch weights as many as are hidden."""
    if method == "pfedmb":
        return find_groups(rows, min(hidden, len(rows)))
    return np.unique(rows.round(6), axis=0, return_inverse=True)[1].ravel()


def last_numbers(result: RunResult, block: str) -> dict[int, list[float]]:
    """A small private block or a portrait, as it was last seen: client -> numbers."""
    with RunFolder.open(result.folder) as folder:
        rows = folder.store.rows(
            "SELECT client, numbers FROM snapshots WHERE name = ? AND round = "
            "(SELECT MAX(round) FROM snapshots WHERE name = ?)",
            block,
            block,
        )
    return {row["client"]: json.loads(row["numbers"]) for row in rows}
