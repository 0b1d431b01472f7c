"""A partition, test-bed or shift of a seed is the same as ever: published tables depend on it.

A change on purpose is a change of results, and belongs in the changelog: delete as_ever.json, run
these tests twice, and commit the new file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.data import (
    Rows,
    diagnoses,
    digits_pool,
    gaussian,
    joint_pool,
    markov,
    next_token_windows,
    tagged_words,
    truck_ranges,
    waves,
)
from fedblocks.data.federation import Parts
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import PARTITIONS, alike
from fedblocks.data.pools import DataPool
from fedblocks.data.shifts import SHIFTS
from fedblocks.data.splits import split_rows, split_rows_stratified
from fedblocks.data.subsets import hold_out
from fedblocks.data.testbeds import TESTBEDS
from fedblocks.data.testbeds.camera import other_camera

NOTED = Path(__file__).parent / "as_ever.json"
LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(10), 40))  # 400 rows
GROUPS = [0, 1, 1, 0, 2, 2, 0]


def pool() -> DataPool:
    """Digits, with writers and coarse labels that were made up."""
    known = digits_pool()
    users = np.arange(len(known.x)) // 23
    return replace(
        known,
        users=users,
        coarse=known.y.numpy() // 2,
        about={"name": "cifar10", "train_rows": 1500},
    )


def small(**more: Any) -> Federation:
    x, y = digits_pool().x[:400], digits_pool().y[:400]
    return Federation.from_arrays(x, y, PARTITIONS["iid"](y.numpy(), 6, 1), seed=2, **more)


def partitioned(name: str, *values: Any, **options: Any) -> Callable[[], Partition]:
    return lambda: PARTITIONS[name](LABELS, *values, **options)


def bed(name: str, **options: Any) -> Callable[[], Federation]:
    return lambda: TESTBEDS[name](pool(), **options)


def shifted(name: str, **options: Any) -> Callable[[], Federation]:
    return lambda: SHIFTS[name](small(), **options)


CASES: dict[str, Callable[[], Any]] = {
    "iid": partitioned("iid", 7, 5),
    "dirichlet_labels": partitioned("dirichlet_labels", 7, 0.3, 5, min_size=9, tries=900),
    "dirichlet_clients": partitioned("dirichlet_clients", 7, 0.3, 5, size=31),
    "dirichlet_clients, even": partitioned("dirichlet_clients", 7, 0.3, 5),
    "dirichlet_capped": partitioned("dirichlet_capped", 7, 0.3, 5, min_size=9, tries=900),
    "label_clusters": partitioned("label_clusters", 7, 4, 0.3, 0.8, seed=5),
    "label_clusters, each label": partitioned("label_clusters", 7, None, 0.3, seed=5),
    "pachinko": partitioned("pachinko", LABELS // 3, 7, alpha=0.3, beta=4.0, seed=5, size=31),
    "classes": partitioned("classes", 10, 3, 5),
    "classes_unequal": partitioned("classes_unequal", 7, 4, low=0.2, high=0.6, seed=5),
    "classes_unequal, all": partitioned("classes_unequal", 7, 10, seed=5),
    "shards": partitioned("shards", 7, 3, 5),
    "quantity": partitioned("quantity", 7, 0.7, seed=5, min_size=9, tries=900),
    "quantity_power": partitioned("quantity_power", 7, 1.1, seed=5, min_size=9),
    "grouped_labels": partitioned("grouped_labels", GROUPS, 0.3, 5, min_size=9, tries=900),
    "alike": lambda: alike(PARTITIONS["classes"](LABELS, 10, 3, 5), LABELS, LABELS[::-1][:99], 4),
    "split": lambda: split_rows(PARTITIONS["shards"](LABELS, 7, 3, 5).rows, (0.5, 0.2, 0.3), 4),
    "split, stratified": lambda: split_rows_stratified(
        PARTITIONS["shards"](LABELS, 7, 3, 5).rows, LABELS, (0.5, 0.2, 0.3), 4
    ),
    "pfedmb_two_classes": bed("pfedmb_two_classes", clients=5, per_client=4, seed=3),
    "pfedmb_dirichlet": bed("pfedmb_dirichlet", clients=5, alpha=0.6, seed=3, min_size=12),
    "pfedmb_twenty_classes": bed(
        "pfedmb_twenty_classes", clients=5, per_client=4, low=0.2, high=0.8, fraction=0.5, seed=3
    ),
    "pfedmb_pairs": bed("pfedmb_pairs", fraction=0.4, seed=3),
    "fedem_cifar10": bed("fedem_cifar10", clients=6, clusters=2, validation=0.25, seed=3),
    "fedem_cifar100": bed("fedem_cifar100", clients=6, alpha=0.3, beta=5.0, validation=0.1),
    "fedem_emnist": bed("fedem_emnist", clients=6, fraction=0.5, alpha=0.5, validation=0.2),
    "fedem_femnist": bed("fedem_femnist", share=0.2, more_than=5, validation=0.2, seed=3),
    "some_users": bed("some_users", users=3, most=9, least=6, seed=3),
    "modfl_images": bed("modfl_images", clients=9, per_label=20, skip=5, seed=3),
    "modfl_readers": lambda: TESTBEDS["modfl_readers"](
        sets=("digits",), clients=10, per_group=4, per_label=20, seed=3
    ),
    "rotate": shifted("rotate", groups=3, degrees=(0, 40, 200), seed=3, tag="turned"),
    "rotate, around the circle": shifted("rotate", groups=4, seed=3),
    "permute_labels": shifted("permute_labels", groups=3, seed=3, tag="renamed"),
    "skew_labels": shifted("skew_labels", groups=3, keep=0.4, seed=3, tag="skewed"),
    "joint": shifted("joint", groups=3, seed=3, degrees=(0, 90, 30), keep=0.7, tag="all"),
    "joint_pool": lambda: joint_pool(
        digits_pool().x, digits_pool().y, 6, 3, alpha=0.3, degrees=(0, 10, 20), seed=3, min_size=20
    ),
    "gaussian": lambda: gaussian(60, 4, 5, 2.0, 3),
    "waves": lambda: waves(30, 4, 2, 16, 0.2, 3),
    "markov": lambda: markov(6, 4, 9, 12, 3, 3),
    "truck_ranges": lambda: truck_ranges(6, 5, 4, 2, seed=3),
    "diagnoses": lambda: diagnoses(6, 5, 4, 3, seed=3),
    "tagged_words": lambda: tagged_words(6, 5, 4, 9, 3, seed=3),
    "next_token_windows": lambda: next_token_windows(np.arange(1, 24), 5, 7),
    "other_camera": lambda: other_camera(
        DataPool(digits_pool().x[:30].repeat(1, 3, 1, 1), digits_pool().y[:30], 10),
        11,
        0.7,
        0.05,
        3,
    ),
    "held out": lambda: hold_out(small(), 0.4, 3),
}


def test_every_partition_shift_and_testbed_that_needs_no_download_is_here() -> None:
    downloads = {"modfl_photographs", "modfl_movements", "modfl_phone_and_watch", "some_people"}
    assert {*PARTITIONS} - {"by_user"} <= {*CASES}
    assert {*SHIFTS, *TESTBEDS} - downloads <= {*CASES}


def whole(thing: Any) -> list[Any]:
    """All whole numbers and words of a thing, in a fixed order."""
    if isinstance(thing, Partition):
        return [whole(thing.rows), thing.recipe, list(map(str, thing.names))]
    if isinstance(thing, Federation):
        parts = {part: whole(rows) for part, rows in thing.parts.items()}
        tags = {name: values.tolist() for name, values in sorted(thing.tags.items())}
        return [
            parts,
            tags,
            whole(thing.y),
            thing.classes,
            list(map(str, thing.names)),
            thing.about,
        ]
    if isinstance(thing, DataPool):
        others = (thing.users, thing.topics)
        return [whole(thing.y), thing.classes, *(o if o is None else whole(o) for o in others)]
    if isinstance(thing, tuple | list):
        return [one if isinstance(one, int) else whole(one) for one in thing]
    if isinstance(thing, Rows):
        return [thing.index.tolist(), thing.sizes.tolist()]
    return list(np.asarray(thing).tolist())


def fractions(thing: Any) -> list[float]:
    """Sums over the inputs, of which the second and third depend on the order."""
    if not isinstance(thing, Federation | DataPool):
        return []
    x = thing.x.double().flatten(1)
    rows, columns = torch.arange(1, len(x) + 1).double(), torch.arange(1, x.shape[1] + 1).double()
    return [float(x.sum()), float((x.T @ rows).sum()), float((x @ columns).sum())]


def digest(thing: Any) -> str:
    return sha256(json.dumps(whole(thing), default=str).encode()).hexdigest()[:16]


def test_it_is_the_same_as_ever() -> None:
    things = {name: make() for name, make in CASES.items()}
    actual = {name: [digest(thing), *fractions(thing)] for name, thing in things.items()}
    if not NOTED.exists():
        NOTED.write_text(json.dumps(actual, indent=1) + "\n")
        pytest.fail("as_ever.json was written: say in the changelog what has changed")
    noted = json.loads(NOTED.read_text())
    assert actual.keys() == noted.keys()
    changed = [name for name in noted if actual[name][0] != noted[name][0]]
    assert changed == [], "see the first lines of this file"
    for name, (_, *sums) in noted.items():
        assert actual[name][1:] == pytest.approx(sums, rel=1e-4, abs=1e-2), name


def test_clients_that_were_given_one_by_one_keep_their_rows() -> None:
    parts = [
        Parts(
            *((np.full((n, 2), 10 * client + n, "float32"), np.full(n, client)) for n in (3, 1, 2))
        )
        for client in range(3)
    ]
    built = Federation.from_parts(parts, names=["a", "b", "c"])
    for part, n in (("train", 3), ("validation", 1), ("test", 2)):
        for client in range(3):
            rows = built.parts[part][client]
            assert built.x[rows].tolist() == [[10.0 * client + n] * 2] * n
            assert built.y[rows].tolist() == [client] * n
