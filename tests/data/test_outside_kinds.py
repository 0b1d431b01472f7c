"""Data sets of torch and of Hugging Face, by objects that look like theirs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import DataError
from fedblocks.data.sets import hugging_face
from fedblocks.data.sets.columns import Roles
from fedblocks.data.torch_data import stack_dataset


class Named:
    """A feature: what the numbers of a column stand for."""

    def __init__(self, dtype: str = "", names: list[str] | None = None) -> None:
        self.dtype, self.names = dtype, names


class Image(Named): ...


class Array2D(Named): ...


class View:
    """One column of a data set."""

    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values, self.kind = name, values, ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({self.name: value} for value in self.values)

    def with_format(self, kind: str) -> View:
        self.kind = kind
        return self

    def __getitem__(self, rows: slice) -> Any:
        table = {self.name: self.values[rows]}
        return table if self.kind == "numpy" else SimpleNamespace(column=table.__getitem__)


class Fake:
    """As far as a data set of Hugging Face is asked."""

    def __init__(self, columns: dict[str, Any], features: dict[str, Any]) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: features.get(name, Named()) for name in columns}
        self.read: list[str] = []

    def __len__(self) -> int:
        return 3

    def select_columns(self, names: list[str]) -> View:
        self.read += names
        return View(names[0], self.columns[names[0]])


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(hugging_face, "as_column", lambda column: column)
    columns = {
        "note": np.array(["a", "b", "c"], object), "label": np.array([1, 0, 1]),
        "user": np.array([5, 5, 6]), "a": np.array([1.0, 2.0, 3.0]),
        "b": np.array([4.0, 5.0, 6.0]),
    }  # fmt: skip
    return Fake(columns, {"note": Named("string"), "label": Named("int64", ["cat", "dog"])})


def test_columns_of_words_are_left_out_and_only_what_is_used_is_read(data: Fake) -> None:
    pool = hugging_face.data_set_pool(data, Roles("label", "user"), "folder")
    assert pool.x.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]] and pool.y.tolist() == [1, 0, 1]
    assert list(pool.users) == [5, 5, 6] and pool.classes == 2  # type: ignore[arg-type]
    assert pool.about == {
        "name": "hugging_face", "path": "folder", "columns": ["a", "b"],
        "class_names": ["cat", "dog"],
    }  # fmt: skip
    assert data.read == ["label", "user", "a", "b"]
    data.read.clear()
    chosen = hugging_face.data_set_pool(data, Roles("label", "", ("b",)))
    assert data.read == ["label", "b"] and chosen.users is None and "path" not in chosen.about


def test_what_is_no_data_set_is_refused(data: Fake) -> None:
    roles = Roles("label", "user")
    for odd in (3, SimpleNamespace(column_names=[]), SimpleNamespace(features={})):
        with pytest.raises(DataError, match="is not a data set of Hugging Face"):
            hugging_face.data_set_pool(odd, roles)
    with pytest.raises(DataError, match="the data set is a stream"):
        hugging_face.data_set_pool(SimpleNamespace(column_names=[], features={}), roles)
    with pytest.raises(DataError, match='the data set has no column "target"'):
        hugging_face.data_set_pool(data, Roles("target", "user"))
    with pytest.raises(DataError, match='the data set has no part "test"'):
        hugging_face.choose_part({"train": data}, "test")
    assert hugging_face.choose_part({"train": data}, "train") == "train"


def test_pictures_are_channels_of_bytes_and_arrays_stay_as_they_are(data: Fake) -> None:
    red = np.zeros((2, 4, 3), np.uint8)  # [height, width, channels]
    red[..., 0] = 255
    picture = SimpleNamespace(mode="RGB", convert={"RGB": red}.__getitem__)
    data.columns |= {"picture": [picture] * 3, "grid": np.ones((3, 2, 2))}
    data.features |= {"picture": Image(), "grid": Array2D()}
    found = hugging_face.read_data_set(data, ["picture", "grid"])
    assert found["picture"].shape == (3, 3, 2, 4) and found["picture"].flags.c_contiguous
    assert found["picture"][0, :, 0, 0].tolist() == [255, 0, 0]
    assert found["grid"].shape == (3, 2, 2)


def test_names_of_classes_may_stand_inside_a_list() -> None:
    inside = SimpleNamespace(features={"y": SimpleNamespace(feature=Named("", ["a", "b"]))})
    assert hugging_face._class_names(inside, "y") == ["a", "b"]
    assert hugging_face._class_names(inside, "x") == []


def test_a_federation_is_made_of_a_data_set_or_of_a_part_of_several(data: Fake) -> None:
    made = fb.Federation.from_hf(data, split=(1.0, 0.0, 0.0))
    assert [len(rows) for rows in made.train] == [2, 1] and made.classes == 2
    parts = {"train": data, "other": Fake({"label": np.array([0, 1, 1])}, {})}
    part = fb.Federation.from_hf(parts, user="label", label="note", columns="a")
    assert part.clients == 2 and part.x.shape == (3, 1)
    with pytest.raises(DataError, match="no column of inputs"):
        fb.Federation.from_hf(parts, part="other")


ITEMS = [
    {"label": 1, "user": "u", "a": [1.0], "b": 2},
    {"label": 0, "user": "v", "a": [3.0], "b": 4},
]


def test_items_that_are_dictionaries_say_their_label_and_whose_they_are() -> None:
    stacked = stack_dataset(ITEMS, "label", "user")
    assert isinstance(stacked.x, dict) and stacked.x["a"].tolist() == [[1.0], [3.0]]
    assert stacked.x["b"].tolist() == [2, 4] and stacked.y.tolist() == [1, 0]  # type: ignore[union-attr]
    assert list(stacked.users) == ["u", "v"]
    single = stack_dataset([{"label": "x", 7: 1.0}, {"label": "y", 7: 2.0}], "label", "user")
    assert single.x.tolist() == [1.0, 2.0] and single.users is None  # type: ignore[union-attr]
    assert single.y == ["x", "y"]
    numbered = [{"label": 1, "who": torch.tensor(4), "a": 1.0}]
    assert stack_dataset(numbered, "label", "who").users == [4]
    made = fb.Federation.from_torch(ITEMS, split=(1.0, 0.0, 0.0))
    assert made.clients == 2 and made.fields is not None


def test_items_that_are_pairs_may_have_several_inputs() -> None:
    stacked = stack_dataset([((1.0, [2, 3]), 0), ((4.0, [5, 6]), 1)], "label", "user")
    assert [one.tolist() for one in stacked.x] == [[1.0, 4.0], [[2, 3], [5, 6]]]
    assert stacked.users is None
    for data, said in [
        ([], "the data set is empty"),
        ([{"x": 1, "y": 2}], 'the items of the data set have no field "label"'),
        ([{"label": 1, "a": "word", "b": 1}], 'the field "a" of the data set holds words'),
        ([(1.0, 0), ([1.0, 2.0], 1)], "the data set cannot be stacked"),
        ([(1.0, 0, 0)], "the data set cannot be stacked"),
    ]:
        with pytest.raises(DataError, match=said):
            stack_dataset(data, "label", "user")
    with pytest.raises(DataError, match='there is no field "user"'):
        fb.Federation.from_torch([(1.0, 0), (2.0, 1)])


def test_a_saved_data_set_is_read_by_the_roles_of_its_columns(
    data: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(hugging_face, "load_saved", lambda *where: asked.append(where) or data)
    pool = hugging_face.saved_data_set("folder", "user", "label", ("a",), "other")
    assert asked == [("folder", "other")] and pool.y.tolist() == [5, 5, 6]
    assert list(pool.users) == [1, 0, 1] and pool.x.shape == (3, 1)  # type: ignore[arg-type]
    assert pool.about["path"] == "folder"
    made = fb.Federation.from_hf("folder", columns=["b"], part="test")
    assert asked[1] == ("folder", "test") and made.x.tolist() == [[4.0], [5.0], [6.0]]
