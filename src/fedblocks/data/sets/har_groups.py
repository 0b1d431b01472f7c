"""ModFL's activity test-bed: as many windows of each activity and data set, from
recordings that are not shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Ints
from fedblocks.data.sets.cyclic import cyclic
from fedblocks.data.sets.har import COMMON
from fedblocks.data.sets.signals import Recordings, Windows, channel_statistics, windows

Names = Mapping[str, Sequence[str]]
FIVE: Names = {name: [name] for name in COMMON}  # what HAPT, RealWorld and WISDM v1.1 share
FOUR: Names = {  # what HAPT and WISDM-51 share, where stairs are not told apart
    "walking": ["walking"],
    "stairs": ["upstairs", "downstairs"],
    "sitting": ["sitting"],
    "standing": ["standing"],
}
FOUR_WATCH: Names = {name: [name] for name in FOUR}


def har_groups(
    recordings: Recordings,
    steps: int,
    *,
    clients: int = 20,  # of this data set; the paper's N is three times as many
    per_group: int = 2,  # activities of a group
    activities: Names = FIVE,
    per_label: int = 250,  # windows of each activity
    test: float = 0.2,
    overlap: float = 0.5,
    seed: int = 0,
) -> Federation:
    """Clients of one data set in groups of activities; no recording is on both sides,
    train statistics standardise.
    """
    chosen = recordings.only(activities)
    cut = windows(chosen, steps, overlap)
    tested = round(test * per_label)
    train, tests = [], []
    for label in range(len(activities)):
        rng = generator(seed, "har_groups", label)
        own, other = sides(cut, label, per_label - tested, tested, rng, chosen.activities)
        train.append(own)
        tests.append(other)
    mean, deviation = channel_statistics(cut.x[np.concatenate(train)])
    pairs = []
    for rows in (np.concatenate(train), np.concatenate(tests)):
        scaled = (cut.x[rows] - mean[:, None]) / deviation[:, None]
        pairs.append((scaled.astype(np.float32), cut.label[rows]))
    federation = cyclic(pairs[0], pairs[1], clients, per_group, seed)
    recipe = {
        "activities": list(activities),
        "steps": steps,
        "overlap": overlap,
        "per_label": per_label,
        "test": test,
    }
    return replace(federation, about={**recordings.about, **recipe, **federation.about})


def sides(
    cut: Windows, label: int, train: int, test: int, rng: np.random.Generator, names: Sequence[str]
) -> tuple[Ints, Ints]:
    """Windows of one activity for training and for test, at random, from recordings of
    their own.
    """
    own = np.flatnonzero(cut.label == label)
    recording, inverse, sizes = np.unique(
        cut.recording[own], return_inverse=True, return_counts=True
    )
    order = rng.permutation(len(recording))
    share = test / (train + test)
    before = np.cumsum(sizes[order]) - sizes[order]  # windows of the recordings that come earlier
    tested = np.empty(len(recording), dtype=bool)
    tested[order] = before < max(test, share * len(own))
    pools = [own[~tested[inverse]], own[tested[inverse]]]
    if len(pools[0]) < train or len(pools[1]) < test:
        message = (
            f"{names[label]}: {len(pools[0])} + {len(pools[1])} windows, where {train} + "
            f"{test} are needed"
        )
        raise DataError(message, "use a smaller per_label, or all recordings of the data set")
    trains = rng.choice(pools[0], train, replace=False)
    tests = rng.choice(pools[1], test, replace=False)
    return np.sort(trains), np.sort(tests)
