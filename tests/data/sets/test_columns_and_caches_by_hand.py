"""Columns of other packages, caches and drawn parts, each by a few rows made up by hand."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.partitions import iid
from fedblocks.data.pools import DataPool
from fedblocks.data.sets import cache, cifar, femnist, hugging_face, idx, parkinsons, parquet, stl10
from fedblocks.data.sets.angles import lean
from fedblocks.data.sets.columns import inputs_of
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles
from fedblocks.data.sets.har_groups import sides
from fedblocks.data.sets.signals import Windows
from fedblocks.data.sets.text import choose_users
from fedblocks.data.testbeds import pfedmb
from fedblocks.data.testbeds.users import spread_out


def test_a_table_of_parquet_has_its_columns_and_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    path = str(tmp_path / "t.parquet")
    columns = {"label": [1, 0], "user": ["a", "b"], "x": [0.5, 1.5], "z": [3, 4]}
    write_table(pyarrow.table(columns), path)
    assert parquet.column_names(path) == ["label", "user", "x", "z"]
    read = parquet.read_parquet(path, ["z", "x", "z"])
    assert {name: column.tolist() for name, column in read.items()} == {
        "z": [3, 4],
        "x": [0.5, 1.5],
    }
    pool = parquet.parquet_table(path)
    assert pool.x.tolist() == [[0.5, 3.0], [1.5, 4.0]] and pool.y.tolist() == [1, 0]
    assert pool.users.tolist() == ["a", "b"] and pool.about["columns"] == ["x", "z"]  # type: ignore[union-attr]
    assert pool.about["name"] == "parquet" and pool.about["path"] == path
    alone = parquet.parquet_table(path, "z", "", ("x",), Task("regression"))
    assert alone.users is None and alone.y.tolist() == [[3.0], [4.0]]
    for wrong, message in (("nothing", 'has no column "nothing"'), ("x", "are not whole numbers")):
        with pytest.raises(DataError, match=message):
            parquet.parquet_table(path, wrong)
    with pytest.raises(DataError, match='has no column "who"'):
        parquet.parquet_table(path, user="who")
    with pytest.raises(DataError, match='no column "USER", but one that is called "user"'):
        parquet.parquet_table(path, user="USER")
    write_table(pyarrow.table({"x": pyarrow.array([], pyarrow.int64())}), path)
    with pytest.raises(DataError, match=r"t\.parquet has no rows"):
        parquet.read_parquet(path, ["x"])
    with pytest.raises(DataError, match=r"other\.parquet"):
        parquet.column_names(str(tmp_path / "other.parquet"))


class Value:
    """The feature of a column, as the package datasets says it."""

    def __init__(self, dtype: str = "int64", names: Any = None, feature: Any = None) -> None:
        self.dtype, self.names = dtype, names
        if feature is not None:
            self.feature = feature


def test_names_of_classes_are_those_of_a_label_or_of_its_list() -> None:
    names = Value(names=["no", "yes"])
    data = SimpleNamespace(features={"a": names, "b": Value(feature=names), "c": Value()})
    assert hugging_face._class_names(data, "a") == ["no", "yes"]
    assert hugging_face._class_names(data, "b") == ["no", "yes"]
    assert hugging_face._class_names(data, "c") == hugging_face._class_names(data, "d") == []
    words = SimpleNamespace(features={"a": Value("string"), "b": Value("large_string"), "c": 1})
    assert [hugging_face._is_words(words, name) for name in "abc"] == [True, True, False]


@pytest.mark.parametrize("several", [True, False])
def test_of_a_saved_data_set_with_parts_one_is_taken(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: Any = {"train": "rows"} if several else SimpleNamespace()
    asked: list[Any] = []
    datasets = SimpleNamespace(load_from_disk=lambda path: asked.append(path) or held)
    monkeypatch.setattr(hugging_face, "import_module", lambda name: datasets)
    monkeypatch.setattr(hugging_face, "require_packages", lambda *_: None)
    loaded = hugging_face.load_saved(str(tmp_path), "train")
    assert loaded == ("rows" if several else held) and asked == [str(tmp_path)]
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        hugging_face.load_saved(str(tmp_path / "nowhere"), "train")
    if several:
        with pytest.raises(DataError, match='the data set has no part "tset"'):
            hugging_face.load_saved(str(tmp_path), "tset")
    datasets.load_from_disk = lambda path: 1 / 0
    with pytest.raises(DataError, match="is not a saved data set: division by zero"):
        hugging_face.load_saved(str(tmp_path), "train")


def test_pictures_and_arrays_of_a_data_set_are_stacked() -> None:
    picture = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    rows = [{"p": picture}, {"p": picture}]

    array = SimpleNamespace(with_format=lambda kind: {"numpy": Whole()}[kind])

    class Rows(list[Any]):
        def __init__(self) -> None:
            super().__init__(rows)
            self.features = {"p": type("Image", (), {})(), "a": type("Array2D", (), {})()}

        def select_columns(self, names: list[str]) -> Any:
            return self if names == ["p"] else array

    class Whole:
        def __getitem__(self, which: slice) -> Any:
            assert which == slice(None)
            return {"a": [[[1, 2]]]}

    read = hugging_face.read_data_set(Rows(), ["p", "a"])
    assert read["p"].tolist() == [[[[1, 4]], [[2, 5]], [[3, 6]]]] * 2  # colours first
    assert read["a"].shape == (1, 1, 2) and list(read) == ["p", "a"]
    for wrong, message in ((7, "is not a data set of Hugging Face"), (Stream(), "is a stream")):
        with pytest.raises(DataError, match=message):
            hugging_face.data_set_pool(wrong, hugging_face.Roles("label", "user"))


class Stream:
    column_names, features = (), ()


def test_inputs_are_one_array_features_side_by_side_or_fields() -> None:
    a, b = np.array([1, 2], np.int64), np.array([True, False])
    x, about = inputs_of("t", {"a": a})
    assert x.tolist() == [[1], [2]] and x.dtype == torch.int64 and about == {}
    x, about = inputs_of("t", {"a": a, "b": b})
    assert x.tolist() == [[1, 1], [2, 0]] and x.dtype == torch.float32 and about == {}
    x, about = inputs_of("t", {"a": a, "c": np.zeros((2, 3), np.float32)})
    assert x.shape == (2, 4) and list(about) == ["fields"]
    assert inputs_of("t", {"c": np.zeros((2, 3), np.float32)})[0].shape == (2, 3)


def test_what_was_decoded_once_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path))
    monkeypatch.delenv("FEDBLOCKS_CACHE", raising=False)
    (tmp_path / "a.npz").write_text("x")
    files = FileSet("toy", "home", (FileSource("one", (File("a.npz"),)),))
    calls: list[str] = []
    decode = lambda local: calls.append(local.source.form) or {"x": np.arange(3)}
    for _ in range(2):
        read = cache.cached_arrays(files, decode, part="all")  # type: ignore[arg-type]
        assert isinstance(read["x"], np.memmap) and not read["x"].flags.writeable
    assert calls == ["one"]
    for version, part in ((1, "some"), (2, "all")):  # another choice, another version
        cache.cached_arrays(files, decode, version, part=part)  # type: ignore[arg-type]
    assert calls == ["one"] * 3
    (tmp_path / "a.npz").write_text("xy")  # another file
    cache.cached_arrays(files, decode, part="all")  # type: ignore[arg-type]
    assert calls == ["one"] * 4
    monkeypatch.setenv("FEDBLOCKS_CACHE", str(tmp_path / "a.npz"))
    with pytest.warns(UserWarning, match="the decoded data set is not kept"):
        assert type(cache.cached_arrays(files, decode)["x"]) is np.ndarray  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["digits", "letters"])
def test_every_split_of_emnist_is_kept_apart(split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    arrays = {"x": np.zeros((1, 1, 28, 28), np.uint8), "y": np.zeros(1), "train_rows": np.array(1)}
    monkeypatch.setattr(idx, "cached_arrays", lambda *v, **n: seen.append((v, n)) or arrays)
    pool = idx.emnist(split, "train")
    assert seen == [((idx.emnist_files(split), idx.decode_emnist), {"split": split})]
    assert pool.classes == {"digits": 10, "letters": 26}[split] and pool.about["split"] == split


def test_sheets_of_images_are_taken_by_their_names(tmp_path: Path) -> None:
    def sheet(value: int) -> np.ndarray:
        file = BytesIO()
        Image.fromarray(np.full((32, 32, 3), value, np.uint8)).save(file, "png")
        return np.frombuffer(file.getvalue(), np.uint8)

    held = {"jpg_1": sheet(9), "jpg_0": sheet(5), "y": np.array([3, 4]), "tile": np.array(1)}
    np.savez(tmp_path / "a.npz", **held, n_train=np.array(1), y_coarse=np.array([7, 8]))
    local = LocalFiles(cifar.CIFAR10, FileSource("compact", ()), (tmp_path / "a.npz",))
    read = cifar.decode_mosaics(local)
    assert read["x"][:, 0, 0, 0].tolist() == [5, 9] and read["x"].shape == (2, 3, 32, 32)
    assert read["coarse"].tolist() == [7, 8] and int(read["train_rows"]) == 1


def test_no_acceleration_leans_by_a_quarter_turn() -> None:
    assert lean(np.zeros((1, 3, 2), np.float32)).tolist() == [np.pi / 2]
    assert lean(np.array([[[-2.0], [0], [0]]], np.float32)).tolist() == [np.pi]


def test_a_share_of_the_windows_is_set_aside_where_that_is_more() -> None:
    """Of 8 recordings of a window each; where 3 and 1 are asked for, a quarter of them are 2."""
    cut = Windows(np.zeros((8, 1, 1), np.float32), *np.zeros((2, 8), np.int64), np.arange(8))
    pools: list[Any] = []
    take = lambda pool, count, replace: pools.append(pool.tolist()) or pool[:count]
    in_order: Any = SimpleNamespace(permutation=np.arange, choice=take)
    assert [side.tolist() for side in sides(cut, 0, 3, 1, in_order, ["walks"])] == [[2, 3, 4], [0]]
    assert pools == [[2, 3, 4, 5, 6, 7], [0, 1]]
    for train, test, there in ((5, 5, "3 + 5"), (7, 2, "6 + 2"), (9, 0, "8 + 0")):
        with pytest.raises(DataError) as caught:
            sides(cut, 0, train, test, in_order, ["walks"])
        told = f"walks: {there} windows, where {train} + {test} are needed"
        assert caught.value.message == told


def test_a_quick_trial_keeps_the_rows_that_it_uses_and_no_others() -> None:
    y = torch.tensor([0, 1] * 20)
    pool = DataPool(torch.zeros(40, 1), y, 2, about={"train_rows": 30})
    divide = lambda labels: iid(labels, 2)
    whole = pfedmb.alike_in_all_parts(pool, divide, 3)
    assert len(whole.x) == 40
    assert [rows.sizes.sum() for rows in whole.parts.values()] == [24, 6, 10]  # a fifth of 15 twice
    half = pfedmb.alike_in_all_parts(pool, divide, 3, 0.5)  # 7 and 2 of each class
    assert len(half.x) == sum(rows.sizes.sum() for rows in half.parts.values()) == 2 * (6 + 1 + 2)


def test_some_are_drawn_in_their_order_and_all_where_there_are_no_more() -> None:
    names = [f"u{place}" for place in range(9)][::-1]
    assert choose_users(names, None, 0) == choose_users(names, 9, 0) == sorted(names)
    some = choose_users(names, 4, 0)
    assert len(some) == 4 and some == sorted(some) == choose_users(sorted(names), 4, 0)
    assert spread_out(np.array([5, 6, 7, 8, 9]), 3).tolist() == [5, 7, 9]
    assert spread_out(np.array([5, 6]), 2).tolist() == [5, 6]


def test_a_table_of_voices_may_hold_odd_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [parkinsons.PERSON, *parkinsons.TARGETS, *parkinsons.FEATURES, "caf\xe9"]
    line = ",".join(["1"] * len(names))
    text = f"{','.join(names)}\n{line}\n".encode("latin-1")
    monkeypatch.setattr(parkinsons, "contents", lambda *_: {parkinsons.NAME: text})
    read = parkinsons.read_table(SimpleNamespace())  # type: ignore[arg-type]
    assert read["person"].tolist() == [1] and read["x"].shape == (1, 19)


@pytest.mark.parametrize(
    ("module", "name", "classes", "black"),
    [
        (cifar, "cifar10", 10, [-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010]),
        (cifar, "cifar100", 100, [-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010]),
        (stl10, "stl10", 10, [-0.4467 / 0.2603, -0.4398 / 0.2566, -0.4066 / 0.2713]),
        (femnist, "femnist", 62, [-0.1307 / 0.3081]),
    ],
)
def test_pictures_have_their_classes_and_scale(
    module: Any, name: str, classes: int, black: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"x": np.zeros((3, len(black), 2, 2), np.uint8), "y": np.array([2, 1, 0], np.uint8)}
    arrays = {**held, "train_rows": np.array(2), "coarse": held["y"], "user": np.array(list("abc"))}
    monkeypatch.setattr(module, "cached_arrays", lambda *_: arrays)
    pool = getattr(module, name)("train")
    assert (pool.classes, pool.about["name"], pool.about["part"]) == (classes, name, "train")
    assert pool.y.tolist() == pool.coarse.tolist() == [2, 1] and pool.users.tolist() == ["a", "b"]
    assert pool.x[0, :, 0, 0].tolist() == pytest.approx(black) and len(pool.x) == 2
    assert len(pool.about.get("class_names", [0] * 10)) == 10
    whole = getattr(module, name)()
    assert len(whole.x) == 3 and whole.about["train_rows"] == 2
