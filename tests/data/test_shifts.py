"""Shifts: each client sees its own version, the groups are known, and the original is
left alone.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data import IGNORE, Federation, Rows, digits, hidden_groups, joint_pool, markov
from fedblocks.data.images import bilinear, rotate_images
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import (
    SHIFTS,
    joint,
    own_rows,
    permutations,
    permute_labels,
    rotate,
    skew_labels,
)

GROUPS = [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.from_arrays(*digits(), lambda y: iid(y, 8, seed=2))


def rows_of(federation: Federation, client: int, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows = federation.parts[part][client]
    return federation.x[rows], federation.y[rows]


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_is_recorded_and_leaves_the_original_alone(
    federation: Federation, name: str
) -> None:
    before = federation.hash()
    shifted = SHIFTS[name](federation, GROUPS, seed=1)
    assert federation.hash() == before != shifted.hash() and "group" not in federation.tags
    assert shifted.tags["group"].tolist() == GROUPS
    assert [s["shift"] for s in json.loads(json.dumps(shifted.about))["shifts"]][-1] == {
        "joint": "permute_labels",
    }.get(name, name)
    assert SHIFTS[name](federation, GROUPS, seed=1).hash() == shifted.hash()
    assert shifted.check() and list(shifted.names) == list(federation.names)


@pytest.mark.parametrize("name", ["permute_labels", "skew_labels", "joint"])
def test_another_seed_is_another_shift(federation: Federation, name: str) -> None:
    assert (
        SHIFTS[name](federation, GROUPS, seed=1).hash()
        != SHIFTS[name](federation, GROUPS, seed=2).hash()
    )


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_rotation_by_quarter_turns_is_exact_for_every_client_and_part(
    federation: Federation, part: str
) -> None:
    shifted = rotate(federation, GROUPS, degrees=[0, 90, 270])
    for client, group in enumerate(GROUPS):
        (x, y), (turned, same) = rows_of(federation, client, part), rows_of(shifted, client, part)
        assert torch.equal(turned, torch.rot90(x, [0, 1, 3][group], (-2, -1))) and torch.equal(
            y, same
        )


def test_rotation_angles_are_spread_around_the_circle_by_default(federation: Federation) -> None:
    assert rotate(federation, 4).about["shifts"][0]["degrees"] == [0.0, 90.0, 180.0, 270.0]


def test_bilinear_rotation_agrees_with_quarter_turns_and_turns_back() -> None:
    x = torch.rand(3, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(bilinear(x, 90.0), torch.rot90(x, 1, (-2, -1)), atol=1e-4)
    assert torch.allclose(bilinear(x, -90.0), torch.rot90(x, 3, (-2, -1)), atol=1e-4)
    down, across = torch.arange(21.0)[:, None] - 9, torch.arange(21.0) - 11
    smooth = torch.exp(-(down**2 + across**2) / 20)[None, None]  # a blob beside the centre
    assert torch.allclose(rotate_images(rotate_images(smooth, 30), -30), smooth, atol=0.05)
    assert not torch.allclose(rotate_images(smooth, 30), smooth, atol=0.1)


def test_bilinear_rotation_keeps_the_shape_of_things_in_wide_images() -> None:
    # a horizontal bar of length 5 in the middle becomes a vertical one: pixels are square, whatever
    # the image is
    x = torch.zeros(1, 1, 9, 15)
    x[0, 0, 4, 5:10] = 1
    turned = bilinear(x, 90.0)
    assert torch.allclose(turned[0, 0, 2:7, 7], torch.ones(5), atol=1e-3)
    assert turned.sum().item() == pytest.approx(5, 1e-3)


def test_what_cannot_be_rotated_is_refused(federation: Federation) -> None:
    pool = markov(users=4)
    tokens = Federation.from_users(pool.x, pool.y, pool.users, classes=pool.classes)
    wide = replace(federation, x=federation.x[..., :6])
    for bad, options in ((tokens, {}), (wide, {}), (federation, {"degrees": [10.0]})):
        with pytest.raises(DataError) as caught:
            rotate(bad, 4, **options)
        assert caught.value.fix


def test_each_group_has_its_own_permutation_of_labels(federation: Federation) -> None:
    shifted = permute_labels(federation, GROUPS, seed=4)
    orders = permutations(3, 10, seed=4)
    assert len({tuple(order) for order in orders.tolist()}) == 3
    assert all(sorted(order) == list(range(10)) for order in orders.tolist())
    for client, group in enumerate(GROUPS):
        (x, y), (same, renamed) = (
            rows_of(federation, client, "train"),
            rows_of(shifted, client, "train"),
        )
        assert torch.equal(x, same) and renamed.tolist() == orders[group][y].tolist()


def test_there_are_no_more_groups_than_orders_of_the_labels() -> None:
    assert sorted(permutations(6, 3).tolist()) == [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ]
    with pytest.raises(DataError, match="6 orders"):
        permutations(7, 3)


def test_labels_of_sequences_are_renamed_but_padding_is_not() -> None:
    pool = markov(users=6)
    federation = Federation.from_users(pool.x, pool.y, pool.users, classes=pool.classes)
    shifted = permute_labels(federation, [0, 1, 0, 1, 0, 1])
    for client in range(6):
        (_, y), (_, renamed) = (
            rows_of(federation, client, "train"),
            rows_of(shifted, client, "train"),
        )
        assert torch.equal(y == IGNORE, renamed == IGNORE)
        assert torch.equal(y, renamed) == (client % 2 == 0)


def test_rows_shared_between_groups_are_copied_so_that_each_sees_its_own() -> None:
    x, y = digits()
    rows = Rows.of([[0, 1, 2], [1, 2, 3], [2, 4]])
    shared = Federation(x, y, rows, Rows.none(3), Rows.of([[5], [5], [5]]), 10)
    shifted = rotate(shared, [0, 1, 0], degrees=[0, 180])
    assert torch.equal(shifted.x[shifted.train[0]], x[[0, 1, 2]])
    assert torch.equal(shifted.x[shifted.train[1]], torch.rot90(x[[1, 2, 3]], 2, (-2, -1)))
    assert torch.equal(shifted.x[shifted.train[2]], x[[2, 4]])
    assert torch.equal(shifted.x[shifted.test[1]], torch.rot90(x[[5]], 2, (-2, -1)))
    owned, group = own_rows(shared, np.array([0, 1, 0]))
    # rows 0 1 2 4 5, and 1 2 3 5 again
    assert sorted(group.tolist()) == [0] * 5 + [1] * 4 and len(owned.x) == 9


def test_label_skew_keeps_some_classes_of_each_group_in_every_part(federation: Federation) -> None:
    shifted = skew_labels(federation, [0, 1] * 4, keep=0.5)
    held = [{int(v) for p in shifted.parts for v in rows_of(shifted, c, p)[1]} for c in range(8)]
    assert held[0] == held[2] == held[4] and held[1] == held[3]
    assert len(held[0]) == len(held[1]) == 5 and not held[0] & held[1]
    for client in range(8):
        kept = [
            row
            for row in federation.train[client].tolist()
            if int(federation.y[row]) in held[client]
        ]
        assert shifted.train[client].tolist() == kept


def test_label_skew_by_weights_keeps_that_share(federation: Federation) -> None:
    weights = np.ones((2, 10))
    weights[1, 3] = 0.25
    shifted = skew_labels(federation, [0, 1] * 4, weights=weights)
    before = sum(int((rows_of(federation, c, "train")[1] == 3).sum()) for c in (1, 3, 5, 7))
    after = sum(int((rows_of(shifted, c, "train")[1] == 3).sum()) for c in (1, 3, 5, 7))
    assert 0.05 * before < after < 0.5 * before  # about 60 rows: 4 standard deviations are 0.22
    assert shifted.train[0].tolist() == federation.train[0].tolist()


def test_label_skew_that_empties_a_client_names_it() -> None:
    y = torch.tensor([0] * 10 + [1] * 10)
    built = Federation(
        torch.zeros(20, 1), y, Rows.of([range(10), range(10, 20)]), Rows.none(2), Rows.none(2), 2
    )
    with pytest.raises(DataError, match="client-1"):
        skew_labels(built, [0, 1], weights=[[1, 1], [1, 0]])


def test_joint_is_all_three_shifts_by_the_same_groups(federation: Federation) -> None:
    shifted = joint(federation, GROUPS, seed=6, degrees=[0, 90, 180], keep=0.4)
    skewed = skew_labels(federation, GROUPS, keep=0.4, seed=6)
    orders = permutations(3, 10, seed=6)
    for client, group in enumerate(GROUPS):
        for part in shifted.parts:
            (x, y), (turned, renamed) = (
                rows_of(skewed, client, part),
                rows_of(shifted, client, part),
            )
            assert torch.equal(turned, torch.rot90(x, group, (-2, -1)))
            assert renamed.tolist() == orders[group][y].tolist()
    assert [s["shift"] for s in shifted.about["shifts"]] == [
        "skew_labels",
        "rotate",
        "permute_labels",
    ]


def test_joint_from_a_pool_uses_every_row_once() -> None:
    x, y = digits()
    built = joint_pool(x, y, clients=12, groups=3, alpha=0.5, degrees=[0, 90, 180], seed=3)
    group = built.tags["group"]
    assert np.bincount(group).tolist() == [4, 4, 4]
    assert sum(len(rows.index) for rows in built.parts.values()) == len(built.x) == 1797
    assert built.train.sizes.min() >= 7
    orders = permutations(3, 10, seed=3)
    known = {image.numpy().tobytes(): int(label) for image, label in zip(x, y)}
    for client in range(12):
        images, labels = rows_of(built, client, "test")
        back = torch.rot90(images, -int(group[client]), (-2, -1))
        original = [known[image.numpy().tobytes()] for image in back]
        assert orders[group[client]][original].tolist() == labels.tolist()


def test_hidden_groups_are_even_and_seeded() -> None:
    assert np.bincount(hidden_groups(11, 3, seed=1)).tolist() == [4, 4, 3]
    assert hidden_groups(50, 5, seed=1).tolist() != hidden_groups(50, 5, seed=2).tolist()
    for bad in (0, 12, [0, 1], [-1] * 11):
        with pytest.raises(DataError):
            hidden_groups(11, bad)


def test_two_shifts_by_different_groups_keep_both_tags(federation: Federation) -> None:
    first = rotate(federation, [0, 1] * 4, degrees=[0, 180], tag="device")
    both = permute_labels(first, [0, 0, 0, 0, 1, 1, 1, 1], tag="taste")
    assert (
        both.tags["device"].tolist() == [0, 1] * 4
        and both.tags["taste"].tolist() == [0] * 4 + [1] * 4
    )
    x, _ = rows_of(federation, 7, "train")
    assert torch.equal(rows_of(both, 7, "train")[0], torch.rot90(x, 2, (-2, -1)))
