"""RealWorld HAR (Sztyler and Stuckenschmidt, 2016): 15 people with phones on the body, here the one
at the waist.

The official files are CSV tables (id, attr_time in milliseconds, attr_x, attr_y, attr_z), one for
each sensor, activity and body position: proband1/data/acc_walking_csv.zip holds
acc_walking_waist.csv and its neighbours, gyr_walking_csv.zip holds Gyroscope_walking_waist.csv.
Some activities were recorded twice, as acc_climbingup_1_csv.zip inside acc_climbingup_csv.zip, or
as acc_walking_2_waist.csv. All of these may lie unpacked, too.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.data.options import Overlap, Seed, Shares, Stretch, WindowSteps
from fedblocks.data.rows import Floats, Ints
from fedblocks.data.sets.contents import DAMAGE
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.har import STRETCH, cached_recordings
from fedblocks.data.sets.signals import Recordings, window_pool

NAMES = {
    "walking": "walking",
    "climbingup": "upstairs",
    "climbingdown": "downstairs",
    "sitting": "sitting",
    "standing": "standing",
    "lying": "laying",
    "jumping": "jumping",
    "running": "running",
}
ACTIVITIES = tuple(NAMES.values())
HOME = "https://www.uni-mannheim.de/dws/research/projects/activity-recognition/dataset/dataset-realworld/"
SITE = "http://wifo5-14.informatik.uni-mannheim.de/sensor/dataset/realworld2016"
HZ = 50
PAUSE = 1000  # milliseconds without a sample of a sensor after which a new recording begins
FILES = FileSet(
    "realworld",
    HOME,
    (
        FileSource(
            "zip", (File("realworld2016_dataset.zip", url=f"{SITE}/realworld2016_dataset.zip"),)
        ),
        FileSource(
            "zips", (File("proband*/data/acc_*_csv.zip"), File("proband*/data/gyr_*_csv.zip"))
        ),
        FileSource("csv", (File("proband*/data/acc_*.csv"), File("proband*/data/[gG]yr*_*.csv"))),
        FileSource(
            "csv", (File("proband*/data/acc_*_csv/*.csv"), File("proband*/data/gyr_*_csv/*.csv"))
        ),
    ),
)
TABLE = re.compile(
    r"proband(\d+)/.*?(acc|gyr)[a-z]*_([a-z]+)(?:_(\d+))?_waist\.csv$", re.IGNORECASE
)
# a second recording, named by the archive around it
TWICE = re.compile(r"_(\d+)_csv(?:\.zip)?/", re.IGNORECASE)
# (person, activity, which time) -> sensor -> table
Sensors = dict[tuple[int, str, int], dict[str, Floats]]


def realworld_recordings() -> Recordings:
    """RealWorld: acceleration [m/s^2] and rotation [rad/s] at the waist, brought to one
    clock of 50 Hz.
    """
    return cached_recordings(FILES, read, ACTIVITIES, HZ, "realworld")


def realworld(
    steps: WindowSteps = 128,
    overlap: Overlap = 0.5,
    stretch: Stretch = STRETCH,
    split: Shares = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Windows of eight activities with a phone at the waist, by person."""
    return window_pool(realworld_recordings(), steps, overlap, stretch, split, seed)


def read(local: LocalFiles) -> Recordings:
    """Both sensors of each recording; one that lacks a sensor is left out."""
    pieces, kinds = [], []
    for (person, activity, _), sensors in sorted(tables(local).items()):
        if len(sensors) == 2:
            own = together(sensors["acc"], sensors["gyr"])
            pieces += own
            kinds += [(person, ACTIVITIES.index(NAMES[activity]))] * len(own)
    if not pieces:
        fix = f"get the official files again (both acc and gyr); see {HOME}"
        raise DataError(
            f"there is no recording of both sensors at the waist in {local.paths[0]}", fix
        )
    end = np.cumsum([len(piece) for piece in pieces])
    user, label = np.array(kinds, dtype=np.int64).T
    begin: Ints = end - [len(piece) for piece in pieces]
    return Recordings(np.concatenate(pieces), begin, end, label, user, ACTIVITIES, HZ)


def tables(local: LocalFiles) -> Sensors:
    """The tables of the waist, by recording and sensor."""
    held: Sensors = {}
    for name, data in members(local):
        match = TABLE.search(name)
        if match and match[3].lower() in NAMES:
            twice = match[4] or next(iter(TWICE.findall(name)), "1")
            recording = held.setdefault((int(match[1]), match[3].lower(), int(twice)), {})
            recording[match[2].lower()] = numbers(name, data)
    return held


def members(local: LocalFiles) -> Iterator[tuple[str, bytes]]:
    """Every CSV file by its path, also out of archives inside archives."""
    for path in local.paths:
        try:
            yield from unpack(
                path.as_posix(),
                path.read_bytes() if path.suffix != ".zip" else zipfile.ZipFile(path),
            )
        except DAMAGE as error:
            raise DataError(
                f"{path} cannot be read: {error}", f"it is damaged or cut short; see {HOME}"
            ) from error


def unpack(name: str, data: bytes | zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """A CSV file, or those in an archive."""
    if isinstance(data, bytes):
        yield name, data
        return
    with data:
        for member in data.namelist():
            path = f"{name}/{member}"
            if member.lower().endswith(".zip"):
                yield from unpack(path, zipfile.ZipFile(io.BytesIO(data.read(member))))
            elif TABLE.search(path):
                yield path, data.read(member)


def numbers(name: str, data: bytes) -> Floats:
    """Time and three axes, in the order of time."""
    try:
        header = data[: data.index(b"\n")].decode().strip().replace('"', "").split(",")
        columns = [header.index(column) for column in ("attr_time", "attr_x", "attr_y", "attr_z")]
        table: Floats = np.loadtxt(
            io.BytesIO(data), delimiter=",", skiprows=1, usecols=columns, ndmin=2
        )
    except ValueError as error:
        fix = f"it is damaged, or not a table of id, attr_time, attr_x, attr_y, attr_z; see {HOME}"
        raise DataError(f"{name} cannot be read: {error}", fix) from error
    return table[np.argsort(table[:, 0], kind="stable")]


def together(first: Floats, second: Floats) -> list[npt.NDArray[np.float32]]:
    """Two sensors on one clock of 50 Hz, interpolated; the stretches in which neither pauses."""
    if not len(first) or not len(second):
        return []
    time = np.arange(max(first[0, 0], second[0, 0]), min(first[-1, 0], second[-1, 0]), 1000 / HZ)
    signal = np.stack(
        [np.interp(time, own[:, 0], own[:, axis]) for own in (first, second) for axis in (1, 2, 3)],
        1,
    )
    awake = ~(pauses(first[:, 0], time) | pauses(second[:, 0], time))
    edges = np.flatnonzero(np.diff(awake.astype(np.int8))) + 1
    runs = zip(np.split(signal.astype(np.float32), edges), np.split(awake, edges))
    return [run for run, kept in runs if len(kept) and kept[0]]


def pauses(sampled: Floats, time: Floats) -> npt.NDArray[np.bool_]:
    """Where a sensor is silent for longer than a moment."""
    after = np.clip(np.searchsorted(sampled, time), 1, max(len(sampled) - 1, 1))
    gap: Floats = np.append(sampled, np.inf)[after] - sampled[after - 1]
    return gap > PAUSE


SETS = {
    "realworld": StoredSet(
        "realworld",
        realworld,
        8,
        "signals",
        "15 people with a phone at the waist, 8 activities, 6 x 128",
        FILES,
    )
}
