"""Data of one's own: images by class, and tables with a user column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data import dataset
from fedblocks.data.sets.own import csv_table, image_folder


def test_a_folder_of_images_by_class_becomes_a_pool(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install 'fedblocks[images]'")
    for name, colour in [("dog", (255, 0, 51)), ("cat", (0, 102, 0))]:
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 3), colour).save(tmp_path / name / "one.png")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    pool = image_folder(str(tmp_path))
    assert (
        pool.x.shape == (2, 3, 3, 4)
        and pool.y.tolist() == [0, 1]
        and pool.about["class_names"] == ["cat", "dog"]
    )
    np.testing.assert_allclose(pool.x[:, :, 0, 0], [[0, 0.4, 0], [1, 0, 0.2]], atol=1e-6)
    Image.new("L", (8, 8)).save(tmp_path / "cat" / "two.png")
    with pytest.raises(DataError, match="another size"):
        image_folder(str(tmp_path))
    assert image_folder(str(tmp_path), side=6).x.shape == (3, 3, 6, 6)


def test_a_folder_without_images_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="needs Pillow: pip install 'fedblocks[images]'")
    with pytest.raises(DataError, match="no images by class"):
        image_folder(str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"x\.png is not an image"):
        image_folder(str(tmp_path))


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_table_has_features_labels_and_users(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "user,height,label,weight\nann,1.5,tall,60\nbob,2,short,70.5\nann,1,tall,50\n",
    )
    pool = dataset("csv").load(path)
    assert (
        pool.x.tolist() == [[1.5, 60], [2, 70.5], [1, 50]]
        and pool.y.tolist() == [1, 0, 1]
        and pool.classes == 2
    )
    assert pool.users.tolist() == ["ann", "bob", "ann"] and pool.about["class_names"] == [
        "short",
        "tall",
    ]
    assert csv_table(path, columns=("weight",)).x.tolist() == [[60], [70.5], [50]]


def test_whole_numbers_stay_labels_and_a_table_may_lack_users(tmp_path: Path) -> None:
    pool = csv_table(write(tmp_path / "t.csv", "x,label\n1,4\n2,0\n"))
    assert pool.y.tolist() == [4, 0] and pool.classes == 5 and pool.users is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n", 'no column "label"'),
        ("x,label\n", "no rows"),
        ("", "is empty"),
        ("x,label\n1,2\n3\n", "line 3"),
        ("x,label\n1,2\nhello,2\n", '"hello" in column "x", line 3'),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        csv_table(write(tmp_path / "t.csv", text))


def test_a_table_that_is_not_there_says_so() -> None:
    with pytest.raises(DataError, match="does not exist"):
        csv_table("/nowhere/t.csv")
