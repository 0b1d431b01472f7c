"""Where files are looked for and how they are read, each by a few bytes made up by hand."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.data.sets import cache, cifar, femnist, har, parkinsons, stl10
from fedblocks.data.sets.columns import Roles, _numbers
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.cyclic import side_by_side
from fedblocks.data.sets.files import (
    File,
    FileSet,
    FileSource,
    LocalFiles,
    find,
    look,
    matches,
    roots,
    verify_file,
    wanted,
)
from fedblocks.data.sets.own import csv_table
from fedblocks.data.sets.own_texts import text_table
from fedblocks.data.sets.wisdm import parts_in_order
from fedblocks.data.testbeds.camera import blur_images

TOY = FileSet("toy", "home", (FileSource("one", (File("a.bin"), File("b*.txt"))),))


def local(form: str, *paths: Path) -> LocalFiles:
    return LocalFiles(TOY, FileSource(form, ()), paths)


def test_folders_of_data_sets_are_separated_as_those_of_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBLOCKS_DATA", f"{os.pathsep}{tmp_path}{os.pathsep}~/x{os.pathsep}")
    assert roots() == (tmp_path, Path.home() / "x")
    monkeypatch.setenv("FEDBLOCKS_DATA", "")
    assert roots() == (Path.home() / "fedblocks-data",)
    assert "(or set FEDBLOCKS_DATA to the folder" in wanted(TOY)
    monkeypatch.setenv("FEDBLOCKS_CACHE", "~/kept")
    assert cache.cache_folder() == Path.home() / "kept"
    monkeypatch.setenv("FEDBLOCKS_CACHE", "")
    assert cache.cache_folder() == Path.home() / "fedblocks-data" / ".cache"


def test_all_files_of_a_source_are_there_or_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path))
    folder = tmp_path / "toy" / "deep"
    (tmp_path / "toy" / "a.bin" / "inside").mkdir(parents=True)  # a folder is no file
    for name in ("b2.txt", "a.bin"):
        assert look(TOY) is None
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    found = find(TOY)
    assert [path.name for path in found.paths] == ["a.bin", "b2.txt"]
    (folder / "b1.txt").write_text("x")
    assert [path.name for path in find(TOY).paths] == ["a.bin", "b1.txt", "b2.txt"]
    (folder / "a.bin").unlink()
    assert matches(tmp_path / "toy", "a.bin") == []
    with pytest.raises(DataError, match=f'the files of the data set "toy" are not in {tmp_path}'):
        find(TOY)


def test_a_single_file_may_stand_beside_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path))
    for name, size, alone in (("a.npz", 7, True), ("deep/a.npz", None, False), ("a*", None, False)):
        files = FileSet("toy", "home", (FileSource("compact", (File(name, size),)),))
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1234567")
        assert (look(files) is not None) is alone
    assert wanted(FileSet("toy", "h", (FileSource("c", (File("a", 1234), File("b"))),))) == (
        f"put the files of one of these lines into {tmp_path / 'toy'}; see h\n"
        "    c: a (1,234 bytes), b"
    )


@pytest.mark.parametrize(("size", "told"), [(2, "too long"), (3, ""), (4, "cut short")])
def test_a_file_has_just_its_size(size: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    if not told:
        verify_file(tmp_path / "a", File("a", size), "home")
        return
    with pytest.raises(DataError, match=f"is {told}: 3 of {size} bytes"):
        verify_file(tmp_path / "a", File("a", size), "home")


def test_members_of_archives_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "x" / "sub").mkdir(parents=True)
    (tmp_path / "x" / "sub" / "b1.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "x" / "other").write_bytes(b"no")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("sub/b1.txt/", "")  # a folder
        archive.writestr("__MACOSX/sub/b1.txt", "copy")
        archive.writestr("sub/b1.txt.gz", gzip.compress(b"one"))
        archive.writestr("other", "no")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "x", "x")
    for name in ("a.zip", "a.tar.gz", "x/sub/b1.txt.gz"):
        assert contents(local("one", tmp_path / name), "b*.txt") == {"b1.txt": b"one"}
        with pytest.raises(DataError, match=r"there is no c\* in"):
            contents(local("one", tmp_path / name), "b*.txt", "c*")


def test_an_unfinished_cache_bears_the_name_that_is_later_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = tmp_path / "one" / "two" / "kept", []
    monkeypatch.setattr(cache, "put", lambda unfinished, _: names.append(unfinished.name))
    cache.write(folder, {"a": np.ones(1)})
    assert len(names) == 1 and Path(names[0]).match("kept.*.tmp")
    assert list(folder.parent.iterdir()) == []
    monkeypatch.setattr(cache.time, "time", lambda: 9000)
    for name, age in (("kept.a.tmp", 3601), ("kept.b.tmp", 3600), ("other.a.tmp", 3700)):
        (folder.parent / name).mkdir()
        os.utime(folder.parent / name, (9000 - age, 9000 - age))
    cache.remove_abandoned(folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["kept.b.tmp", "other.a.tmp"]


@pytest.mark.parametrize(
    ("rows", "told"), [([[0.0] * 784, [1.0] * 784], ""), ([[1.01] * 784], "0..1"),
                       ([[-0.01] * 784], "0..1"), ([[0.5] * 783 + [1.01]], "0..1")],
)  # fmt: skip
def test_pixels_of_leaf_are_shares_of_255(rows: Any, told: str) -> None:
    if told:
        with pytest.raises(ValueError, match="outside 0"):
            femnist.pixels(rows)
        return
    assert femnist.pixels(rows).tolist() == [[0] * 784, [255] * 784]
    assert femnist.pixels([]).shape == (0, 784) and femnist.pixels([[0.1] * 784]).max() == 26


def test_experiments_are_joined_in_the_order_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acc, gyr = b"1 2 3\n4 5 6\n", b"7 8 9\n0 0 0\n"
    held = {
        "gyro_exp02.txt": gyr[:12], "acc_exp02.txt": acc, "acc_exp01.txt": acc[:6],
        "gyro_exp01.txt": gyr[:6], "labels.txt": b"2 5 3 1 2\n1 4 12 1 1\n",
    }  # fmt: skip
    monkeypatch.setattr(har, "contents", lambda *_: dict(held))
    read = har.hapt_raw(local("raw"))
    assert read.signal.tolist() == [[1, 2, 3, 7, 8, 9], [1, 2, 3, 7, 8, 9], [4, 5, 6, 0, 0, 0]]
    assert (read.begin.tolist(), read.end.tolist()) == ([1, 0], [3, 1])
    assert (read.label.tolist(), read.user.tolist()) == ([2, 11], [5, 4])
    assert read.signal.dtype == np.float32 and read.hz == 50
    del held["gyro_exp01.txt"]
    with pytest.raises(DataError, match=r"acc_exp01\.txt is there, but not gyro_exp01\.txt"):
        har.hapt_raw(local("raw"))
    held["gyro_exp01.txt"] = gyr
    with pytest.raises(DataError, match=r"acc_exp01\.txt has 1 lines, gyro_exp01\.txt 2"):
        har.hapt_raw(local("raw"))


@pytest.mark.parametrize(
    "line", [[3, 1, 1, 1, 2], [1, 1, 0, 1, 2], [1, 1, 13, 1, 2], [1, 1, 1, 0, 2], [1, 1, 1, 1, 4],
             [1, 1, 1, 3, 2]],
)  # fmt: skip
def test_labels_lie_inside_the_signals(line: list[int]) -> None:
    signal, starts = np.zeros((5, 6)), {1: (0, 3), 2: (3, 5)}
    good = [[1, 1, 1, 1, 3], [2, 1, 12, 2, 2]]
    cut = har.cut_by_labels(signal, starts, np.array(good))
    assert (cut.begin.tolist(), cut.end.tolist()) == ([0, 4], [3, 5])
    with pytest.raises(DataError, match=r"labels\.txt does not fit the signals"):
        har.cut_by_labels(signal, starts, np.array([*good, line]))


def test_blank_lines_of_the_table_of_voices_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [parkinsons.PERSON, *parkinsons.TARGETS, *parkinsons.FEATURES]
    line = ",".join(str(place) for place in range(len(names)))
    text = "\n".join([",".join(names), "", line, ""])
    monkeypatch.setattr(parkinsons, "contents", lambda *_: {parkinsons.NAME: text.encode()})
    read = parkinsons.read_table(local("table"))
    assert read["person"].tolist() == [0] and read["y"].tolist() == [[1, 2]]
    assert read["x"].tolist() == [list(range(3, len(names)))]


def test_texts_of_a_user_are_put_together_and_their_table_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    Path(path).write_text("user,text\n a,x y\na ,y z\na,z x\nb,x\n")
    pool = text_table(path, least=3, split=(0.5, 0.0, 0.5))
    assert sorted(set(pool.users)) == ["a"] and pool.about["users"] == 1  # type: ignore[arg-type]
    assert (pool.about["name"], pool.about["path"]) == ("texts", path)
    with pytest.raises(DataError, match="no user has 4 texts or more"):
        text_table(path, least=4)


def test_a_column_has_one_role(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    Path(path).write_text("label,user,x\n0,a,1\n")
    assert csv_table(path).x.tolist() == [[1.0]]
    with pytest.raises(DataError, match="is among `columns`"):
        csv_table(path, columns=("x", "label"))
    with pytest.raises(DataError, match='"user" is both the label and the user'):
        csv_table(path, label="user")
    for roles, message in (
        (Roles("label", "user", ("x", "y")), 't has no column "y"'),
        (Roles("label", "user"), "t has no column of inputs"),
        (Roles("label", "user", ("label",)), "is among `columns`"),
    ):
        with pytest.raises(DataError, match=message):
            roles.check("t", ["label", "user"] if not roles.inputs else ["label", "user", "x"])
    Roles("label", "user", ("label",), Task("next-token")).check("t", ["label"])
    with pytest.raises(DataError, match='the column "a" of t holds words'):
        _numbers("t", "a", np.array(["w"]))


def test_images_have_all_their_labels() -> None:
    pixels = [np.zeros((2, 3072), np.uint8), np.ones((1, 3072), np.uint8)]
    whole = {"y": [np.zeros(2), np.ones(1)], "coarse": [np.zeros(2), np.ones(1)]}
    read = cifar.join_batches(pixels, whole)
    assert read["x"].shape == (3, 3, 32, 32) and int(read["train_rows"]) == 2
    for name in whole:
        with pytest.raises(DataError, match="3 images but"):
            cifar.join_batches(pixels, {**whole, name: [np.zeros(2)]})


@pytest.mark.parametrize("first", [0, 1])
def test_labels_of_stl10_count_from_1(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image = bytes(range(256)) * 108  # 3 * 96 * 96
    held = {"train_X.bin": image, "train_y.bin": b"\x02", "test_X.bin": image * 2}
    held["test_y.bin"] = bytes([10, first])
    monkeypatch.setattr(stl10, "contents", lambda *_: held)
    if not first:
        with pytest.raises(DataError, match="do not belong together"):
            stl10.decode(local("binary"))
        return
    read = stl10.decode(local("binary"))
    assert read["y"].tolist() == [1, 9, 0] and int(read["train_rows"]) == 1
    assert read["x"][0, 0, :3, 0].tolist() == [0, 1, 2]  # stored column by column


def test_tags_may_come_in_any_order() -> None:
    def one(*tags: str) -> Federation:
        rows, none = Rows.of([[0]]), Rows.none(1)
        own = {tag: np.array([len(tag)]) for tag in tags}
        return Federation(torch.ones(1, 2), torch.tensor([0]), rows, none, none, 1, tags=own)

    both = side_by_side({"p": one("a", "bb"), "q": one("bb", "a")})
    assert {name: tag.tolist() for name, tag in both.tags.items()} == {
        "a": [1, 1], "bb": [2, 2], "configuration": [0, 1],
    }  # fmt: skip
    assert both.names == ("p/client-0", "q/client-0")
    with pytest.raises(DataError, match="of one kind"):
        side_by_side({"p": one("a"), "q": one("b")})
    with pytest.raises(DataError, match="there are no federations"):
        side_by_side({})


def test_rows_of_a_person_and_an_activity_are_kept_apart_from_all_others() -> None:
    user, label = np.array([0, 0, 0, 2, 2, 2]), np.array([1, 1, 1, 0, 0, 0])
    for labels in (label, label * 0 + 1, label * 2):
        assert parts_in_order(user, labels, (0.2, 0.4, 0.4)).tolist() == [0, 1, 2, 0, 1, 2]
    assert parts_in_order(user[:0], label[:0], (0.5, 0.0, 0.5)).tolist() == []


def test_a_blur_is_as_wide_as_its_last_whole_pixel() -> None:
    """Of width 0.5: 1.5 pixels, so two to each side."""
    image = torch.zeros(1, 1, 7, 7)
    image[0, 0, 3, 3] = 1.0
    row = blur_images(image, 0.5)[0, 0, 3]
    assert (row > 0).tolist() == [False, True, True, True, True, True, False]


def test_a_file_of_leaf_has_its_writers_one_by_one(tmp_path: Path) -> None:
    both = {"users": ["w", "v"], "user_data": {
        "v": {"x": [[0.0] * 784], "y": [3]}, "w": {"x": [[1.0] * 784] * 2, "y": [1, 2]},
    }}  # fmt: skip
    for part in ("test", "train"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps(both))
    paths = [tmp_path / part / "a.json" for part in ("test", "train")]
    read = femnist.decode(SimpleNamespace(paths=paths))  # type: ignore[arg-type]
    assert read["user"].tolist() == ["w", "w", "v"] * 2 and read["y"].tolist() == [1, 2, 3] * 2
    assert int(read["train_rows"]) == 3 and read["x"].shape == (6, 1, 28, 28)
    (tmp_path / "test" / "a.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        femnist.writers(paths[0])
