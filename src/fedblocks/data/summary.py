"""How labels are spread over clients, counted without a table of clients x classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedblocks.data.rows import Floats, Ints, Rows

IGNORE = -100  # a label that is not scored, as in torch's cross entropy


@dataclass(frozen=True, eq=False)
class Held:
    """What each client holds."""

    classes: Ints  # [clients]: how many different labels
    top_share: Floats  # [clients]: share of the most frequent label; 0 for a client without labels


def labels_held(rows: Rows, labels: Ints) -> Held:
    """Count labels per client; `labels` is [rows] or [rows, steps], IGNORE is left out."""
    held = labels[rows.index]  # [entries] or [entries, steps]
    owner = np.broadcast_to(rows.owners.reshape(-1, *[1] * (held.ndim - 1)), held.shape)
    scored = held != IGNORE
    owner, held = owner[scored], held[scored]
    width = int(held.max(initial=0)) + 1
    # one entry per (client, label)
    pairs, counts = np.unique(owner * width + held, return_counts=True)
    client = pairs // width
    top = np.zeros(len(rows), np.int64)
    np.maximum.at(top, client, counts)
    total = np.bincount(owner, minlength=len(rows))
    return Held(np.bincount(client, minlength=len(rows)), top / np.maximum(total, 1))


def spread(sizes: Ints) -> dict[str, float]:
    """Total, smallest, median and largest of some sizes."""
    if not len(sizes):
        return {"total": 0, "min": 0, "median": 0.0, "max": 0}
    low, high, total = int(sizes.min()), int(sizes.max()), int(sizes.sum())
    return {"total": total, "min": low, "median": float(np.median(sizes)), "max": high}
