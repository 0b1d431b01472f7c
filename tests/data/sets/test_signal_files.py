"""Signals are read from tiny files of the official formats; damaged ones are refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.sets.files import LocalFiles
from fedblocks.data.sets.har import (
    HAPT,
    WATCH,
    hapt,
    hapt_compact,
    hapt_recordings,
    watch_compact,
    wisdm51_watch,
)
from fedblocks.data.sets.realworld import realworld, realworld_recordings, together
from fedblocks.data.sets.signals import Recordings
from fedblocks.data.sets.wisdm import (
    fill_and_scale,
    parts_in_order,
    wisdm,
    wisdm_features,
    wisdm_recordings,
)


@pytest.fixture(autouse=True)
def home(data_folder: Path) -> Path:
    """An empty folder for data sets."""
    return data_folder


def lines(table: np.ndarray) -> str:
    return "\n".join(" ".join(f"{value:.6g}" for value in row) for row in table) + "\n"


# experiment, person, activity, first, last sample
LABELS = [[1, 3, 5, 11, 40], [1, 3, 1, 51, 90], [2, 4, 4, 1, 60]]


def hapt_files() -> dict[str, str]:
    """Two experiments of 100 and 60 samples; acceleration counts samples, rotation counts down."""
    files = {"labels.txt": lines(np.array(LABELS)), "activity_labels.txt": "1 WALKING\n"}
    for experiment, person, samples in ((1, 3, 100), (2, 4, 60)):
        count = np.arange(samples)[:, None] + np.array([0, 0.25, 0.5])
        files[f"acc_exp{experiment:02d}_user{person:02d}.txt"] = lines(count + 1000 * experiment)
        files[f"gyro_exp{experiment:02d}_user{person:02d}.txt"] = lines(-count)
    return files


def write_hapt(home: Path) -> Path:
    folder = home / "hapt" / "RawData"
    folder.mkdir(parents=True)
    for name, text in hapt_files().items():
        (folder / name).write_text(text)
    return folder


def same(first: Recordings, second: Recordings) -> bool:
    return all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)


def test_haptic_experiments_are_cut_at_their_labels(home: Path) -> None:
    write_hapt(home)
    own = hapt_recordings()
    assert [own.activities[label] for label in own.label] == ["standing", "walking", "sitting"]
    assert own.user.tolist() == [3, 3, 4] and own.hz == 50
    assert (own.end - own.begin).tolist() == [30, 40, 60]
    assert own.signal[own.begin].tolist() == [  # samples 11, 51 and 1, counted from 1
        [1010, 1010.25, 1010.5, -10, -10.25, -10.5],
        [1050, 1050.25, 1050.5, -50, -50.25, -50.5],
        [2000, 2000.25, 2000.5, 0, -0.25, -0.5],
    ]


def test_the_official_zip_holds_the_same(home: Path) -> None:
    folder = write_hapt(home)
    expected = hapt_recordings()
    for path in folder.iterdir():
        path.unlink()
    with zipfile.ZipFile(home / "hapt" / "HAPT Data Set.zip", "w") as archive:
        for name, text in hapt_files().items():
            archive.writestr(f"RawData/{name}" if name != "activity_labels.txt" else name, text)
    assert same(hapt_recordings(), expected)


def test_the_compact_file_holds_the_same(home: Path) -> None:
    write_hapt(home)
    expected = hapt_recordings()
    signal, exp = expected.signal, np.repeat([1, 2], [100, 60])
    path = home / "hapt_raw.npz"
    table = np.array(LABELS, dtype=np.int32)
    np.savez(
        path,
        S=(signal * 4).astype(np.int16),
        scale=np.full(6, 0.25),
        exp=exp.astype(np.uint8),
        label_table=table,
    )
    assert same(hapt_compact(LocalFiles(HAPT, HAPT.sources[-1], (path,))), expected)
    np.savez(path, S=signal)
    with pytest.raises(DataError, match="has no array scale"):
        hapt_compact(LocalFiles(HAPT, HAPT.sources[-1], (path,)))


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        (
            "gyro_exp02_user04.txt",
            lambda text: text[: len(text) // 2].rsplit("\n", 1)[0],
            "60 lines, gyro_exp02",
        ),
        (
            "acc_exp01_user03.txt",
            lambda text: text.replace("1003", "oops"),
            "acc_exp01_user03.txt cannot be read",
        ),
        ("labels.txt", lambda text: text + "3 4 1 5 9\n", "does not fit the signals"),
        ("labels.txt", lambda text: text.replace("60", "61"), "does not fit the signals"),
        ("labels.txt", lambda text: "1 2 3\n", "3 columns, not 5"),
    ],
)
def test_haptic_files_that_are_cut_or_damaged_are_refused(
    home: Path, name: str, change: Any, told: str
) -> None:
    path = write_hapt(home) / name
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=told):
        hapt_recordings()


def test_a_missing_gyroscope_is_named(home: Path) -> None:
    (write_hapt(home) / "gyro_exp01_user03.txt").unlink()
    with pytest.raises(DataError, match=r"but not gyro_exp01_user03\.txt"):
        hapt_recordings()


def test_a_segment_of_the_watch_is_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "wisdm51_watch_accel.npz"
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    arrays = {"segment": np.repeat([0, 1, 2], [4, 3, 3]), "user": np.repeat([5, 6], [7, 3])}
    np.savez(path, X=x, label=np.repeat([0, 3, 0], [4, 3, 3]).astype(np.uint8), **arrays)
    own = watch_compact(LocalFiles(WATCH, WATCH.sources[0], (path,)))
    assert own.begin.tolist() == [0, 4, 7] and own.end.tolist() == [4, 7, 10]
    assert own.user.tolist() == [5, 5, 6] and own.label.tolist() == [0, 3, 0]


def record(person: int, activity: str, step: int, x: float) -> str:
    return f"{person},{activity},{49105962326000 + step * 50_000_000},{x},1.5,-2.0;"


WISDM = "\n".join(
    [
        *(record(33, "Jogging", step, step) for step in range(60)),
        "",
        record(33, "Walking", 60, 1) + record(33, "Walking", 61, 2),  # no line break
        record(33, "Walking", 62, 3).replace(";", ",;"),  # a comma too many
        "33,Walking,49105962329150,3.1,4.2,;",  # z is missing
        record(33, "Walking", 63, 4),
        "33,Walking,0,0,0,0;",  # a time of 0
        # after a pause of 37 x 50 ms
        *(record(33, "Walking", step, step) for step in range(100, 103)),
        *(record(20, "Walking", step, step) for step in range(103, 106)),  # another person
        *(record(20, "Walking", step, step) for step in range(50, 53)),  # time goes back
        *(record(20, "Sitting", step, step) for step in range(53, 303)),
    ]
)


def test_malformed_records_of_wisdm_are_mended_or_left_out(home: Path) -> None:
    (home / "WISDM_ar_v1.1_raw.txt").write_text(WISDM)
    own = wisdm_recordings()
    assert (own.end - own.begin).tolist() == [60, 4, 3, 3, 3, 250]
    assert own.user.tolist() == [33, 33, 33, 20, 20, 20]
    assert [own.activities[k] for k in own.label] == [
        "jogging",
        "walking",
        "walking",
        "walking",
        "walking",
        "sitting",
    ]
    assert own.signal[60:64].tolist() == [[x, 1.5, -2] for x in (1, 2, 3, 4)]
    pool = wisdm(stretch=3.2)  # 64 samples
    # one of jogging, four of sitting (250 = 62 + 63 + 62 + 63)
    assert pool.x.shape == (5, 3, 52) and pool.classes == 6


def test_the_official_tar_of_wisdm_holds_the_same(home: Path) -> None:
    data = WISDM.encode()
    with tarfile.open(home / "WISDM_ar_latest.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("WISDM_ar_v1.1/WISDM_ar_v1.1_raw.txt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    assert len(wisdm_recordings().signal) == 60 + 4 + 3 + 3 + 3 + 250


def test_a_text_that_is_not_wisdm_is_refused(home: Path) -> None:
    (home / "WISDM_ar_v1.1_raw.txt").write_text(WISDM + "\nsome other line" * 10)
    with pytest.raises(DataError, match="12 of 335 records"):  # two are known faults
        wisdm_recordings()


def test_features_that_are_missing_become_the_mean_of_training() -> None:
    features = np.array([[1, 5], [3, np.nan], [9, np.nan]], dtype=np.float32)
    assert fill_and_scale(features, np.array([True, True, False])).tolist() == [
        [-1, 0],
        [1, 0],
        [7, 0],
    ]


def test_of_each_activity_the_first_rows_train_and_the_last_test() -> None:
    user, label = np.zeros(15, np.int64), np.array([0] * 10 + [1] * 5)
    assert parts_in_order(user, label, (0.6, 0.2, 0.2)).tolist() == [0] * 6 + [1] * 2 + [2] * 2 + [
        0
    ] * 3 + [1] + [2]


def sensor(begin: int, samples: int, offset: float, pause_at: int | None = None) -> str:
    """A CSV file of 50 Hz in milliseconds; x is the time in seconds plus an offset;
    perhaps a pause of 3 s.
    """
    time = (
        begin
        + 20 * np.arange(samples)
        + np.where(np.arange(samples) >= (pause_at or samples), 3000, 0)
    )
    rows = [f"{n},{t},{t / 1000 + offset},{offset},0.5" for n, t in enumerate(time, start=1)]
    return "\n".join(["id,attr_time,attr_x,attr_y,attr_z", *rows]) + "\n"


def zipped(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def realworld_files() -> dict[str, bytes]:
    """One person walks; another climbs twice, in archives inside an archive, and jumps
    without a gyroscope.
    """
    walk = {"acc": sensor(10_000, 300, 0), "gyr": sensor(10_010, 310, 100)}
    climb = {"acc": sensor(0, 150, 7), "gyr": sensor(0, 150, 8)}
    other = "proband2/data/{0}_climbingup_csv.zip"
    twice = {
        kind: zipped(
            {
                f"{kind}_climbingup_{n}_csv.zip": zipped(
                    {f"{name}_climbingup_waist.csv": climb[kind], "readMe": "x"}
                )
                for n in (1, 2)
            }
        )
        for kind, name in (("acc", "acc"), ("gyr", "Gyroscope"))
    }
    return {
        "proband1/data/acc_walking_csv.zip": zipped(
            {"acc_walking_waist.csv": walk["acc"], "acc_walking_head.csv": "not read"}
        ),
        "proband1/data/gyr_walking_csv.zip": zipped({"Gyroscope_walking_waist.csv": walk["gyr"]}),
        other.format("acc"): twice["acc"],
        other.format("gyr"): twice["gyr"],
        "proband2/data/acc_jumping_csv.zip": zipped({"acc_jumping_waist.csv": sensor(0, 200, 0)}),
    }


def write_realworld(home: Path) -> None:
    for name, data in realworld_files().items():
        path = home / "realworld" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_two_sensors_are_brought_to_one_clock(home: Path) -> None:
    write_realworld(home)
    own = realworld_recordings()
    assert [
        (user, own.activities[k]) for user, k in zip(own.user.tolist(), own.label.tolist())
    ] == [
        *[(1, "walking")],
        *[(2, "upstairs")] * 2,
    ]
    assert (own.end - own.begin).tolist() == [299, 149, 149]  # 10.010 s to 15.980 s; 0 s to 2.980 s
    first = own.signal[0]
    # acc between two samples
    assert first.tolist() == pytest.approx([10.01, 0, 0.5, 110.01, 100, 0.5], abs=1e-4)
    assert realworld(stretch=float("inf"), split=(1.0, 0, 0)).x.shape[1:] == (6, 128)


def test_one_archive_of_everything_and_loose_tables_hold_the_same(home: Path) -> None:
    write_realworld(home)
    expected = realworld_recordings()
    for path in (home / "realworld").rglob("*.zip"):
        path.unlink()
    whole = home / "realworld2016_dataset.zip"
    whole.write_bytes(
        zipped({f"realworld2016_dataset/{name}": data for name, data in realworld_files().items()})
    )
    assert same(realworld_recordings(), expected)
    whole.unlink()
    folder = home / "realworld" / "proband1" / "data"
    (folder / "acc_walking_waist.csv").write_text(sensor(10_000, 300, 0))
    (folder / "Gyroscope_walking_waist.csv").write_text(sensor(10_010, 310, 100))
    assert np.array_equal(realworld_recordings().signal, expected.signal[:299])


def table(text: str) -> np.ndarray:
    return np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, usecols=(1, 2, 3, 4))


def test_a_pause_of_a_sensor_ends_a_recording() -> None:
    pieces = together(table(sensor(0, 100, 0)), table(sensor(0, 100, 0, pause_at=40)))
    # 0 to 0.78 s; the other sensor is back at 3.8 s, too late
    assert [len(piece) for piece in pieces] == [40]
    pieces = together(table(sensor(0, 300, 0)), table(sensor(0, 100, 0, pause_at=40)))
    assert [len(piece) for piece in pieces] == [40, 58]  # and 3.82 s to 4.96 s


def test_damaged_realworld_files_are_refused(home: Path) -> None:
    write_realworld(home)
    path = home / "realworld" / "proband1" / "data" / "acc_walking_csv.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"acc_walking_csv\.zip cannot be read"):
        realworld_recordings()
    path.write_bytes(zipped({"acc_walking_waist.csv": "time,x\n1,2\n"}))
    with pytest.raises(DataError, match="not a table of id, attr_time"):
        realworld_recordings()


def test_no_pair_of_sensors_is_refused(home: Path) -> None:
    folder = home / "realworld" / "proband1" / "data"
    folder.mkdir(parents=True)
    (folder / "acc_walking_waist.csv").write_text(sensor(0, 10, 0))
    (folder / "gyr_sitting_waist.csv").write_text(sensor(0, 10, 0))
    with pytest.raises(DataError, match="no recording of both sensors"):
        realworld_recordings()


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (hapt, "hapt_raw.npz"),
        (wisdm, "WISDM_ar_v1.1_raw.txt"),
        (wisdm51_watch, "wisdm51_watch_accel.npz"),
        (wisdm_features, "wisdm_v1_features.npz"),
        (realworld, "realworld2016_dataset.zip"),
    ],
)
def test_missing_files_are_named(load: Any, file: str) -> None:
    with pytest.raises(DataError, match=f"(?s)are not in.*{file}"):
        load()


@pytest.mark.parametrize(
    ("load", "file"), [(hapt, "hapt_raw.npz"), (wisdm_features, "wisdm_v1_features.npz")]
)
def test_compact_files_of_another_size_are_refused(home: Path, load: Any, file: str) -> None:
    (home / file).write_bytes(b"half of it")
    with pytest.raises(DataError, match=f"{file} is cut short"):
        load()
