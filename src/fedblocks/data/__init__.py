"""Federations of clients: data sets, partitions over clients, and shifts between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fedblocks.core.errors import DataError, nearest
from fedblocks.data.digits import digits, digits_pool
from fedblocks.data.federation import IGNORE, Federation, Parts, Rows
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import PARTITIONS, alike
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.sets import SETS
from fedblocks.data.shifts import SHIFTS, hidden_groups, joint_pool
from fedblocks.data.synthetic import gaussian, markov, next_token_windows, waves
from fedblocks.data.synthetic_tasks import diagnoses, tagged_words, truck_ranges

# A function that returns a Pool or a Federation may be added as it is: DATASETS["trucks"] =
# load_trucks.
DATASETS: dict[str, DataSet | Callable[..., DataPool | Federation]] = {
    "digits": DataSet(
        "digits",
        digits_pool,
        10,
        "images",
        "1,797 handwritten digits of UCI, 8 x 8 pixels, CC BY 4.0",
    ),
    "gaussian": DataSet(
        "gaussian", gaussian, None, "features", "synthetic: a cloud of points per class"
    ),
    "waves": DataSet(
        "waves", waves, None, "signals", "synthetic: sine waves of a frequency per class"
    ),
    "markov": DataSet(
        "markov", markov, None, "tokens", "synthetic: token sequences, a Markov chain per topic"
    ),
    "truck_ranges": DataSet(
        "truck_ranges",
        truck_ranges,
        None,
        "features",
        "synthetic: numbers, trucks in groups",
    ),
    "diagnoses": DataSet(
        "diagnoses", diagnoses, None, "features", "synthetic: several labels, hospitals in groups"
    ),
    "tagged_words": DataSet(
        "tagged_words", tagged_words, None, "tokens", "synthetic: a label for each word of a text"
    ),
    **SETS,
}


def dataset(name: str) -> DataSet:
    """A data set by its name, or the nearest names."""
    if name not in DATASETS:
        raise DataError(f'there is no data set "{name}"', nearest(name, DATASETS))
    entry = DATASETS[name]
    if isinstance(entry, DataSet):
        return entry
    return DataSet(
        name, cast(Callable[..., DataPool], entry), None, "features", (entry.__doc__ or "").strip()
    )


__all__ = [
    "DATASETS",
    "IGNORE",
    "PARTITIONS",
    "SHIFTS",
    "DataPool",
    "DataSet",
    "Federation",
    "Partition",
    "Parts",
    "Rows",
    "alike",
    "dataset",
    "diagnoses",
    "digits",
    "digits_pool",
    "gaussian",
    "hidden_groups",
    "joint_pool",
    "markov",
    "next_token_windows",
    "tagged_words",
    "truck_ranges",
    "waves",
]
