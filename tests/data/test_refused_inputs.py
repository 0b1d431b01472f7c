"""Inputs and labels that hold no number for each place: told by name, alone and among several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION
from fedblocks.data.arrays import as_rows, as_targets, name_targets
from fedblocks.data.sets import hugging_face, parquet
from fedblocks.data.sets.angles import hapt_angle
from fedblocks.data.sets.words import Vocabulary, sequences


class Sparse:
    """As SciPy's matrices look."""

    nnz, shape, dtype, ndim = 1, (2, 2), np.dtype(float), 2

    def __len__(self) -> int:
        return 2

    def toarray(self) -> Any:
        return np.eye(2)


MASKED = np.ma.masked_array(np.ones((2, 2)), np.eye(2, dtype=bool))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (Sparse(), "x is a sparse matrix"),
        (torch.eye(2).to_sparse(), "x is a sparse tensor"),
        ({"a": Sparse(), "b": np.ones((2, 1))}, "a is a sparse matrix"),
        ({"a": np.ones((2, 1)), "b": torch.eye(2).to_sparse()}, "b is a sparse tensor"),
        (MASKED, "x is a masked array"),
        ({"a": MASKED, "b": np.ones((2, 1))}, "a is a masked array"),
        ((np.ones((2, 1)), MASKED, np.ones((2, 1))), "input 1 is a masked array"),
        ([np.ones((2, 1)), np.ones((2, 3)), np.ones((2, 1))], "x is a list of 3 arrays of 2 rows"),
    ],
    ids=range(8),
)
def test_inputs_that_are_no_rows_of_numbers_are_refused_alone_and_among_several(
    x: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        as_rows(x, 2)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.ma.masked_array([1, 0], [True, False]), "y is a masked array"),
        (torch.tensor([1, 0]).to_sparse(), "y is a sparse tensor"),
        (torch.empty(2, device="meta"), "y is on the device meta"),
    ],
    ids=["masked", "sparse", "meta"],
)
def test_labels_that_hold_no_numbers_are_refused(y: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        name_targets(y, CLASSIFICATION)


def test_masked_targets_are_refused_by_themselves() -> None:
    with pytest.raises(DataError, match="y is a masked array"):
        as_targets(np.ma.masked_array([1, 0], [True, False]))


def test_inputs_and_labels_have_as_many_rows_by_every_way_in() -> None:
    x, y = np.ones((3, 1)), np.zeros(4, np.int64)
    with pytest.raises(DataError, match=r"x.*3.*y.*4"):
        fb.Federation.from_arrays(x, y, lambda labels: fb.partitions.iid(labels, clients=2))
    with pytest.raises(DataError, match=r"x.*3.*y.*4"):
        fb.Federation.from_users(x, y, [0, 0, 1, 1])
    for sparse_x, sparse_y, said in [
        (Sparse(), np.zeros(2, np.int64), "x is a sparse matrix"),
        (np.ones((2, 1)), torch.tensor([1, 0]).to_sparse(), "y is a sparse tensor"),
    ]:
        with pytest.raises(DataError, match=said):
            fb.Federation.from_users(sparse_x, sparse_y, [0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hapt_angle(steps=0), "steps"),
        (lambda: hapt_angle(ahead=0), "ahead"),
        (lambda: Vocabulary(("a",), 0), "buckets"),
        (lambda: Vocabulary(("a", "b", "a"), 1), 'the vocabulary names "a" twice'),
        (lambda: Vocabulary.most_frequent([["a"]], 0), "size"),
        (lambda: Vocabulary.most_frequent([[]], 1), "there are no words"),
        (lambda: sequences([[1, 2]], 0), "steps"),
        (lambda: sequences([[1, 2]], 2, 0), "most"),
    ],
)
def test_numbers_that_have_to_be_positive_are_named(make: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make()


def test_packages_of_others_are_asked_for_before_a_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    for module in (hugging_face, parquet):
        monkeypatch.setattr(module, "require_packages", lambda *names: asked.append(names))
        monkeypatch.setattr(module, "refuse_special", lambda path: asked.append(Path(path).name))
    with pytest.raises(DataError, match="is not a folder"):
        hugging_face.load_saved(str(tmp_path / "gone"), "train")
    with pytest.raises(DataError, match="does not exist"):
        parquet._open(str(tmp_path / "gone"))
    assert asked == [
        ("a data set of Hugging Face", "hub", "datasets"), ("a parquet file", "parquet", "pyarrow"),
    ]  # fmt: skip
    for module in (hugging_face, parquet):
        monkeypatch.setattr(module, "import_module", lambda name: None)
    with pytest.raises(DataError, match="is not a saved data set"):
        hugging_face.load_saved(str(tmp_path), "train")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        parquet._open(str(tmp_path))
    assert asked[3] == asked[5] == tmp_path.name


def test_a_parquet_file_with_users_in_other_letters_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet, "column_names", lambda path: ["label", "User", "a"])
    with pytest.raises(DataError, match='has no column "user", but one that is called "User"'):
        parquet.parquet_table("a.parquet")
