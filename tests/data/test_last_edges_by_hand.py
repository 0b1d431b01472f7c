"""Messages and readers that only odd data reach, each by a case made up by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data import targets
from fedblocks.data.federation import Federation
from fedblocks.data.joining import Parts
from fedblocks.data.masked import refuse_masked
from fedblocks.data.rows import Rows
from fedblocks.data.sets import femnist, leaf_text, realworld, wisdm
from fedblocks.data.sets.files import FileSource, LocalFiles, matches
from fedblocks.data.sets.own import csv_table, read_table
from fedblocks.data.streaming import share_file
from fedblocks.data.targets import lost_digits


@pytest.mark.parametrize(
    ("values", "name", "row"),
    [
        (np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]]), "x", 1),
        (np.ma.array([1, 2], mask=[1, 0]), "y", 0),
        ([np.ones(2), np.ma.array([1, 2], mask=[0, 1])], "y", 1),
        (np.ma.array(5, mask=True), "x", 0),
    ],
)
def test_the_first_masked_row_is_told(values: Any, name: str, row: int) -> None:
    refuse_masked(np.ma.array([1, 2], mask=[0, 0]), name)
    with pytest.raises(DataError, match=f"{name} is a masked array, and row {row} of") as caught:
        refuse_masked(values, name)
    fix = f"fill the values ({name}.filled(...)) or remove such rows"
    more = "; a label that is not known is -100, and a number NaN" if name == "y" else ""
    assert caught.value.fix == fix + more


LONG, REAL = torch.zeros(2, dtype=torch.int64), torch.zeros(2)


@pytest.mark.parametrize(
    ("kind", "y", "fix"),
    [
        ("classification", LONG, None), ("classification", LONG[:, None], None),
        ("classification", LONG[:, None, None], "labels are int64, [rows] or [rows, steps]"),
        ("classification", LONG.int(), "labels are int64, [rows] or [rows, steps]"),
        ("classification", REAL,
         'labels are int64, [rows] or [rows, steps]; for numbers say task=Task("regression")'),
        ("sequence-labelling", LONG[:, None], None),
        ("sequence-labelling", LONG, "labels of sequence-labelling are int64, [rows, steps]"),
        ("regression", REAL[:, None], None),
        ("regression", REAL, "targets of regression are numbers, [rows, outputs]"),
        ("multi-label", LONG[:, None], "targets of multi-label are numbers, [rows, outputs]"),
        ("regression", torch.zeros(2, 3), "leave `classes` out"),
    ],
)  # fmt: skip
def test_targets_are_of_the_type_and_shape_of_their_task(
    kind: str, y: torch.Tensor, fix: str | None
) -> None:
    parts: Any = (Rows.of([[0, 1]]), Rows.none(1), Rows.none(1))
    make = lambda: Federation(torch.zeros(2, 1), y, *parts, 1, task=Task(kind))
    if fix is None:
        assert make().clients == 1
        return
    with pytest.raises(DataError) as caught:
        make()
    assert caught.value.fix == fix


def test_fields_of_a_table_are_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    Path(path).write_bytes(b'\xef\xbb\xbf a ,b\r\n"x\r\ny",1\r\n\r\nz,2\r\n')
    assert read_table(path) == (["a", "b"], [["x\r\ny", "1"], ["z", "2"]])
    Path(path).write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataError, match=r"line 3 of .* has 1 field, and there are 2 column names"):
        read_table(path)
    for text, message in (("a,b\n", "has no rows"), ("", "is empty"), ("a;b\n1;2\n", 'by ";"')):
        Path(path).write_text(text)
        with pytest.raises(DataError, match=message):
            read_table(path)


def test_a_table_of_one_column_and_one_row_is_a_pool(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    Path(path).write_text("label,x\n3,0.5\n")
    pool = csv_table(path)
    assert pool.x.tolist() == [[0.5]] and pool.classes == 4 and pool.users is None
    numbers = csv_table(path, "label", task=Task("regression"))
    assert numbers.y.tolist() == [[3.0]] and numbers.y.dtype == torch.float32
    assert numbers.classes == 1 and numbers.about["class_names"] == ["label"]
    Path(path).write_text("label,t,x,user\n3,?,0.5,u\n")
    several = csv_table(path, ("t", "label"), columns=("x",), task=Task("regression"))
    assert several.y[0, 1] == 3 and several.y[0, 0].isnan()
    assert several.users.tolist() == ["u"]  # type: ignore[union-attr]
    for old, message in (("u\n", 'no value in column "user", line 2'), ("3,", "no value in colum")):
        Path(path).write_text("label,t,x,user\n3,1,0.5,u\n".replace(old, old[1:]))
        with pytest.raises(DataError, match=message):
            csv_table(path, "label", columns=("x",))


def test_odd_bytes_spoil_a_record_and_not_the_file(tmp_path: Path) -> None:
    good = b"1,Sitting,1,1,1,1;\n"
    (tmp_path / wisdm.RAW).write_bytes(good * 120 + b"1,S\xffitting,1,1,1,1;\n")
    files = LocalFiles(wisdm.FILES, wisdm.FILES.sources[0], (tmp_path / wisdm.RAW,))
    assert len(wisdm.read_raw(files).signal) == 120


def test_a_user_of_leaf_has_texts_of_both_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"a": ([["x"]], []), "b": ([["y"]], []), "c": ([], []), "d": ([["z"]], [])}
    test = {"a": ([["u"]], []), "b": ([], []), "c": ([["v"]], [])}
    parts: dict[str, Any] = {"train": train, "val": {"a": ([["w"]], [])}, "test": test}
    monkeypatch.setattr(leaf_text, "read_part", lambda local, part: parts[part])
    files: Any = SimpleNamespace(files=leaf_text.REDDIT, paths=[Path("one/train/a.json")])
    texts_of = lambda x, y: x
    read = leaf_text.read_corpus(files, texts_of, None, 0.5, 3)
    assert read.users == ["a"]
    assert (read.train, read.validation, read.test) == ([[["x"]]], [[["w"]]], [[["u"]]])
    assert read.about == {
        "name": "reddit", "source": "LEAF", "users": 1, "seed": 3, "validation": 0.5,
    }  # fmt: skip
    parts["val"], train["a"] = {}, ([["x"], ["y"]], [])
    read = leaf_text.read_corpus(files, texts_of, None, 0.5, 3)
    assert (read.train, read.validation) == ([[["x"]]], [[["y"]]])
    del train["a"]
    with pytest.raises(DataError, match="no user of one has both train and test texts"):
        leaf_text.read_corpus(files, texts_of, None, 0.5, 3)


def test_two_sensors_are_brought_to_one_clock_without_their_pauses() -> None:
    """Every 20 ms from when both are there until one ends; a pause is more than a second."""
    rows = lambda *times: np.array([[time, time, 0, 1] for time in times], np.float64)
    (run,) = realworld.together(rows(0, 100), rows(40, 70, 90))
    assert run[:, 0].tolist() == [40, 60, 80] and run[:, 3].tolist() == [40, 60, 80]
    assert run[:, [1, 2]].tolist() == [[0, 1]] * 3 and run.dtype == np.float32
    assert realworld.together(rows(), rows(1)) == realworld.together(rows(1), rows()) == []
    assert realworld.together(rows(0, 10), rows(20, 30)) == []
    often = rows(0, 500, 1041)
    assert [len(run) for run in realworld.together(rows(0, 20, 1020, 1041), often)] == [53]
    for both in ((rows(0, 20, 1021, 1041), often), (often, rows(0, 20, 1021, 1041))):
        assert [len(run) for run in realworld.together(*both)] == [2, 1]  # 0, 20 and 1,040 ms


def test_a_moment_is_no_pause_also_before_the_first_and_after_the_last_sample() -> None:
    asked = np.array([-5.0, 0, 10, 20, 30])
    assert realworld.pauses(np.array([0.0, 20]), asked).tolist() == [False] * 5
    assert realworld.pauses(np.array([0.0, 1000.5]), asked).tolist() == [True] * 5
    assert realworld.pauses(np.array([0.0]), asked).tolist() == [True] * 5  # nothing follows


def test_files_of_a_family_are_sorted_however_the_disk_lists_them(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b2.txt", "b1.txt", "b3.txt")]
    for path in paths:
        path.touch()
    folder: Any = SimpleNamespace(glob=lambda pattern: paths)
    assert [path.name for path in matches(folder, "b*.txt")] == ["b1.txt", "b2.txt", "b3.txt"]
    assert [path.name for path in matches(folder, "b.txt")] == ["b1.txt"]


def test_a_writer_without_images_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"users": ["w"], "user_data": {"w": {"x": [], "y": []}}}')
    read = femnist.decode(SimpleNamespace(paths=[tmp_path / "a.json"]))  # type: ignore[arg-type]
    assert read["user"].tolist() == [] and read["user"].dtype.kind == "U"
    assert read["x"].shape == (0, 1, 28, 28) and int(read["train_rows"]) == 0


def test_a_second_recording_is_named_by_its_file_or_by_the_archive_around_it() -> None:
    table = b"id,attr_time,attr_x,attr_y,attr_z\n0,1,2,3,4\n"
    names = [
        "proband1/data/acc_walking_csv/acc_walking_waist.csv",
        "proband1/data/gyr_walking_csv/Gyroscope_walking_waist.csv",
        "proband1/data/acc_walking_2_csv.zip/acc_walking_waist.csv",
        "proband2/data/acc_Lying_csv/acc_Lying_3_waist.csv",
        "proband2/data/acc_lying_csv/acc_lying_chest.csv",
        "proband2/data/acc_flying_csv/acc_flying_waist.csv",
    ]
    held = iter([(name, table) for name in names])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realworld, "members", lambda local: held)
        read = realworld.tables(LocalFiles(realworld.FILES, FileSource("csv", ()), ()))
    assert {key: sorted(sensors) for key, sensors in read.items()} == {
        (1, "walking", 1): ["acc", "gyr"], (1, "walking", 2): ["acc"], (2, "lying", 3): ["acc"],
    }  # fmt: skip
    assert read[2, "lying", 3]["acc"].tolist() == [[1, 2, 3, 4]]  # a single row


def test_rows_of_owners_that_are_none_are_nobodys() -> None:
    assert Rows.by_owner([], 2).sizes.tolist() == [0, 0]
    assert [own.tolist() for own in Rows.by_owner([1, -1, 0, 1], 3)] == [[2], [0, 3], []]


@pytest.mark.parametrize("kind", [np.complex64, np.str_])
def test_a_file_is_shared_only_if_it_holds_numbers(kind: Any) -> None:
    with pytest.raises(DataError, match="cannot be inputs or labels"):
        share_file(np.zeros((2, 1), kind))


def test_clients_bring_as_many_targets_for_each_row() -> None:
    x, two = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32)
    task = Task("regression")
    data = Federation.from_parts([Parts((x, two)), Parts((x, two + 1))], task=task)
    assert data.y.tolist() == [[0, 0]] * 2 + [[1, 1]] * 2 and data.classes == 2
    with pytest.raises(DataError, match=r"client-1 \(train\): rows are \[3\]"):
        Federation.from_parts([Parts((x, two)), Parts((x, two[:, :1]))], task=task)


def test_the_largest_label_says_whether_there_are_classes() -> None:
    rows, none = Rows.of([[0, 1]]), Rows.none(1)
    with pytest.raises(DataError, match="classes is 0"):
        Federation(torch.zeros(2, 1), torch.tensor([-1, 0]), rows, none, none, 0)
    with pytest.raises(DataError, match="labels go from -2 to -1"):
        Federation(torch.zeros(2, 1), torch.tensor([-1, -2]), rows, none, none, 0)


def test_digits_are_lost_where_rounding_moves_a_target_by_more_than_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """float16 has no 2049: it is 1 off. The deviation of 2045 and 2049 is 2."""
    y = torch.tensor([[2045.0], [2049.0]], dtype=torch.float64)
    monkeypatch.setattr(targets, "_MOST_LOST", 0.5)
    assert lost_digits(y, torch.float16) == []
    monkeypatch.setattr(targets, "_MOST_LOST", 0.49)
    assert "2 different targets become 2 in float16" in lost_digits(y, torch.float16)[0]
    assert lost_digits(y[1:].repeat(2, 1), torch.float16) == []  # one number says nothing
