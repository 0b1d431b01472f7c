"""Data sets from small files made by hand, each number of which can be followed."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.sets import har, own, tff
from fedblocks.data.sets.columns import Roles, _known, _numbers, _targets, inputs_of
from fedblocks.data.sets.columns import pool_of_columns as pool_of
from fedblocks.data.sets.idx import decode_compact, emnist_files, join_parts, read_idx
from fedblocks.data.sets.realworld import numbers, pauses, together
from fedblocks.data.sets.signals import (
    Recordings,
    Windows,
    channel_statistics,
    parts_by_recording,
    standardise,
    window_pool,
    windows,
)

CLASSES, NUMBERS = Task("classification"), Task("regression")


def local(*paths: Path, **more: Any) -> Any:
    return SimpleNamespace(paths=paths, **more)


def objects(*values: Any) -> Any:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def test_images_are_found_in_order_and_a_folder_called_like_one_is_none(tmp_path: Path) -> None:
    for name in ("b/1.png", "b/0.PNG", "a/z.jpg", "a/notes.txt", "top.png", "a/u/k.gif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "folder.png").mkdir()
    found = [file.relative_to(tmp_path).as_posix() for file in own.image_files(tmp_path)]
    assert found == ["a/z.jpg", "a/u/k.gif", "b/0.PNG", "b/1.png"]
    assert own.class_folders(tmp_path, by_user=False) == ["a", "b"]
    assert own.class_folders(tmp_path, by_user=True) == ["folder.png", "u"]


def table(tmp_path: Path, text: str, **options: Any) -> Any:
    (tmp_path / "t.csv").write_text(text)
    return own.csv_table(str(tmp_path / "t.csv"), **options)


def test_a_table_of_numbers_has_columns_of_targets_and_gaps_in_them(tmp_path: Path) -> None:
    text = "x,user,a,b\n1,u,0.5,?\n2,v,NA,3\n"
    pool = table(tmp_path, text, label=["a", "b"], task=NUMBERS)
    assert pool.y.dtype == torch.float32 and pool.y.isnan().tolist() == [[0, 1], [1, 0]]
    assert pool.y.nan_to_num(9).tolist() == [[0.5, 9], [9, 3]]
    assert pool.classes == 2 and pool.about["class_names"] == ["a", "b"]
    assert pool.about["columns"] == ["x"] and pool.users.tolist() == ["u", "v"]


def test_a_table_of_classes_counts_words_or_the_largest_number(tmp_path: Path) -> None:
    pool = table(tmp_path, "x,z,label\n1,5,0\n2,6,3\n\n", columns=("z",))
    assert pool.classes == 4 and pool.x.tolist() == [[5], [6]] and pool.users is None
    assert table(tmp_path, "x,label\n1,b\n2,a\n2,b\n").classes == 2
    with pytest.raises(DataError, match='no value in column "label", line 3'):
        table(tmp_path, "x,label\n1,b\n2, NaN\n")
    with pytest.raises(DataError, match='no value in column "user", line 2'):
        table(tmp_path, "x,user,label\n1, ,b\n2,u,a\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("x,label\n", "has no rows"),
        ("x;label\n1;2\n", 'seem to be separated by ";"'),
        ("x\tlabel\n1\t2\n", "seem to be separated by tabs"),
        ("x,x,label\n1,1,2\n", 'has two columns "x"'),
        ("x,label\n1,2\n1,2,3\n", "line 3 of .* has 3 fields, and there are 2 column names"),
        ("x,label\n1,2\n1\n", "line 3 of .* has 1 field, and"),
        ("x,User,label\n1,1,2\n", 'no column "user", but one that is called "User"'),
    ],
)
def test_tables_that_are_none_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        table(tmp_path, text)


def test_a_mark_in_the_name_of_one_of_several_columns_is_part_of_it() -> None:
    own.check_header("t", ["a;b", "c"])
    assert own.number(str(own.LARGEST), "c", "t", 2) == own.LARGEST
    for field in ("1e39", "-1e39", "inf"):
        with pytest.raises(DataError, match="line 2 of t, is too large"):
            own.number(field, "c", "t", 2)


def test_columns_are_features_side_by_side_or_one_array_or_fields() -> None:
    one, two = np.array([1, 2, 3]), np.array([4.5, 5.5, 6.5])
    x, fields = inputs_of("t", {"a": one, "b": two})
    assert x.tolist() == [[1, 4.5], [2, 5.5], [3, 6.5]] and fields == {}
    assert inputs_of("t", {"a": one})[0].tolist() == [[1], [2], [3]]
    wide = np.ones((3, 2, 2), np.float32)
    assert inputs_of("t", {"a": wide})[0].shape == (3, 2, 2)
    x, fields = inputs_of("t", {"a": one, "w": wide})
    assert x.shape == (3, 5) and list(fields) == ["fields"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (objects(1, None, 2, None), 'row 1 of "c" in t has no value'),
        (objects(None, None), 'row 0 of "c" in t has no value'),
        (objects("a", "b"), 'the column "c" of t holds words'),
        (objects([1, 2], [3]), 'the rows of "c" in t are of unlike length'),
        (np.array(["2020-01-01"], "datetime64[D]").astype(object), "is not a number"),
    ],
)
def test_columns_that_are_no_numbers_are_refused(column: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _numbers("t", "c", column)


def test_targets_that_are_numbers_stand_side_by_side_and_may_be_missing() -> None:
    y, names = _targets("t", {"a": np.array([1, 2]), "b": objects(0.5, None)}, NUMBERS, ())
    assert y.nan_to_num(9).tolist() == [[1, 0.5], [2, 9]] and names == ["a", "b"]
    y, names = _targets("t", {"a": np.ones((2, 3))}, NUMBERS, ("p", "q", "r"))
    assert y.shape == (2, 3) and names == ["p", "q", "r"]
    with pytest.raises(DataError, match='the label "a" of t holds words'):
        _known("t", "a", objects(1.0, "x"))
    with pytest.raises(DataError, match='no value in column "a", row 1 of t'):
        _targets("t", {"a": objects("x", "", "")}, CLASSES, ())


def test_a_pool_of_columns_has_the_classes_that_it_names_or_counts() -> None:
    columns = {"x": np.arange(3.0), "u": np.array([7, 7, 8]), "y": np.array([0, 2, 0])}
    pool = pool_of("t", columns, Roles("y", "u"), {"name": "t"})
    assert pool.classes == 3 and pool.users is not None and pool.users.tolist() == [7, 7, 8]
    assert pool.about == {"name": "t", "columns": ["x"], "class_names": []}
    assert pool_of("t", columns, Roles("y", "u"), {}, ["a", "b", "c", "d"]).classes == 4
    chosen = pool_of("t", columns, Roles("y", "nobody", ("x",)), {})
    assert chosen.users is None and chosen.x.shape == (3, 1)
    assert pool_of("t", columns, Roles("x", "u", ("y",), NUMBERS), {}).classes == 1
    with pytest.raises(DataError, match="t has no column of inputs"):
        Roles("y", "u").check("t", ["y", "u"])


def labelled(*rows: list[int]) -> Recordings:
    return har.cut_by_labels(np.zeros((30, 6)), {1: (0, 10), 2: (10, 30)}, np.array(rows))


def test_a_labelled_stretch_counts_samples_from_one_within_its_experiment() -> None:
    made = labelled([1, 5, 1, 1, 10], [2, 6, 12, 3, 20])
    assert made.begin.tolist() == [0, 12] and made.end.tolist() == [10, 30]
    assert made.label.tolist() == [0, 11] and made.user.tolist() == [5, 6] and made.hz == 50


@pytest.mark.parametrize(
    "row", [[3, 1, 1, 1, 2], [1, 1, 0, 1, 2], [1, 1, 13, 1, 2], [1, 1, 1, 0, 2], [1, 1, 1, 1, 11]]
)
def test_a_label_outside_of_its_experiment_is_refused(row: list[int]) -> None:
    with pytest.raises(DataError, match="does not fit the signals"):
        labelled([1, 1, 1, 1, 2], row)
    labelled([1, 1, 1, 2, 2])  # a single sample
    with pytest.raises(DataError, match="does not fit the signals"):
        labelled([1, 1, 1, 3, 2])


def test_a_segment_of_the_watch_ends_where_the_next_begins(tmp_path: Path) -> None:
    segment = np.array([2, 2, 1, 1, 1], np.uint8)
    more = {"user": np.array([4, 4, 5, 5, 5], np.int8), "label": np.array([0, 0, 3, 3, 3])}
    np.savez(tmp_path / "w.npz", X=np.zeros((5, 3), np.float32), segment=segment, **more)
    made = har.watch_compact(local(tmp_path / "w.npz"))
    assert made.begin.tolist() == [0, 2] and made.end.tolist() == [2, 5]
    assert made.label.tolist() == [0, 3] and made.user.tolist() == [4, 5] and made.hz == 20
    with pytest.raises(DataError, match="has no array exp"):
        har.compact(local(tmp_path / "w.npz"), "X", "exp", "other")


def test_a_table_of_one_line_is_a_table() -> None:
    assert har.table("t", b"1 2 3\n", 3).tolist() == [[1, 2, 3]]
    with pytest.raises(DataError, match="t has 3 columns, not 2"):
        har.table("t", b"1 2 3\n", 2)


def test_numbers_of_a_message_have_seven_bits_in_a_byte() -> None:
    """300 = 2 * 128 + 44: a byte of 44 with the high bit set, then 2. 127 is one byte, 128 two."""
    assert tff.varint(bytes([9, 128 + 44, 2]), 1) == (300, 3)
    assert tff.varint(bytes([127]), 0) == (127, 1) and tff.varint(bytes([128, 1]), 0) == (128, 2)
    fixed = bytes([1 * 8 + 5]) + b"...." + bytes([1 * 8 + 1]) + b"........" + bytes([8, 1])
    message = fixed + bytes([1 * 8 + 2, 2]) + b"ab" + bytes([2 * 8 + 2, 1]) + b"c"
    assert tff.of(message, 1) == [b"ab"] and tff.of(message, 2) == [b"c"]
    with pytest.raises(IndexError, match="cut short"):
        tff.of(bytes([1 * 8 + 2, 3]) + b"ab", 1)


def test_a_table_of_a_sensor_is_sorted_by_time_and_equal_times_stay() -> None:
    lines = "".join(f"0,{step % 2},{step},0,0\n" for step in range(200))
    made = numbers("t", b"id,attr_time,attr_x,attr_y,attr_z\n" + lines.encode())
    assert made[:, 0].tolist() == [0] * 100 + [1] * 100
    assert made[:, 1].tolist() == [*range(0, 200, 2), *range(1, 200, 2)]
    back = numbers("t", b"attr_time,attr_x,attr_y,attr_z\n5,1,2,3\n4,6,7,8\n")
    assert back.tolist() == [[4, 6, 7, 8], [5, 1, 2, 3]]


def test_a_pause_is_longer_than_a_second() -> None:
    time = np.array([0.0, 500, 1000, 1500, 2000])
    assert pauses(np.array([0.0, 1000, 2000]), time).tolist() == [False] * 5
    assert pauses(np.array([0.0, 1001, 2000]), time).tolist() == [True] * 3 + [False] * 2


def test_two_sensors_share_the_time_of_both_at_fifty_samples_a_second() -> None:
    """From 20 to 100 ms: 20, 40, 60 and 80; the first has x = time, the second 10 * time."""
    first = np.array([[0.0, 0, 1, 2], [100, 100, 1, 2]])
    second = np.array([[20.0, 200, 3, 4], [200, 2000, 3, 4]])
    (run,) = together(first, second)
    assert run.dtype == np.float32 and run[:, 0].tolist() == [20, 40, 60, 80]
    assert run[:, 3].tolist() == pytest.approx([200, 400, 600, 800])
    assert run[0].tolist() == [20, 1, 2, 200, 3, 4]
    assert together(first, second[:0]) == together(first[:0], second) == []


def recordings(*lengths: int, hz: float = 1) -> Recordings:
    """Recordings of one person one after the other, of two activities in turn."""
    end = np.cumsum(lengths)
    signal = np.arange(float(end[-1]), dtype=np.float32)[:, None] * [1, 2]
    label = np.arange(len(lengths)) % 2
    user = np.zeros(len(lengths), np.int64)
    return Recordings(signal, end - lengths, end, label, user, ("a", "b"), hz)


def test_windows_begin_a_rounded_step_after_the_last() -> None:
    """Of 5 samples with half overlap: 2.5, rounded up to 3. Ten samples have windows at 0, 3."""
    cut = windows(recordings(10, 5, 4), 5, 0.5)
    assert cut.x[:, 0, 0].tolist() == [0, 3, 10] and cut.x[1].tolist()[1] == [6, 8, 10, 12, 14]
    assert cut.recording.tolist() == [0, 0, 1] and cut.label.tolist() == [0, 0, 1]
    assert windows(recordings(4), 2, 0.9).x[:, 0, 0].tolist() == [0, 1, 2]  # a step at least


def test_a_recording_without_samples_is_one_stretch() -> None:
    made = recordings(0, 7, hz=2).stretches(2.0)  # of 7 samples, at most 4 each
    assert made.begin.tolist() == [0, 0, 3] and made.end.tolist() == [0, 3, 7]
    assert made.label.tolist() == [0, 1, 1]


def test_channels_are_scaled_by_training_windows_in_double_precision() -> None:
    x = np.array([[[1e8, 1.0, -1e8]], [[9.0, 9, 9]]], np.float32)
    mean, deviation = channel_statistics(x[:1])
    assert mean.tolist() == pytest.approx([1 / 3]) and deviation[0] == pytest.approx(8.16e7, 1e-3)
    flat = standardise(np.array([[[2.0, 2]], [[5, 5]]], np.float32), np.array([True, False]))
    assert flat.tolist() == [[[0, 0]], [[3, 3]]] and flat.dtype == np.float32
    with pytest.raises(DataError, match="there are no training windows"):
        standardise(x, np.array([False, False]))


def test_a_pool_of_windows_says_how_it_was_cut() -> None:
    pool = window_pool(recordings(*[4] * 10), 4, 0.5, np.inf, (0.6, 0.2, 0.2), 3)
    assert pool.about["stretch"] is None and pool.about["split_seed"] == 3
    assert pool.about["split"] == [0.6, 0.2, 0.2] and pool.classes == 2
    assert pool.users is not None and set(pool.users) == {"user-00"}
    nothing = Windows(np.zeros((0, 2, 4), np.float32), *[np.zeros(0, np.int64)] * 3)
    assert parts_by_recording(nothing, (0.6, 0.2, 0.2), 0).tolist() == []
    with pytest.raises(DataError, match="no recording has 5 samples"):
        window_pool(recordings(4, 4), 5, 0.5, np.inf, (0.6, 0.2, 0.2), 0)


def idx(values: Any) -> bytes:
    array = np.array(values, np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_both_parts_of_idx_files_are_one_after_the_other(tmp_path: Path) -> None:
    files = SimpleNamespace(folder="f", home="h")
    images = np.arange(12).reshape(3, 2, 2)
    assert read_idx(idx(images), "i").tolist() == images.tolist()
    parts = [(idx(images[:2]), idx([4, 5])), (idx(images[2:]), idx([6]))]
    joined = join_parts(parts, local(files=files))
    assert joined["x"].tolist() == images[:, None].tolist() and joined["y"].tolist() == [4, 5, 6]
    assert int(joined["train_rows"]) == 2
    for wrong in ((idx(images), idx([1])), (idx([[1]]), idx([1])), (idx(images[:1]), idx([[1]]))):
        with pytest.raises(DataError, match="f: images of shape"):
            join_parts([wrong], local(files=files))
    np.savez(tmp_path / "c.npz", X=images, y=np.arange(3))
    held = decode_compact(local(tmp_path / "c.npz"))
    assert held["x"].shape == (3, 1, 2, 2) and int(held["train_rows"]) == 0 and "user" not in held
    assert [len(emnist_files(split).sources) for split in ("byclass", "digits")] == [4, 3]  # type: ignore[arg-type]
