"""Human activities from phones and watches: HAPT, WISDM v1.1 and WISDM-51."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.data.options import Overlap, Seed, Shares, Stretch, WindowSteps
from fedblocks.data.pools import Kind
from fedblocks.data.rows import Ints
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.divided import DividedPool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.signals import Recordings, window_pool
from fedblocks.data.storage import read_arrays

# what HAPT, RealWorld and WISDM v1.1 share
COMMON = ("walking", "upstairs", "downstairs", "sitting", "standing")
STRETCH = 12.8  # seconds: five windows of 2.56 s end to end
HAPT_ACTIVITIES = (
    *("walking", "upstairs", "downstairs", "sitting", "standing", "laying"),
    *("stand_to_sit", "sit_to_stand", "sit_to_lie", "lie_to_sit", "stand_to_lie", "lie_to_stand"),
)
WATCH_ACTIVITIES = ("walking", "jogging", "stairs", "sitting", "standing", "kicking")
ARCHIVE = "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip"
HAPT = FileSet(
    "hapt",
    "https://archive.ics.uci.edu/dataset/341",
    (
        FileSource(
            "raw",
            tuple(
                File(f"RawData/{name}") for name in ("acc_exp*.txt", "gyro_exp*.txt", "labels.txt")
            ),
        ),
        FileSource(
            "raw", (File(ARCHIVE, url=f"https://archive.ics.uci.edu/static/public/341/{ARCHIVE}"),)
        ),
        FileSource("raw", (File("HAPT Data Set.zip"),)),  # its older name
        FileSource(
            "compact",
            (
                File(
                    "hapt_raw.npz",
                    8_513_124,
                    "ef35a56494b08daf0ef3738c2744b76a51d457c6a9cd1a2fab6714e261a4451e",
                ),
            ),
        ),
    ),
)
WATCH = FileSet(
    "wisdm51_watch",
    "docs/data-sets.md, compact files; the whole set is https://archive.ics.uci.edu/dataset/507",
    (
        FileSource(
            "compact",
            (
                File(
                    "wisdm51_watch_accel.npz",
                    4_655_150,
                    "6e9523ccb0c63beea0d561f032920e29f8851af1116a518c2bae946709c5fbce",
                ),
            ),
        ),
    ),
)


def hapt_recordings() -> Recordings:
    """HAPT: 30 people with a phone at the waist, acceleration [g] and rotation [rad/s] at 50 Hz."""
    read: Callable[[LocalFiles], Recordings] = lambda f: (
        hapt_compact(f) if f.source.form == "compact" else hapt_raw(f)
    )
    return cached_recordings(HAPT, read, HAPT_ACTIVITIES, 50, "hapt")


def hapt(
    steps: WindowSteps = 128,
    overlap: Overlap = 0.5,
    stretch: Stretch = STRETCH,
    split: Shares = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Windows of HAPT's 12 activities and postural transitions, by person."""
    return window_pool(hapt_recordings(), steps, overlap, stretch, split, seed)


def wisdm51_recordings() -> Recordings:
    """WISDM-51: 51 people with a watch, acceleration [m/s^2] at 20 Hz; six of the
    activities, two minutes of each.
    """
    return cached_recordings(WATCH, watch_compact, WATCH_ACTIVITIES, 20, "wisdm51_watch")


def wisdm51_watch(
    steps: WindowSteps = 52,
    overlap: Overlap = 0.5,
    stretch: Stretch = STRETCH,
    split: Shares = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Windows of six activities with a watch, by person."""
    return window_pool(wisdm51_recordings(), steps, overlap, stretch, split, seed)


def cached_recordings(
    files: FileSet,
    read: Callable[[LocalFiles], Recordings],
    activities: tuple[str, ...],
    hz: float,
    name: str,
) -> Recordings:
    """The recordings of a data set, from the cache where it is whole."""
    arrays = cached_arrays(files, lambda local: read(local).arrays)
    return Recordings(**arrays, activities=activities, hz=hz, about={"name": name})


def hapt_raw(local: LocalFiles) -> Recordings:
    """The official text files: two per experiment, and a table of what was done when."""
    held = contents(local, "acc_exp*.txt", "gyro_exp*.txt", "labels.txt")
    labels = table("labels.txt", held.pop("labels.txt"), 5).astype(np.int64)
    signals, starts, at = [], {}, 0
    for name in sorted(name for name in held if name.startswith("acc_")):
        other = name.replace("acc_", "gyro_", 1)
        if other not in held:
            raise DataError(
                f"{name} is there, but not {other}",
                f"get the official files again; see {HAPT.home}",
            )
        pair = [table(file, held[file], 3) for file in (name, other)]
        if len(pair[0]) != len(pair[1]):
            raise DataError(
                f"{name} has {len(pair[0])} lines, {other} {len(pair[1])}",
                "get the official files again",
            )
        experiment = int(re.findall(r"\d+", name)[0])
        starts[experiment] = (at, at + len(pair[0]))
        signals.append(np.concatenate(pair, 1).astype(np.float32))
        at += len(pair[0])
    return cut_by_labels(np.concatenate(signals), starts, labels)


def hapt_compact(local: LocalFiles) -> Recordings:
    """The compact file: whole numbers times a scale."""
    arrays = compact(local, "S", "scale", "exp", "label_table")
    signal = (arrays["S"] * arrays["scale"]).astype(np.float32)
    experiments, begin, sizes = np.unique(arrays["exp"], return_index=True, return_counts=True)
    starts = {int(e): (int(a), int(a + n)) for e, a, n in zip(experiments, begin, sizes)}
    return cut_by_labels(signal, starts, arrays["label_table"].astype(np.int64))


def cut_by_labels(signal: Any, starts: Mapping[int, tuple[int, int]], table: Ints) -> Recordings:
    """The labelled stretches; a line of the table is experiment, person, activity,
    first and last sample from 1.
    """
    known = np.array(
        [row[0] in starts and 1 <= row[2] <= len(HAPT_ACTIVITIES) for row in table.tolist()], bool
    )
    bounds = np.array([starts.get(experiment, (0, 0)) for experiment in table[:, 0].tolist()])
    begin, end = bounds[:, 0] + table[:, 3] - 1, bounds[:, 0] + table[:, 4]
    if not (known & (begin >= bounds[:, 0]) & (end <= bounds[:, 1]) & (begin < end)).all():
        raise DataError(
            "labels.txt does not fit the signals",
            f"a file is cut short or missing; see {HAPT.home}",
        )
    return Recordings(signal, begin, end, table[:, 2] - 1, table[:, 1], HAPT_ACTIVITIES, 50)


def watch_compact(local: LocalFiles) -> Recordings:
    """The compact file: a recording is a segment."""
    arrays = compact(local, "X", "user", "label", "segment")
    change = np.flatnonzero(np.diff(arrays["segment"].astype(np.int64))) + 1
    begin = np.concatenate([[0], change]).astype(np.int64)
    end = np.concatenate([change, [len(arrays["X"])]]).astype(np.int64)
    label, user = (arrays[name].astype(np.int64)[begin] for name in ("label", "user"))
    return Recordings(arrays["X"], begin, end, label, user, WATCH_ACTIVITIES, 20)


def compact(local: LocalFiles, *names: str) -> Arrays:
    """Arrays of a compact file, all of which must be there."""
    arrays = read_arrays(local.paths[0])
    if missing := [name for name in names if name not in arrays]:
        raise DataError(
            f"{local.paths[0]} has no array {missing[0]}", "it is another file: get it again"
        )
    return arrays


def table(name: str, text: bytes, columns: int) -> Any:
    """Numbers in lines, as many in each."""
    try:
        numbers = np.loadtxt(io.BytesIO(text), ndmin=2)
    except ValueError as error:
        raise DataError(
            f"{name} cannot be read: {error}", "it is damaged or cut short: get it again"
        ) from error
    if numbers.shape[1] != columns:
        raise DataError(
            f"{name} has {numbers.shape[1]} columns, not {columns}",
            "it is another file: get it again",
        )
    return numbers


KIND: Kind = "signals"
SETS = {
    "hapt": StoredSet(
        "hapt", hapt, 12, KIND, "30 people with a phone at the waist, 12 activities, 6 x 128", HAPT
    ),
    "wisdm51_watch": StoredSet(
        "wisdm51_watch",
        wisdm51_watch,
        6,
        KIND,
        "51 people with a watch, 6 activities, 3 x 52",
        WATCH,
    ),
}
