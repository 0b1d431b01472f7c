"""Pools of images and of divided rows, and the order of rows, by cases computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.rows import Rows
from fedblocks.data.sets import pixels
from fedblocks.data.sets.divided import DividedPool, pack, unpack
from fedblocks.data.sets.har_groups import har_groups, sides
from fedblocks.data.sets.signals import Recordings, Windows
from fedblocks.data.splits import part_sizes, split_rows_stratified


def test_rows_of_an_owner_stay_in_their_order() -> None:
    owners = np.arange(300) % 3 - 1  # -1: nobody
    rows = Rows.by_owner(owners, 3)
    assert rows[0].tolist() == [*range(1, 300, 3)] and rows[1].tolist() == [*range(2, 300, 3)]
    assert rows.sizes.tolist() == [100, 100, 0]


def test_two_rows_are_enough_to_train_and_test() -> None:
    train, validation = part_sizes(np.array([0, 1, 2, 3, 10]), (0.6, 0.2, 0.2))
    assert train.tolist() == [0, 1, 1, 2, 6] and validation.tolist() == [0, 0, 0, 0, 2]
    train, validation = part_sizes(np.array([1, 2, 10]), (0.5, 0.5, 0.0))
    assert train.tolist() == [1, 1, 5] and validation.tolist() == [0, 1, 5]
    for split in ((0.5, 0.5), (0.0, 0.5, 0.5), (0.5, 0.6, -0.1), (0.5, 0.2, 0.2)):
        with pytest.raises(DataError, match="not three shares that add up to 1"):
            part_sizes(np.array([3]), split)  # type: ignore[arg-type]


def test_a_stratified_split_has_every_label_of_every_client_in_its_share() -> None:
    labels = np.arange(60) % 3
    held = Rows.of([np.arange(30), np.arange(30, 60)])
    parts = split_rows_stratified(held, labels, (0.6, 0.2, 0.2), 0)
    for rows, each in zip(parts, (6, 2, 2)):
        for own in rows:
            assert np.abs(np.bincount(labels[own], minlength=3) - each).max() <= 1


@pytest.mark.parametrize("stretch", [1, 2, 3, 2048])
def test_pixels_are_scaled_a_stretch_at_a_time(
    stretch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of channels 51 and 102, which are 0.2 and 0.4: (0.2 - 0.1) / 0.5 and (0.4 - 0.2) / 0.25."""
    monkeypatch.setattr(pixels, "STRETCH", stretch)
    images = np.zeros((5, 2, 1, 1), np.uint8)
    images[1:4] = np.array([51, 102], np.uint8).reshape(2, 1, 1)
    np.save(tmp_path / "x.npy", images)
    for stored in (images, np.load(tmp_path / "x.npy", mmap_mode="r")):
        made = pixels.normalise(stored, (0.1, 0.2), (0.5, 0.25), slice(1, 4))
        assert made.dtype == torch.float32 and made.shape == (3, 2, 1, 1)
        assert made[:, 0].flatten().tolist() == pytest.approx([0.2] * 3)
        assert made[:, 1].flatten().tolist() == pytest.approx([0.8] * 3)
    assert images[1, 0, 0, 0] == 51  # as it was


@pytest.mark.parametrize(
    ("part", "labels", "train_rows"),
    [("all", [0, 1, 2], 2), ("train", [0, 1], 2), ("test", [2], 0)],
)
def test_an_official_part_has_its_rows_and_says_how_many_train(
    part: Any, labels: list[int], train_rows: int
) -> None:
    arrays = {
        "x": np.zeros((3, 1, 1, 1), np.uint8),
        "y": np.arange(3, dtype=np.uint8),
        "train_rows": np.array(2),
    }
    pool = pixels.pool_of(arrays, part, (0.0,), (1.0,), 3, {"name": "n"})
    assert pool.y.tolist() == labels and pool.y.dtype == torch.int64
    assert pool.about == {"name": "n", "part": part, "train_rows": train_rows}
    assert pool.users is None and pool.coarse is None
    more = {"user": np.array([7, 8, 9]), "coarse": np.array([1, 1, 0], np.uint8)}
    pool = pixels.pool_of({**arrays, **more}, part, (0.0,), (1.0,), 3, {})
    assert pool.users is not None and pool.users.tolist() == [7 + label for label in labels]
    assert pool.coarse is not None and pool.coarse.dtype == np.int64


def test_bytes_are_a_whole_number_of_records() -> None:
    assert pixels.square(b"h123456", (3,), "f", 1).tolist() == [[49, 50, 51], [52, 53, 54]]
    for raw, held in ((b"h12345", 5), (b"h", 0)):
        with pytest.raises(DataError, match=f"f holds {held} bytes, not a whole number of 3"):
            pixels.square(raw, (3,), "f", 1)


def divided(x: torch.Tensor) -> DividedPool:
    return DividedPool(
        x=x,
        y=torch.tensor([0, 1, -100, 1]),
        classes=2,
        users=np.array(["v", "u", "v", "u"]),
        about={"name": "n"},
        part=np.array([0, 0, 2, 1]),
    )


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_a_divided_pool_comes_back_from_its_arrays(kind: torch.dtype) -> None:
    pool = divided(torch.tensor([[1], [2], [3], [4]]).to(kind))
    arrays = pack(pool)
    assert arrays["y"].dtype == np.int32 and arrays["part"].dtype == np.int8
    for array in arrays.values():
        array.flags.writeable = False
    back = unpack(arrays)
    assert back.x.dtype == kind and back.x.tolist() == pool.x.tolist()
    assert back.y.dtype == torch.int64 and back.y.tolist() == [0, 1, -100, 1]
    assert back.users is not None and back.users.tolist() == ["v", "u", "v", "u"]
    assert back.part.dtype == np.int64 and back.part.tolist() == [0, 0, 2, 1]
    assert back.classes == 2 and back.about == {"name": "n"}
    back.x[0] = 9  # a copy, which may be written to


def test_a_divided_pool_has_a_client_for_each_user_in_the_order_of_names() -> None:
    made = divided(torch.ones(4, 1)).federation()
    assert [*made.names] == ["u", "v"] and [own.tolist() for own in made.train] == [[1], [0]]
    assert [own.tolist() for own in made.validation] == [[3], []]
    assert [own.tolist() for own in made.test] == [[], [2]]
    assert made.about == {"name": "n", "partition": {"partition": "by_user"}}
    with pytest.raises(DataError, match="needs a user and a part for every row"):
        DividedPool(torch.ones(2, 1), torch.zeros(2), 1, users=np.array([1, 2]))


def test_windows_of_an_activity_are_taken_from_recordings_of_their_own() -> None:
    """Ten recordings of one window each, and another activity that is no matter."""
    label = np.array([0] * 10 + [1] * 5)
    cut = Windows(np.zeros((15, 1, 1)), label, np.zeros(15, np.int64), np.arange(15))
    train, test = sides(cut, 0, 4, 1, np.random.default_rng(0), ["a", "b"])
    assert len(set(train.tolist())) == 4 and len(test) == 1
    assert train.tolist() == sorted(train.tolist())
    assert not {*train.tolist()} & {*test.tolist()} and max(*train, *test) < 10
    train, test = sides(cut, 0, 8, 2, np.random.default_rng(0), ["a", "b"])
    assert len(train) == 8 and len(test) == 2 and test.tolist() == sorted(test.tolist())


def test_groups_of_activities_are_scaled_by_what_trains() -> None:
    rng = np.random.default_rng(0)
    signal = rng.normal(5, 3, (80, 2)).astype(np.float32)
    begin = np.arange(0, 80, 4)
    label, user = np.arange(20) % 2, np.zeros(20, np.int64)
    recordings = Recordings(signal, begin, begin + 4, label, user, ("a", "b"), 1, {"name": "n"})
    names = {"b": ["b"], "a": ["a"]}
    made = har_groups(
        recordings, 4, clients=2, per_group=1, activities=names, per_label=10, test=0.3
    )
    assert made.train.sizes.tolist() == [7, 7] and made.test.sizes.tolist() == [3, 3]
    trained = made.x.numpy()[made.train.index]
    assert trained.mean((0, 2)) == pytest.approx([0, 0], abs=1e-5)
    assert trained.std((0, 2)) == pytest.approx([1, 1], abs=1e-5)
    assert made.about["activities"] == ["b", "a"] and made.about["name"] == "n"
    assert {key: made.about[key] for key in ("steps", "overlap", "per_label", "test")} == {
        **{"steps": 4, "overlap": 0.5, "per_label": 10, "test": 0.3}
    }
