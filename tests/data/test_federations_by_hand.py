"""Federations and what they are made of at their edges: nobody, nothing, one row, odd types."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, UserError
from fedblocks.core.task import Task
from fedblocks.data import DATASETS, dataset, storage
from fedblocks.data.array_kinds import as_numpy
from fedblocks.data.arrays import as_rows, as_targets
from fedblocks.data.duplicates import _marks, repeated_tests
from fedblocks.data.federation import Federation
from fedblocks.data.images import bilinear, rotate_images
from fedblocks.data.joining import Parts
from fedblocks.data.partition import deal
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.rows import Rows
from fedblocks.data.shifts import hidden_groups
from fedblocks.data.storage import content_hash, read_arrays
from fedblocks.data.streaming import is_in_file
from fedblocks.data.summary import labels_held, spread
from fedblocks.data.synthetic import next_token_windows
from fedblocks.data.synthetic_tasks import diagnoses, tagged_words, truck_ranges
from fedblocks.data.targets import refuse_partly_known

FOUR = np.arange(8, dtype=np.float32).reshape(4, 2)


def small(**options: Any) -> Federation:
    """Two clients of two rows, all of them trained on."""
    return Federation.from_arrays(FOUR, [0, 1, 0, 1], [[0, 1], [2, 3]], split=(1, 0, 0), **options)


def test_a_file_whose_content_was_changed_is_refused(tmp_path: Path) -> None:
    small().save(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    assert Federation.load(tmp_path / "a.npz").hash() == small().hash()
    arrays["x"] = arrays["x"] + 1
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=r"a\.npz is damaged: its content does not match its hash"):
        Federation.load(tmp_path / "a.npz")


def test_nobody_and_no_rows_can_be_chosen() -> None:
    data = small()
    assert data.inputs([]).shape == (0, 2) and data.train.sizes_of([]).tolist() == []
    assert data.train.sizes_of([1, 0, 1]).tolist() == [2, 2, 2]
    nobody = data.subset([])
    assert (nobody.clients, len(nobody.names), nobody.train.longest) == (0, 0, 0)
    told = nobody.describe()
    assert (told["classes_held_mean"], told["top_share_mean"]) == (0.0, 0.0)
    assert told["train"] == {"total": 0, "min": 0, "median": 0.0, "max": 0}
    assert hidden_groups(0, []).tolist() == []
    assert Rows.of([[1, 2], [0], []]).longest == 2
    assert spread(np.array([4, 1, 9])) == {"total": 14, "min": 1, "median": 4.0, "max": 9}


def test_the_name_that_two_clients_bear_is_told() -> None:
    assert small().check().names[1] == "client-1"
    y, own = torch.tensor([0]), Rows.of([[0]] * 3)
    data = Federation(torch.zeros(1, 1), y, own, own, own, 1, names=("a", "b", "b"))
    with pytest.raises(DataError, match='two clients are called "b"'):
        data.check()


def test_the_last_client_counts_where_it_has_nothing() -> None:
    assert [own.tolist() for own in deal([np.array([7])], np.array([[1, 0]]))] == [[7], []]
    held = labels_held(Rows.of([[0, 1], []]), np.array([3, -100]))
    assert held.classes.tolist() == [1, 0] and held.top_share.tolist() == [1.0, 0.0]
    data = Federation.from_arrays(FOUR, [0, 1, -100, -100], [[0, 1], [2, 3]], split=(1, 0, 0))
    assert '1 client has no known training target: "client-1"' in data.warnings(1)


def test_clients_without_any_rows_are_told_of_as_such() -> None:
    y, none = torch.tensor([0, 0]), Rows.none(2)
    data = Federation(torch.zeros(2, 3), y, none, none, none, 1)
    assert data.warnings() == [
        '2 clients have no training rows: "client-0", "client-1"',
        '2 clients have no test rows: "client-0", "client-1"',
    ]


def test_a_single_row_that_is_trained_and_tested_on_says_nothing() -> None:
    one = Rows.of([[0]])
    data = Federation(torch.zeros(1, 4), torch.tensor([0]), one, Rows.none(1), one, 1)
    assert repeated_tests(data) == ""
    assert _marks(np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]  # rows of no numbers
    assert "1 row is both trained and tested on" in data.warnings()


def test_targets_and_arrays_are_taken_without_their_history() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert as_numpy(tensor).tolist() == [1.0, 1.0]
    assert not as_targets(tensor, Task("regression")).requires_grad
    assert not as_rows(tensor.double()[:, None], 2)[0].requires_grad
    assert as_numpy(torch.ones(1, dtype=torch.bfloat16)).dtype == np.float32
    assert as_numpy(torch.ones(1, dtype=torch.float16)).dtype == np.float16


@pytest.mark.parametrize(
    ("make", "kind", "own"),
    [
        (truck_ranges, "regression", {"unlike": 0.5, "noise": 0.1}),
        (diagnoses, "multi-label", {"unlike": 0.5, "rarity": 1.0}),
        (tagged_words, "sequence-labelling", {"vocabulary_size": 40}),
    ],
)
def test_made_up_data_say_their_task_and_how_they_were_made(
    make: Any, kind: str, own: dict[str, Any]
) -> None:
    pool = make(3, 2, groups=2, seed=5)
    assert pool.task.kind == kind and len(pool.x) == 6 and sorted(pool.topics) in ([0, 0, 1],)
    assert pool.users.tolist() == [0, 0, 1, 1, 2, 2]
    assert {"name": make.__name__, "groups": 2, "seed": 5, **own}.items() <= pool.about.items()


def test_a_function_is_a_data_set_with_the_first_words_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trucks() -> DataPool:
        """
        Trucks of ours.
        """
        raise NotImplementedError

    monkeypatch.setitem(DATASETS, "trucks", trucks)
    assert dataset("trucks") == DataSet("trucks", trucks, None, "features", "Trucks of ours.")
    assert dataset("waves") is DATASETS["waves"]
    with pytest.raises(DataError, match='there is no data set "trucsk"'):
        dataset("trucsk")


def test_sparse_labels_are_refused_for_users_too() -> None:
    matrix: Any = SimpleNamespace(toarray=None, nnz=1)
    for x, y, name in ((FOUR, matrix, "y"), (matrix, [0, 1, 0, 1], "x")):
        with pytest.raises(DataError, match=f"{name} is a sparse matrix"):
            Federation.from_users(x, y, [0, 0, 1, 1])
    with pytest.raises(DataError, match="x has 4 rows and y has 3"):
        Federation.from_arrays(FOUR, [0, 1, 0], [[0, 1, 2]])


def test_clients_bring_rows_of_one_shape_and_type_and_one_label_for_each() -> None:
    one, two = (FOUR.reshape(2, 2, 2), [0, 1]), (np.zeros((2, 3, 2), np.float32), [0, 1])
    long = (np.zeros((2, 2, 2), np.int64), [0, 1])
    for other, message in (
        (two, r"b \(train\): rows are \[3, 2\] torch.float32, elsewhere \[2, 2\] torch.float32"),
        (long, r"b \(train\): rows are \[2, 2\] torch.int64, elsewhere \[2, 2\]"),
        ((one[0], [[0], [1]]), r"b \(train\): rows are"),
        ((one[0], [0]), r"b \(train\): 2 inputs, 1 labels"),
    ):
        with pytest.raises(DataError, match=message):
            Federation.from_parts([Parts(one), Parts(other)], ["a", "b"])
    fields = [Parts(({name: FOUR, "c": FOUR}, [0, 1, 0, 1])) for name in ("a", "b")]
    with pytest.raises(DataError, match="the fields of the inputs differ"):
        Federation.from_parts(fields)


@pytest.mark.parametrize("validation", [None, (FOUR, [0, 1, 0, 1])])
def test_pools_are_called_by_what_they_are_for(validation: Any) -> None:
    train, wrong = (FOUR, [0, 1, 0, 1]), (FOUR, [0, 1, 0])
    parts: Any = [[0, 1], [2, 3]]
    with pytest.raises(DataError, match="test pool: 4 inputs, 3 labels"):
        Federation.from_pools(train, wrong, parts, validation=validation)
    with pytest.raises(DataError, match="validation pool: 4 inputs, 3 labels"):
        Federation.from_pools(train, train, parts, validation=wrong)


def test_words_of_all_clients_are_numbered_by_the_alphabet() -> None:
    words = ["q", "c", "x", "a", "m", "t", "e", "k"]
    both = [Parts((FOUR, words[:4])), Parts((FOUR, words[4:]), test=(FOUR[:1], ["z"]))]
    data = Federation.from_parts(both)
    assert data.about["class_names"] == sorted([*words, "z"]) and data.classes == 9
    assert data.y.tolist() == [5, 1, 7, 0, 4, 6, 2, 3, 8]


def test_an_error_without_words_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    for error, told in ((EOFError(), "EOFError"), (EOFError("cut"), "cut")):
        with monkeypatch.context() as patch:
            patch.setattr(storage.np, "load", lambda *_, e=error, **__: (_ for _ in ()).throw(e))
            with pytest.raises(DataError, match=rf"a\.npz cannot be read as npz: {told}\n"):
                read_arrays(tmp_path / "a.npz")


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def test_arrays_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for members in ({"a": npy([1, 2])}, {"a": npy([1, 2], (2, 0))}, {"a": npy(np.ones((0, 3)))}):
        assert list(read_arrays(npz(path, **members))) == ["a"]
    whole = npy([1, 2])
    for data, told in (
        (whole + b"\0", r"a\.npy says it has shape \[2\], which it has not"),
        (whole[:-1], r"a\.npy says it has shape \[2\], which it has not"),
        (npy(np.array([None])), r"a\.npy holds objects"),
    ):
        with pytest.raises(DataError, match=told):
            read_arrays(npz(path, a=data))


def test_arrays_of_a_file_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_RATIO", 0)
    path, size = npz(tmp_path / "a.npz", a=npy(np.ones(9)), b=npy(np.ones(9))), 2 * (128 + 72)
    monkeypatch.setattr(storage, "LARGE", size)
    assert sorted(read_arrays(path)) == ["a", "b"]
    monkeypatch.setattr(storage, "LARGE", size - 1)
    with pytest.raises(DataError, match=r"has 0\.0 MB and would take 0\.0 GB of memory"):
        read_arrays(path)


def test_content_is_the_same_in_both_orders_of_bytes() -> None:
    little = np.array([1, 2], "<i4")
    assert content_hash(x=little) == content_hash(x=little.astype(">i4"))
    others = {"y": little}, {"x": little.astype("<i8")}, {"x": little[:, None]}, {"x": little + 1}
    assert len({content_hash(**one) for one in ({"x": little}, *others)}) == 5


def test_turns_may_be_negative_or_more_than_whole_and_keep_the_type() -> None:
    image = torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 2, 2)
    left = [[1.0, 3.0], [0.0, 2.0]]  # counter-clockwise
    assert rotate_images(image, 90)[0, 0].tolist() == left
    assert rotate_images(image, 450)[0, 0].tolist() == left
    assert rotate_images(image, -270)[0, 0].tolist() == left
    assert rotate_images(image, -90)[0, 0].tolist() == [[2.0, 0.0], [3.0, 1.0]]
    assert bilinear(image, 90).dtype == torch.float64
    assert torch.allclose(bilinear(image, 90)[0, 0], torch.tensor(left, dtype=torch.float64))


def test_a_picture_of_two_sides_is_scaled_and_a_line_of_bytes_is_not() -> None:
    picture, line = np.full((2, 3, 3), 255, np.uint8), np.full((2, 3), 255, np.uint8)
    packed, fields = as_rows({"picture": picture, "line": line}, 2)
    assert fields is not None
    own = dict(zip(fields.labels, fields.unpack(packed), strict=True))
    assert own["picture"].unique().tolist() == [1.0] and own["line"].unique().tolist() == [255]
    with pytest.warns(UserWarning, match="column 0 of x has values around 1700000000"):
        as_rows(1.7e9 + np.arange(4.0)[:, None] / 100, 4)


def test_only_what_is_still_mapped_is_in_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert is_in_file(mapped) and not is_in_file(mapped + 1)
    assert not is_in_file(SimpleNamespace(filename="x.npy"))


def test_groups_and_tokens_are_whole_numbers_of_any_kind() -> None:
    assert hidden_groups(2, [True, False]).tolist() == [1, 0]
    x, y = next_token_windows(np.array([1, 2, 3], np.int32), 1)
    assert x.dtype == y.dtype == np.int64
    assert next_token_windows([5, 6], 1)[1].tolist() == [[6]]
    with pytest.raises(DataError, match=r"a stream of shape \[1\]"):
        next_token_windows([5], 1)


@pytest.mark.parametrize("kind", ["regression", "sequence-labelling"])
def test_a_loss_is_tried_on_targets_of_the_type_that_it_will_see(kind: str) -> None:
    seen = []

    def whole(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((outputs.dtype, targets.dtype))
        return torch.zeros(len(outputs))

    of_classes = kind != "regression"
    y = torch.tensor([[1, -100]]) if of_classes else torch.tensor([[0.1, torch.nan]]).double()
    data: Any = SimpleNamespace(task=Task(kind, loss=whole), y=y, classes=2)
    with pytest.raises(UserError, match="1 example has targets of which only a part is known"):
        refuse_partly_known(data)
    assert seen[-1] == (torch.float32, torch.int64 if of_classes else torch.float32)
