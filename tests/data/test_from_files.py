"""Federations from tables, folders, archives and data sets hold the very rows that were there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data.partitions import iid

ALL = (1.0, 0.0, 0.0)
TABLE = "user,age,word,label\nbob,1,2,no\nann,3,4,yes\nbob,5,6,maybe\nann,7,8,no\n"


def rows(federation: Federation, client: int) -> list[tuple[list[float], int]]:
    """Inputs and labels that a client trains on, in the order of the pool."""
    own = sorted(federation.train[client].tolist())
    return [(federation.x[row].flatten().tolist(), int(federation.y[row])) for row in own]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path / "t.csv"


def test_a_table_has_a_client_for_each_user(table: Path) -> None:
    built = Federation.from_csv(table, split=ALL, allow_empty=True)
    assert list(built.names) == ["ann", "bob"] and built.classes == 3
    assert built.about["class_names"] == ["maybe", "no", "yes"]
    assert rows(built, 0) == [([3.0, 4.0], 2), ([7.0, 8.0], 1)]
    assert rows(built, 1) == [([1.0, 2.0], 1), ([5.0, 6.0], 0)]


def test_columns_of_a_table_may_be_chosen_and_renamed(table: Path) -> None:
    table.write_text(TABLE.replace("user", "who").replace("label", "said"))
    options = {"label": "said", "user": "who", "columns": ["word"]}
    built = Federation.from_csv(table, split=ALL, allow_empty=True, **options)  # type: ignore[arg-type]
    assert rows(built, 1) == [([2.0], 1), ([6.0], 0)]


def test_a_partition_takes_the_place_of_users(table: Path) -> None:
    by_three = lambda y: iid(y, 3, seed=1)
    built = Federation.from_csv(table, partition=by_three, split=ALL, allow_empty=True, classes=7)
    assert built.clients == 3 and built.classes == 7
    assert sum(len(rows(built, client)) for client in range(3)) == 4
    table.write_text(TABLE.replace("user", "who"))
    with pytest.raises(DataError, match="nothing says whose each row is: there is no column"):
        Federation.from_csv(table, columns=["age"])


def test_archives_hold_inputs_labels_and_users(tmp_path: Path) -> None:
    x, y = np.arange(8, dtype="float32").reshape(4, 2), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", x=x, y=y, user=np.array([5, 3, 3, 5]), other=y[::-1])
    built = Federation.from_npz(tmp_path / "a.npz", split=ALL, allow_empty=True)
    assert list(map(str, built.names)) == ["3", "5"]
    assert rows(built, 0) == [([2.0, 3.0], 1), ([4.0, 5.0], 1)]
    named = Federation.from_npz(
        tmp_path / "a.npz", y="other", partition=lambda y: iid(y, 1), split=ALL, allow_empty=True
    )
    assert [label for _, label in rows(named, 0)] == y[::-1].tolist()


def test_a_torch_data_set_is_stacked(tmp_path: Path) -> None:
    pairs = [(torch.tensor([float(i), 1.0]), i % 2) for i in range(4)]
    built = Federation.from_torch(pairs, lambda y: iid(y, 1), split=ALL, allow_empty=True)  # type: ignore[arg-type]
    assert rows(built, 0) == [([float(i), 1.0], i % 2) for i in range(4)]


def test_images_of_users_and_classes_are_read_in_their_colours(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install 'fedblocks[images]'")
    for user, label, colour in (("ann", "cat", 255), ("ann", "dog", 51), ("bob", "dog", 102)):
        folder = tmp_path / user / label
        folder.mkdir(parents=True)
        image.new("RGB", (4, 4), (colour, 0, 51)).save(folder / "1.png")
    built = Federation.from_folder(tmp_path, side=2, split=ALL, allow_empty=True)
    assert list(built.names) == ["ann", "bob"] and built.x.shape == (3, 3, 2, 2)
    red = [(x[0], x[4], x[8], y) for x, y in (*rows(built, 0), *rows(built, 1))]
    assert red == [
        pytest.approx(one) for one in ((1.0, 0, 0.2, 0), (0.2, 0, 0.2, 1), (0.4, 0, 0.2, 1))
    ]
