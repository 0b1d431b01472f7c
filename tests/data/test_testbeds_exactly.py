"""Test-beds, made-up data and groups of labels at their edges, by cases computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.random import derive
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Rows
from fedblocks.data.sets.cyclic import cyclic, deal_equally, label_groups, pad_to, side_by_side
from fedblocks.data.synthetic import markov, next_token_windows, walk
from fedblocks.data.synthetic_tasks import diagnoses, tagged_words, truck_ranges
from fedblocks.data.testbeds import unlike
from fedblocks.data.testbeds.camera import CAST, other_camera
from fedblocks.data.testbeds.fedem import fedem_cifar100, fedem_femnist, shuffled_split
from fedblocks.data.testbeds.modfl import modfl_clients, modfl_images, sample
from fedblocks.data.testbeds.parts import federation_of, official_parts, rows_hash
from fedblocks.data.testbeds.pfedmb import hold_out_alike, pairs, pfedmb_dirichlet, thin
from fedblocks.data.testbeds.users import draw_users, some_users, spread_out, thin_rows


def numbered(labels: Any, **about: Any) -> DataPool:
    """Rows whose only input is their number."""
    y = torch.tensor(labels)
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    return DataPool(x, y, int(y.max()) + 1, about=about)


def photographs(x: torch.Tensor) -> DataPool:
    return DataPool(x, torch.zeros(len(x), dtype=torch.int64), 1, about={"name": "p"})


def test_a_smaller_image_is_the_mean_of_what_it_covers() -> None:
    """Half the side with triangles over two pixels to each side: weights 3, 3, 1 of 7, and 1, 3, 3
    of 7. The narrow blur leaves them.
    """
    line = torch.tensor([0.0, 0, 7, 0]).expand(1, 1, 4, 4)
    seen = other_camera(photographs(line), side=2, blur=0.1, noise=0.0)
    assert seen.x[0, 0].flatten().tolist() == pytest.approx([1, 3, 1, 3], abs=1e-4)
    assert seen.about == {
        **{"name": "p_other_camera", "side": 2, "blur": 0.1, "noise": 0.0},
        **{"cast": list(CAST), "camera_seed": 0},
    }


def test_colours_have_a_cast_and_noise_of_the_seed_and_all_rows_are_seen() -> None:
    pool = photographs(torch.ones(513, 3, 2, 2))
    seen = other_camera(pool, side=2, blur=0.1, noise=0.5, seed=3)
    key = torch.Generator().manual_seed(derive(3, "other_camera"))
    noise = torch.cat([torch.randn(rows, 3, 2, 2, generator=key) for rows in (512, 1)])
    expected = torch.tensor([1.15, 1.0, 0.8]).view(3, 1, 1) + 0.5 * noise
    assert (seen.x - expected).abs().max() < 1e-5


def test_a_lone_row_is_trained_on_and_a_share_of_one_leaves_nothing() -> None:
    rows = np.array([7, 8, 9, 5])
    for held, share, sizes in ((0, 0.8, (0, 0)), (1, 0.8, (1, 0)), (3, 0.1, (1, 2))):
        first, second = shuffled_split(rows[:held], share, 0)
        assert (len(first), len(second)) == sizes
    assert shuffled_split(rows, 1, 0)[0].tolist() == rows.tolist()
    assert shuffled_split(rows, 1, 0)[1].tolist() == []
    order = np.random.RandomState(3).permutation(4)
    first, second = shuffled_split(rows, 0.75, 3)
    assert (
        first.tolist() == rows[order[1:]].tolist() and second.tolist() == rows[order[:1]].tolist()
    )


def test_writers_with_more_images_than_said_are_drawn() -> None:
    users = np.repeat(["a", "b", "c", "d"], [2, 3, 4, 5])
    y = torch.arange(14) % 2
    pool = DataPool(torch.zeros(14, 1), y, 2, users=users)
    assert sorted(fedem_femnist(pool, share=1.0).names) == ["b", "c", "d"]
    assert len(fedem_femnist(pool, share=0.67).names) == 2
    with pytest.raises(DataError, match=r"0\.3 of 3 writers is nobody"):
        fedem_femnist(pool, share=0.3)
    with pytest.raises(DataError, match="needs coarse labels"):
        fedem_cifar100(pool)


def test_official_parts_both_have_rows() -> None:
    for train, both in ((0, False), (1, True), (3, True), (4, False)):
        pool = numbered([0, 1, 0, 1], train_rows=train)
        if both:
            first, second = official_parts(pool)
            assert [*first, *second] == [0, 1, 2, 3] and len(first) == train
        else:
            with pytest.raises(DataError, match=f"{train} official training rows of 4"):
                official_parts(pool)
    with pytest.raises(DataError, match="0 official training rows of 2"):
        official_parts(numbered([0, 1]))


def test_a_federation_over_a_pool_says_the_hash_of_its_parts() -> None:
    train, test, none = Rows.of([[0], [1]]), Rows.of([[2], []]), Rows.none(2)
    made = federation_of(numbered([0, 1, 0], name="n"), train, test, {"testbed": "t"})
    expected = rows_hash(train, none, test)
    assert made.about == {"name": "n", "testbed": "t", "partition_hash": expected}
    assert rows_hash(train, test, none) != expected != rows_hash(train, none, Rows.of([[], [2]]))
    kept = federation_of(numbered([0, 1, 0]), train, none, {}, test, ("a", "b"))
    assert kept.validation.sizes.tolist() == [1, 0] and [*kept.names] == ["a", "b"]


def test_pairs_hold_half_of_each_of_their_classes() -> None:
    labels = np.repeat([0, 1, 2, 3], [5, 4, 2, 2])
    made = pairs(labels, 1)
    assert [np.bincount(labels[own], minlength=4).tolist() for own in made.rows] == [
        *[[2, 2, 0, 0]] * 2,
        *[[0, 0, 1, 1]] * 2,
    ]
    with pytest.raises(DataError, match="3 classes cannot be paired"):
        pairs(np.array([0, 1, 2]))


def test_a_share_of_every_class_is_kept_or_set_aside_in_the_order_of_rows() -> None:
    labels = np.arange(24) % 2
    rows = np.arange(2, 22)  # ten of each class
    assert thin(labels, rows, 1, 0) is rows
    kept = thin(labels, rows, 0.35, 0)
    assert np.bincount(labels[kept]).tolist() == [3, 3] and kept.tolist() == sorted(kept)
    train, validation = hold_out_alike(labels, rows, 0)
    assert np.bincount(labels[validation]).tolist() == [2, 2]
    assert sorted([*train, *validation]) == rows.tolist()
    assert train.tolist() == sorted(train) and validation.tolist() == sorted(validation)


def test_a_draw_without_test_rows_for_everybody_is_refused_after_so_many() -> None:
    pool = numbered([0] * 40 + [0], train_rows=40)  # one test row for two clients
    with pytest.raises(DataError, match="no draw of 3 gave every client a test row"):
        pfedmb_dirichlet(pool, 2, alpha=10.0, min_size=0, tries=3)


def test_a_sample_takes_as_many_rows_of_a_label_as_there_are() -> None:
    pool = numbered([0, 1, 2] * 4, name="cifar10")
    made = sample(pool, [2, 0], 3, skip=1, seed=5)
    assert made.y.tolist() == [0, 0, 0, 1, 1, 1] and made.classes == 2
    assert (made.x[:, 0].long() % 3).tolist() == [2, 2, 2, 0, 0, 0]
    first = sample(pool, [2, 0], 1, seed=5)
    assert not set(first.x[:, 0].tolist()) & set(made.x[:, 0].tolist())
    about = {"name": "cifar10", "labels": [2, 0], "per_label": 3, "skip": 1, "train_rows": 0}
    assert {key: made.about[key] for key in about} == about
    for labels, per_label, skip in (([2], 4, 1), ([2], 5, 0), ([3], 1, 0)):
        wanted = f"label {labels[0]} has fewer than {per_label + skip} rows"
        with pytest.raises(DataError, match=wanted):
            sample(pool, labels, per_label, skip)
    with pytest.raises(DataError, match="common classes of None are not known"):
        modfl_images(numbered([0, 1]))


def test_three_quarters_of_each_label_train() -> None:
    made = modfl_clients(numbered([0, 1] * 8, name="n"), 2, 1, seed=4)
    assert made.train.sizes.tolist() == [6, 6] and made.test.sizes.tolist() == [2, 2]
    assert made.about["testbed"] == "modfl" and made.about["seed"] == 4
    assert made.about["partition_hash"] == rows_hash(made.train, made.validation, made.test)
    for rows in (made.train, made.test):
        assert [np.unique(made.y.numpy()[own]).tolist() for own in rows] == [[0], [1]]
    assert sorted(made.x[:, 0].tolist()) == [*range(16)]


def test_data_sets_are_joined_in_the_order_of_their_names_as_given() -> None:
    makers = {name: lambda: modfl_clients(numbered([0, 1] * 8), 2, 1) for name in ("a", "b", "c")}
    made = unlike.together(("c", "a"), makers)
    assert made.about["name"] == "c+a" and made.about["testbed"] == "modfl"
    assert made.names[0].startswith("c/") and made.clients == 4


def test_users_need_a_quarter_of_the_rows_in_the_other_parts() -> None:
    """Of 5 training rows: two in the other parts. User 0 has just enough, all others lack one."""
    sizes = np.array([[5, 2, 2], [4, 2, 2], [5, 1, 2], [5, 2, 1], [6, 3, 3]])
    ends = np.cumsum(sizes).reshape(sizes.shape)
    train, validation, test = (
        Rows.of([np.arange(end - size, end) for end, size in zip(ends[:, k], sizes[:, k])])
        for k in range(3)
    )
    pool = numbered([0, 1] * 23)
    everybody = Federation(pool.x, pool.y, train, validation, test, 2)
    drawn = draw_users(everybody, 2, 5, 0)
    assert [*drawn.names] == ["client-0", "client-4"]
    with pytest.raises(DataError, match="2 users have 5 training rows and 2 in other parts, fewer"):
        draw_users(everybody, 3, 5, 0)
    thinned = thin_rows(drawn, 4)
    assert thinned.train.sizes.tolist() == [4, 4] and thinned.test.sizes.tolist() == [2, 2]
    assert thinned.validation.sizes.tolist() == [2, 2]
    assert spread_out(np.arange(9), 3).tolist() == [0, 4, 8]
    with pytest.raises(DataError, match="has no user ids"):
        some_users(pool)


def test_groups_of_labels_go_round_and_are_one_if_each_holds_all() -> None:
    assert label_groups(3, 2) == [[0, 1], [1, 2], [2, 0]]
    assert label_groups(3, 3) == [[0, 1, 2]] and label_groups(1, 1) == [[0]]
    for per_group in (0, 4):
        with pytest.raises(DataError, match="choose from 1 to 3"):
            label_groups(3, per_group)


def test_holders_of_a_label_have_equally_many_rows_and_the_rest_is_dropped() -> None:
    held = np.array([[True, False], [True, True]])
    rows = deal_equally(np.array([0, 1, 0, 0, 0, 0, 1]), held, 0, "train")
    assert rows.sizes.tolist() == [2, 4] and len(set(rows.index.tolist())) == 6
    with pytest.raises(DataError, match="0 test rows of label 1 for 1 clients"):
        deal_equally(np.array([0, 0]), held, 0, "test")
    x, y = np.arange(6.0)[:, None], np.array([0, 1, 2] * 2)
    made = cyclic((x, y), (x + 10, y), 3, 1, seed=2)
    assert made.classes == 3 and made.tags["operation"].tolist() == [0, 1, 2]
    assert [sorted(made.x[list(own), 0].tolist()) for own in made.train] == [[0, 3], [1, 4], [2, 5]]
    assert [sorted(made.x[list(own), 0].tolist()) for own in made.test] == [
        *([10, 13], [11, 14], [12, 15])
    ]
    for clients in (0, 4):
        with pytest.raises(DataError, match=f"{clients} clients for 3 groups"):
            cyclic((x, y), (x, y), clients, 1)


def test_smaller_inputs_stand_in_the_first_corner() -> None:
    small = torch.ones(2, 1, 2)
    assert pad_to(small, [1, 2]) is small
    assert pad_to(small, [2, 3])[1].tolist() == [[1, 1, 0], [0, 0, 0]]
    one, two = (
        Federation.from_arrays(np.full((4, width), width, np.float32), [0, 1] * 2, [[0, 1], [2, 3]])
        for width in (2, 3)
    )
    both = side_by_side({"a": one, "b": two})
    assert both.x[0].tolist() == [2, 2, 0] and both.x[4].tolist() == [3, 3, 3]
    assert both.tags["configuration"].tolist() == [0, 0, 1, 1]
    assert both.about["shapes"] == {"a": [2], "b": [3]}
    assert [min(own) >= 4 for own in both.train if len(own)][-2:] == [True, True]
    for federations in ({}, {"a": one, "b": Federation.from_arrays(one.x, [0, 1, 2, 0], [[0, 1]])}):
        with pytest.raises(DataError):
            side_by_side(federations)


@pytest.mark.parametrize("make", [markov, tagged_words])
@pytest.mark.parametrize(("steps", "lengths"), [(1, {1}), (2, {1, 2}), (4, {2, 3, 4})])
def test_sequences_are_at_least_half_full(make: Any, steps: int, lengths: set[int]) -> None:
    pool = make(10, 10, steps=steps)
    scored = pool.y >= 0
    assert set(scored.sum(1).tolist()) == lengths
    assert (scored.int().diff(dim=1) <= 0).all() and (pool.x[~scored] == 0).all()


def test_a_walk_follows_its_own_chain() -> None:
    """The first topic goes one on, the second stays."""
    on, stay = np.roll(np.eye(3), 1, axis=1), np.eye(3)
    topic = np.array([0, 1] * 5)
    tokens = walk(np.random.default_rng(0), np.stack([on, stay]), topic, 4)
    assert tokens.shape == (10, 4) and len(set(tokens[:, 0].tolist())) == 3
    steps = np.diff(tokens, axis=1) % 3
    assert (steps[0::2] == 1).all() and (steps[1::2] == 0).all()


def test_a_stream_has_two_tokens_at_least() -> None:
    x, y = next_token_windows([5, 6], 2, padding=9)
    assert x.tolist() == [[5, 9]] and y.tolist() == [[6, -100]]
    assert next_token_windows([5, 6, 7], 2)[0].tolist() == [[5, 6]]
    for stream in ([5], [[5, 6], [7, 8]]):
        with pytest.raises(DataError, match="a stream of shape"):
            next_token_windows(stream, 2)


def test_groups_that_are_not_unlike_have_one_rule() -> None:
    """Without noise and differences, one set of slopes explains all rows exactly."""
    pool = truck_ranges(6, 8, 3, 2, groups=3, unlike=0.0, noise=0.0)
    _, left, rank, _ = np.linalg.lstsq(pool.x.numpy(), pool.y.numpy())
    assert rank == 3 and left.max() < 1e-8 and pool.y.shape == (48, 2) and pool.classes == 2
    made = diagnoses(6, 8, 3, 2, unlike=0.0, rarity=100.0)
    assert made.y[:, 1].sum() == 0 and 0.35 < made.y[:, 0].mean() < 0.65  # half, and none
