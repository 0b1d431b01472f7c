"""The index of a table of pandas is no input, and a column of users that was named must be there.

Where rows came in order of their labels, an index tells the label: of noise beside it a net was
94 percent right.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data.partitions import iid

pandas = pytest.importorskip("pandas", reason="pip install pandas")
ROWS = 24
NOISE = np.random.default_rng(0).normal(size=ROWS)


def table(index: Any = None) -> Any:
    """Rows in another order than their index, which has that of the labels."""
    order = np.random.default_rng(1).permutation(ROWS)
    columns = {"a": NOISE, "label": np.arange(ROWS) // 12, "user": np.arange(ROWS) % 3}
    return pandas.DataFrame(columns, index=index).iloc[order]


def named(index: Any, name: str) -> Any:
    return pandas.Index(index, name=name)


def read(path: Path, **options: Any) -> tuple[Federation, str]:
    """A federation of a file, and what was warned of."""
    reader = Federation.from_csv if path.suffix == ".csv" else Federation.from_parquet
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        federation = reader(path, **options)
    return federation, " ".join(str(one.message) for one in told)


def parquet(tmp_path: Path, frame: Any, **options: Any) -> Path:
    pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    frame.to_parquet(tmp_path / "t.parquet", **options)
    return tmp_path / "t.parquet"


@pytest.mark.parametrize(
    ("index", "column"),
    [(None, "__index_level_0__"), (np.arange(ROWS) / 9, "__index_level_0__"), ("when", "when")],
)
def test_an_index_in_a_parquet_file_is_left_out_with_a_warning(
    index: Any, column: str, tmp_path: Path
) -> None:
    path = parquet(tmp_path, table(named(range(ROWS), index) if isinstance(index, str) else index))
    federation, told = read(path)
    assert federation.about["columns"] == ["a"] and federation.x.shape == (ROWS, 1)
    assert f'the column "{column}" of {path} is read as the index' in told
    assert "index=False" in told and f'columns=["{column}", ...]' in told
    chosen, told = read(path, columns=["a", column])
    assert chosen.about["columns"] == ["a", column] and not told


def test_an_index_of_several_levels_is_left_out(tmp_path: Path) -> None:
    levels = pandas.MultiIndex.from_arrays([range(ROWS), range(ROWS)], names=["day", None])
    federation, told = read(parquet(tmp_path, table(levels)))
    assert federation.about["columns"] == ["a"] and '"day", "__index_level_1__"' in told


def test_users_or_labels_that_are_an_index_are_users_and_labels(tmp_path: Path) -> None:
    for name in ("user", "label"):
        federation, told = read(parquet(tmp_path, table().set_index(name)))
        assert federation.about["columns"] == ["a"] and federation.clients == 3 and not told


def test_a_parquet_file_without_an_index_is_read_without_a_word(tmp_path: Path) -> None:
    for options in ({}, {"index": False}):
        path = parquet(tmp_path, table().reset_index(drop=True), **options)
        federation, told = read(path)
        assert federation.about["columns"] == ["a"] and not told


def test_a_file_with_nothing_but_an_index_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path, table().drop(columns="a"))
    with pytest.raises(DataError, match=r"no column of inputs but .*the index of pandas"):
        Federation.from_parquet(path)
    assert Federation.from_parquet(path, columns="__index_level_0__").x.shape == (ROWS, 1)


@pytest.mark.parametrize("index", [None, np.arange(ROWS) / 9])
def test_a_column_of_a_csv_file_without_a_name_is_left_out_with_a_warning(
    index: Any, tmp_path: Path
) -> None:
    table(index).to_csv(tmp_path / "t.csv")
    federation, told = read(tmp_path / "t.csv")
    assert federation.about["columns"] == ["a"] and 'the column "" of' in told
    pandas.read_csv(tmp_path / "t.csv").to_csv(tmp_path / "t.csv")  # once more: ",Unnamed: 0,a"
    federation, told = read(tmp_path / "t.csv")
    assert federation.about["columns"] == ["a"] and 'the columns "", "Unnamed: 0" of' in told
    chosen, told = read(tmp_path / "t.csv", columns=["a", "Unnamed: 0"])
    assert chosen.about["columns"] == ["a", "Unnamed: 0"] and not told


def test_a_column_that_is_called_something_like_an_index_is_an_input(tmp_path: Path) -> None:
    names = ["index", "Unnamed", "level_0"]
    frame = table().reset_index(drop=True).assign(**dict.fromkeys(names, 1.0))
    frame.to_csv(tmp_path / "t.csv", index=False)
    federation, told = read(tmp_path / "t.csv")
    assert federation.about["columns"] == ["a", *names] and not told


def test_an_index_in_a_data_set_of_hugging_face_is_left_out_with_a_warning() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install 'fedblocks[hub]'")
    rows = datasets.Dataset.from_pandas(table())
    with pytest.warns(UserWarning, match="__index_level_0__.*left out of the inputs"):
        federation = Federation.from_hf(rows)
    assert federation.about["columns"] == ["a"]
    chosen = Federation.from_hf(rows, columns=["a", "__index_level_0__"])
    assert chosen.x.shape == (ROWS, 2)


def by_two(y: Any) -> Any:
    return iid(y, 2)


@pytest.mark.parametrize("kind", ["csv", "parquet", "hf"])
def test_a_column_of_users_that_was_named_must_be_there_even_with_a_partition(
    kind: str, tmp_path: Path
) -> None:
    frame = table().reset_index(drop=True).rename(columns={"user": "truck"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    readers: dict[str, Any] = {"csv": Federation.from_csv, "parquet": Federation.from_parquet}
    what: Any = tmp_path / "t.csv" if kind == "csv" else None
    if kind == "parquet":
        what = parquet(tmp_path, frame)
    elif kind == "hf":
        datasets = pytest.importorskip("datasets", reason="pip install 'fedblocks[hub]'")
        readers["hf"], what = Federation.from_hf, datasets.Dataset.from_pandas(frame)
    reader = readers[kind]
    with pytest.raises(DataError, match='has no column "truk"') as told:
        reader(what, user="truk", partition=by_two)
    assert 'did you mean "truck"?' in told.value.fix and "user=None" in told.value.fix
    assert reader(what, user="truck", partition=by_two).about["columns"] == ["a"]
    for absent in ({}, {"user": None}):
        assert reader(what, partition=by_two, **absent).about["columns"] == ["a", "truck"]


def test_a_field_of_users_that_was_named_must_be_among_the_items_of_a_torch_data_set() -> None:
    items: Any = [{"a": float(x), "truck": 1, "label": at % 2} for at, x in enumerate(NOISE)]
    with pytest.raises(DataError, match='there is no field "truk"'):
        Federation.from_torch(items, by_two, user="truk")
    assert Federation.from_torch(items, by_two, user="truck").x.shape == (ROWS,)
    assert Federation.from_torch(items, by_two).fields is not None
