"""WISDM v1.1: 36 people with a phone in the pocket, as raw acceleration and as
ready-made features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.options import Overlap, Seed, Shares, Stretch, WindowSteps, checked
from fedblocks.data.rows import Ints, Rows
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.divided import TRAIN, DividedPool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.har import STRETCH, cached_recordings, compact
from fedblocks.data.sets.signals import Recordings, window_pool
from fedblocks.data.splits import Fractions, cut_parts

ACTIVITIES = ("walking", "jogging", "upstairs", "downstairs", "sitting", "standing")
SITE = "https://www.cis.fordham.edu/wisdm"
HOME = f"{SITE}/dataset.php (WISDM_ar_latest.tar.gz)"
RAW = "WISDM_ar_v1.1_raw.txt"
HZ = 20
PAUSE = 1_000_000_000  # nanoseconds without a sample after which a new recording begins
SPOILT = 0.01  # share of malformed records from which on the file is not the official one
FILES = FileSet(
    "wisdm",
    HOME,
    (
        FileSource("raw", (File(RAW),)),
        FileSource("raw", (File(f"WISDM_ar_v1.1/{RAW}"),)),
        FileSource(
            "raw",
            (
                File(
                    "WISDM_ar_latest.tar.gz",
                    url=f"{SITE}/includes/datasets/latest/WISDM_ar_latest.tar.gz",
                ),
            ),
        ),
    ),
)
FEATURES = FileSet(
    "wisdm_features",
    f"docs/data-sets.md, compact files; they are from {HOME}",
    (
        FileSource(
            "compact",
            (
                File(
                    "wisdm_v1_features.npz",
                    220_137,
                    "468920ec38ed78ea35874783f96579e63d6ec51cb1bda2c814e8c0b79041686a",
                ),
            ),
        ),
    ),
)
Record = tuple[int, int, int, float, float, float]  # person, activity, time, acceleration


def wisdm_recordings() -> Recordings:
    """WISDM v1.1: acceleration [m/s^2] at 20 Hz of 36 people with a phone in the front pocket."""
    return cached_recordings(FILES, read_raw, ACTIVITIES, HZ, "wisdm")


def wisdm(
    steps: WindowSteps = 52,
    overlap: Overlap = 0.5,
    stretch: Stretch = STRETCH,
    split: Shares = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Windows of six activities with a phone, by person."""
    return window_pool(wisdm_recordings(), steps, overlap, stretch, split, seed)


def read_raw(local: LocalFiles) -> Recordings:
    """The official text; a recording ends where person or activity change, time goes
    back or pauses.
    """
    text = contents(local, RAW)[RAW].decode("ascii", errors="replace")
    spoilt = count()
    records = list(good_records(text, spoilt))
    lost = next(spoilt)
    if lost > SPOILT * (len(records) + lost):
        message = f"{lost} of {len(records) + lost} records of {local.paths[0]} are malformed"
        raise DataError(message, f"the official file has about 200: get it again; see {HOME}")
    who = np.array([record[:3] for record in records], dtype=np.int64)  # person, activity, time
    pause = np.diff(who[:, 2])
    other = (np.diff(who[:, :2], axis=0) != 0).any(1)
    fresh = np.flatnonzero(other | (pause < 0) | (pause > PAUSE)) + 1
    begin = np.concatenate([[0], fresh]).astype(np.int64)
    end = np.concatenate([fresh, [len(who)]]).astype(np.int64)
    signal = np.array([record[3:] for record in records], dtype=np.float32)
    return Recordings(signal, begin, end, who[begin, 1], who[begin, 0], ACTIVITIES, HZ)


def good_records(text: str, spoilt: Iterator[int]) -> Iterator[Record]:
    """Records `person,activity,time,x,y,z;`, several of which may share a line; malformed ones are
    only counted.

    Faults of the official file: no line break between records, a comma before the semicolon, a
    missing value, time 0.
    """
    for piece in text.replace("\n", ";").split(";"):
        fields = piece.strip().rstrip(",").split(",")
        if fields == [""]:
            continue
        record = parse_record(fields)
        if record is None:
            next(spoilt)
        else:
            yield record


def parse_record(fields: list[str]) -> Record | None:
    """A record out of its six fields, or nothing."""
    try:
        person, activity, time, *values = fields
        x, y, z = map(float, values)
        record = int(person), ACTIVITIES.index(activity.strip().lower()), int(time), x, y, z
    except ValueError:
        return None
    return record if record[2] > 0 and bool(np.isfinite(record[3:]).all()) else None


@checked
def wisdm_features(
    split: Shares = (0.7, 0.1, 0.2),
) -> DividedPool:
    """43 features of stretches of 10 s by person; of each activity the first rows
    train, the last test.
    """
    arrays = cached_features()
    user = arrays["user"].astype(np.int64)
    label = arrays["label"].astype(np.int64)
    part = parts_in_order(user, label, split)
    names = [f"user-{person:02d}" for person in user.tolist()]
    about = {"name": "wisdm_features", "activities": list(ACTIVITIES), "split": list(split)}
    x = torch.from_numpy(fill_and_scale(np.array(arrays["F"]), part == TRAIN))
    return DividedPool(
        x, torch.from_numpy(label), len(ACTIVITIES), users=np.array(names), about=about, part=part
    )


def cached_features() -> Arrays:
    """The arrays of the compact file."""

    def read(local: LocalFiles) -> Arrays:
        names = ("F", "user", "label")
        arrays = compact(local, *names)
        return {name: arrays[name] for name in names}

    return cached_arrays(FEATURES, read)


def parts_in_order(user: Ints, label: Ints, split: Fractions) -> Ints:
    """Of each person and activity, the first rows train, the next validate, the last test."""
    kinds, kind = np.unique(user * (label.max(initial=0) + 1) + label, return_inverse=True)
    part = np.empty(len(user), np.int64)
    place = np.arange(len(user), dtype=np.float64)
    for number, rows in enumerate(cut_parts(Rows.by_owner(kind, len(kinds)), place, split)):
        part[rows.index] = number
    return part


def fill_and_scale(
    features: npt.NDArray[np.float32], training: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Features with mean 0 and deviation 1 on the training rows; a missing one is 0,
    which is their mean.
    """
    mean, deviation = np.nanmean(features[training], 0), np.nanstd(features[training], 0)
    scaled = (features - np.nan_to_num(mean)) / np.where(deviation > 0, deviation, 1)
    whole: npt.NDArray[np.float32] = np.nan_to_num(scaled).astype(np.float32)
    return whole


SETS = {
    "wisdm": StoredSet(
        "wisdm",
        wisdm,
        6,
        "signals",
        "36 people with a phone in the pocket, 6 activities, 3 x 52",
        FILES,
    ),
    "wisdm_features": StoredSet(
        "wisdm_features",
        wisdm_features,
        6,
        "features",
        "WISDM v1.1 as 43 ready-made features",
        FEATURES,
    ),
}
