"""The published test-beds: counts that the papers imply, golden hashes, and what makes each what it
is.

Labels are made up where only their counts matter, so no files are needed: 0, 1, ..., 9, 0, 1, ...
for CIFAR-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data import DataPool, Federation
from fedblocks.data.testbeds.camera import other_camera
from fedblocks.data.testbeds.fedem import (
    fedem_cifar10,
    fedem_cifar100,
    fedem_emnist,
    fedem_femnist,
    shuffled_split,
)
from fedblocks.data.testbeds.modfl import COMMON, modfl_clients, modfl_images, sample
from fedblocks.data.testbeds.pfedmb import (
    pfedmb_dirichlet,
    pfedmb_pairs,
    pfedmb_twenty_classes,
    pfedmb_two_classes,
)


def made_up(
    classes: int, rows: int = 60_000, train: int = 50_000, name: str = "cifar10"
) -> DataPool:
    """As many rows of every class in the train and in the test part; the input of a row
    is its number.
    """
    y = torch.arange(rows) % classes
    coarse = y.numpy() // 5 if classes == 100 else None
    about = {"name": name, "train_rows": train}
    return DataPool(
        torch.arange(rows, dtype=torch.float32)[:, None], y, classes, coarse=coarse, about=about
    )


TEN, HUNDRED = made_up(10), made_up(100)


def writers() -> DataPool:
    """Writer w of 40 has w rows."""
    users = np.repeat([f"w{number:02d}" for number in range(40)], np.arange(40))
    y = torch.arange(len(users)) % 62
    return DataPool(torch.zeros(len(users), 1), y, 62, users=users)


def held(federation: Federation, part: str) -> np.ndarray:
    """Rows of each class at each client, [clients, classes]."""
    rows, labels = federation.parts[part], federation.y.numpy()
    return np.stack([np.bincount(labels[own], minlength=federation.classes) for own in rows])


GOLDEN: dict[str, tuple[Callable[[], Federation], str]] = {
    "fedem-cifar10": (
        lambda: fedem_cifar10(TEN),
        "e5d880e53695e3bf984f7787e606bf901a7d55569ff726a1fea044b34002e5a5",
    ),
    "fedem-cifar10-tuning": (
        lambda: fedem_cifar10(TEN, validation=0.25),
        "ee4d868d7b1bc70a791845480da565d5b2db154ce57c2d61cc3a69fa7db140b3",
    ),
    "fedem-cifar100": (
        lambda: fedem_cifar100(HUNDRED),
        "0b969f453d46106b0e04a74192ba3d6a759712d43c06eb4c7e362337d087c42a",
    ),
    "fedem-emnist": (
        lambda: fedem_emnist(made_up(62)),
        "65869f803058e06f1125329fdaabd5fbcb81df22b9c777f79297c15dd295f534",
    ),
    "fedem-femnist": (
        lambda: fedem_femnist(writers()),
        "39d90d8bb7520129684c7a93909e7d7319dd617b3e3cb2c3083209370792f2bd",
    ),
    "pfedmb-two-classes-15": (
        lambda: pfedmb_two_classes(TEN, 15),
        "932e8ead116ba8d4ba4532673b59484e41d0ba1209e9de9a12c48c1e04461d7d",
    ),
    "pfedmb-two-classes-50": (
        lambda: pfedmb_two_classes(TEN, 50),
        "092e266a4489ddbf2ae9d68cdd9140a2510b75d1befd10a7d85d51b224f4918c",
    ),
    "pfedmb-dirichlet-15": (
        lambda: pfedmb_dirichlet(TEN, 15),
        "663b79978001e0262c7915e77188449a638685d0370f6e1f1e1a6ec7645ee760",
    ),
    "pfedmb-dirichlet-50": (
        lambda: pfedmb_dirichlet(TEN, 50),
        "2099e3e95261cc7b0caabddbc3268212b641445df48fec8d636c3feba78766e5",
    ),
    "pfedmb-twenty-classes-15": (
        lambda: pfedmb_twenty_classes(HUNDRED, 15),
        "34dd9e191bd6ff472403826c607b4f8c4b727b9de4f7cb32782fdc9619ba47f1",
    ),
    "pfedmb-twenty-classes-50": (
        lambda: pfedmb_twenty_classes(HUNDRED, 50),
        "5d1485e2931106f47ea0f421a2de74e2a3892bcbec00550d0071c3077e05e116",
    ),
    "pfedmb-pairs": (
        lambda: pfedmb_pairs(TEN),
        "535dee45a44537128a23e9a24de20aee984f29fa4b5ed8350559d8e2d19e2cc5",
    ),
    "modfl-3": (
        lambda: modfl_images(TEN, 36, 3),
        "6463330a8d982cf98016d3023680a5b31a68c8e8b6de2de712509fb0d062ed9d",
    ),
    "modfl-6": (
        lambda: modfl_images(TEN, 36, 6),
        "a80182a1d1a3730d314ab92cabe3daa264e85db42bd9ccf126426f824688f23a",
    ),
    "modfl-9": (
        lambda: modfl_images(TEN, 36, 9),
        "fca8b05b83ade95c2d6a7a65ac59a462e19d2d10a8a7ff822c0d2c5fabcd40de",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_test_bed_is_the_same_on_every_machine_and_overlaps_nowhere(name: str) -> None:
    make, golden = GOLDEN[name]
    federation = make()
    assert federation.about["partition_hash"] == golden
    rows = np.concatenate([part.index for part in federation.parts.values()])
    assert len(np.unique(rows)) == len(rows)


def test_cifar10_of_fedem_has_the_published_groups_and_sizes() -> None:
    # computed with the published code: K = 3 groups, N = 80, alpha = .4, seed 12345
    federation = fedem_cifar10(TEN)
    sizes = federation.train.sizes + federation.test.sizes
    assert federation.about["partition"]["label_groups"] == [[8, 7, 3], [5, 1, 2], [9, 4, 0, 6]]
    assert sizes[:10].tolist() == [1033, 511, 1855, 1748, 207, 416, 360, 47, 329, 1382]
    assert (sizes.min(), np.median(sizes), sizes.max(), sizes.sum(), (sizes < 128).sum()) == (
        8,
        532,
        2470,
        60_000,
        10,
    )
    assert federation.train.sizes.tolist() == [math.floor(0.8 * size) for size in sizes]


def test_the_split_of_fedem_is_that_of_scikit_learn() -> None:
    # sklearn.model_selection.train_test_split(range(10), train_size=.8, random_state=12345): it
    # permutes with numpy's legacy generator, takes the first 2 for testing and the next 8 for
    # training
    order = np.random.RandomState(12345).permutation(10)
    train, test = shuffled_split(np.arange(10), 0.8, 12345)
    assert test.tolist() == order[:2].tolist() and train.tolist() == order[2:].tolist()
    assert [len(part) for part in shuffled_split(np.arange(1), 0.8, 12345)] == [1, 0]


def test_validation_for_tuning_is_a_quarter_of_the_training_rows() -> None:
    plain, tuning = fedem_cifar10(TEN), fedem_cifar10(TEN, validation=0.25)
    assert np.array_equal(plain.test.index, tuning.test.index)
    assert np.array_equal(tuning.train.sizes, np.floor(0.75 * plain.train.sizes))
    assert np.array_equal(tuning.train.sizes + tuning.validation.sizes, plain.train.sizes)
    with pytest.raises(DataError, match="validation = 1: must be"):
        fedem_cifar10(TEN, validation=1)


def test_emnist_of_fedem_uses_a_tenth_of_the_rows() -> None:
    federation = fedem_emnist(made_up(62, 81_425, 70_000))
    assert (
        federation.clients == 100
        and federation.train.sizes.sum() + federation.test.sizes.sum() == 8142
    )
    assert len(federation.x) == 8142  # rows that nobody holds do not travel along


def test_cifar100_of_fedem_gives_everybody_600_rows_of_few_coarse_labels() -> None:
    federation = fedem_cifar100(HUNDRED)
    assert (
        federation.clients == 100
        and set(federation.train.sizes) == {480}
        and set(federation.test.sizes) == {120}
    )
    coarse = held(federation, "train").reshape(100, 20, 5).sum(2) / 480
    # three of twenty coarse labels: .15 if rows were alike
    assert np.sort(coarse, 1)[:, -3:].sum(1).mean() > 0.4
    with pytest.raises(DataError, match="coarse labels"):
        fedem_cifar100(TEN)


def test_femnist_of_fedem_takes_some_writers_who_have_more_than_two_images() -> None:
    federation = fedem_femnist(writers())
    assert federation.clients == 5  # int(.15 x 37 writers with 3 to 39 images)
    for name, train, test in zip(federation.names, federation.train.sizes, federation.test.sizes):
        assert train == math.floor(0.8 * int(name[1:])) and train + test == int(name[1:]) > 2
    with pytest.raises(DataError, match="nobody"):
        fedem_femnist(writers(), share=0.01)
    with pytest.raises(DataError, match="writer"):
        fedem_femnist(TEN)


@pytest.mark.parametrize(("clients", "train", "test"), [(15, 2666, 666), (50, 800, 200)])
def test_two_classes_of_pfedmb_are_equal_in_size_and_in_all_parts(
    clients: int, train: int, test: int
) -> None:
    federation = pfedmb_two_classes(TEN, clients)
    assert set(federation.train.sizes) == {train}
    assert set(federation.validation.sizes) == set(federation.test.sizes) == {test}
    own = held(federation, "train")
    assert ((own > 0).sum(1) == 2).all() and ((own > 0).sum(0) == 2 * clients // 10).all()
    for part in ("validation", "test"):
        assert np.array_equal(held(federation, part) * (train // 2) // (test // 2) > 0, own > 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pfedmb_dirichlet(TEN, 50),
        lambda: pfedmb_twenty_classes(HUNDRED, 50),
        lambda: pfedmb_pairs(TEN),
    ],
)
def test_shares_of_pfedmb_are_the_same_in_train_validation_and_test(
    make: Callable[[], Federation],
) -> None:
    federation = make()
    train = held(federation, "train")
    classes = train.shape[1]
    # a class has a quarter of its training rows here; cuts may lose one row
    for part in ("validation", "test"):
        assert np.abs(held(federation, part) - train / 4).max() <= 1, part
    assert federation.train.index.max() < 50_000 <= federation.test.index.min()
    assert train.sum(0).max() == 40_000 / classes


def test_dirichlet_clients_of_pfedmb_all_have_ten_rows_and_a_test_row() -> None:
    federation = pfedmb_dirichlet(TEN, 50)
    assert federation.train.sizes.min() >= 10 and federation.test.sizes.min() >= 1
    with pytest.raises(DataError, match="a test row"):
        pfedmb_dirichlet(made_up(10, 2000, 1990), clients=15, tries=3)


def test_twenty_classes_of_pfedmb_differ_in_size() -> None:
    own = held(pfedmb_twenty_classes(HUNDRED, 15), "train")
    assert ((own > 0).sum(1) == 20).all() and len(np.unique(own.sum(1))) > 10


def test_pairs_of_pfedmb_hold_halves_of_two_classes() -> None:
    own = held(pfedmb_pairs(TEN), "train")
    assert np.array_equal(own, np.kron(np.eye(5, dtype=int), np.full((2, 2), 2000)))


def test_pfedmb_needs_both_official_parts() -> None:
    with pytest.raises(DataError, match='part = "all"'):
        pfedmb_pairs(made_up(10, 100, 0))


@pytest.mark.parametrize(
    ("per_group", "train", "test", "total"),
    [(3, 243, 81, 2916), (6, 240, 78, 2808), (9, 243, 81, 2916)],
)
def test_images_of_modfl_have_the_published_test_totals(
    per_group: int, train: int, test: int, total: int
) -> None:
    federation = modfl_images(TEN, 36, per_group)
    assert set(federation.train.sizes) == {train} and set(federation.test.sizes) == {test}
    assert federation.test.sizes.sum() == total and federation.classes == 9
    own = held(federation, "train") > 0
    groups = {
        group: own[federation.tags["operation"] == group] for group in federation.tags["operation"]
    }
    assert all((members == members[0]).all() for members in groups.values())
    # how many groups use each label
    used = np.stack([members[0] for members in groups.values()]).sum(0)
    assert (used == per_group).all() if per_group < 9 else len(groups) == 1


@pytest.mark.parametrize(("clients", "train", "test"), [(18, 486, 162), (9, 975, 324)])
def test_fewer_clients_of_modfl_have_more_each(clients: int, train: int, test: int) -> None:
    # per label and data set 975 / 325 rows over per_group x clients / 9 holders: 162 / 54 and 325 /
    # 108 each
    federation = modfl_images(TEN, clients, 3)
    assert set(federation.train.sizes) == {train} and set(federation.test.sizes) == {test}


def test_signals_of_modfl_would_have_the_published_totals_on_the_same_circle() -> None:
    # 200 training and 50 test windows of five activities over 20 clients; here 3/4 of 200 and 50 of
    # 200
    pool = DataPool(torch.zeros(1000, 1), torch.arange(5).repeat_interleave(200), 5)
    assert [
        int(modfl_clients(pool, 20, per_group).test.sizes.sum()) for per_group in (2, 4, 5)
    ] == [240, 240, 200]


def test_the_nine_common_classes_are_the_same_things() -> None:
    from fedblocks.data.sets import cifar, stl10

    names = [
        [every[label] for label in COMMON[name]]
        for name, every in (("cifar10", cifar.NAMES), ("stl10", stl10.NAMES))
    ]
    assert (
        names[0] == [name.replace("car", "automobile") for name in names[1]] and len(names[0]) == 9
    )


def test_rows_that_are_skipped_are_those_that_another_data_set_uses() -> None:
    first, second = sample(TEN, (3, 5), 100), sample(TEN, (3, 5), 100, skip=100)
    assert not set(first.x.flatten().tolist()) & set(second.x.flatten().tolist())
    assert ((first.x.flatten() % 10).tolist(), first.y.tolist()) == (
        [3] * 100 + [5] * 100,
        [0] * 100 + [1] * 100,
    )
    assert (
        first.about["sample_hash"]
        == "2a26c425d5e6b7e371de973825afeb10fe56abc819e51089473380d8cbaaa536"
        != second.about["sample_hash"]
    )
    with pytest.raises(DataError, match="label 3 has fewer than 6100"):
        sample(TEN, (3,), 100, skip=6000)


def test_modfl_needs_known_classes_and_a_whole_number_of_clients_per_group() -> None:
    with pytest.raises(DataError, match="use cifar10 or stl10"):
        modfl_images(made_up(10, name="digits"))
    with pytest.raises(DataError, match="multiple of 9"):
        modfl_images(TEN, 20)


def test_another_camera_sees_larger_warmer_softer_noisier_images() -> None:
    checks = (torch.arange(8)[:, None] + torch.arange(8)) % 2  # [height, width]
    pool = DataPool(
        checks.float().expand(4, 3, 8, 8).clone(),
        torch.zeros(4, dtype=torch.int64),
        1,
        about={"name": "c"},
    )
    seen = other_camera(pool, side=24, blur=3.0, noise=0.1)
    assert seen.x.shape == (4, 3, 24, 24) and seen.about["name"] == "c_other_camera"
    red, green, blue = seen.x.mean((0, 2, 3)).tolist()
    assert red == pytest.approx(0.5 * 1.15, abs=0.02) and green == pytest.approx(0.5, abs=0.02)
    assert blue == pytest.approx(0.4, abs=0.02)
    # the checks are blurred away
    assert other_camera(pool, 24, 3.0, 0.0).x.std() < 0.2 < pool.x.std()
    difference = seen.x - other_camera(pool, 24, 3.0, 0.0).x
    assert difference.std() == pytest.approx(0.1, rel=0.05)
    assert torch.equal(other_camera(pool, 24).x, other_camera(pool, 24).x)
