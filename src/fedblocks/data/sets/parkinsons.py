"""A regression on a table by person: severity of Parkinson's disease from recordings of the voice.

Source: A. Tsanas and M. Little (2009), Parkinsons Telemonitoring, UCI Machine Learning Repository,
https://doi.org/10.24432/C5ZS3N.
"""

from __future__ import annotations

import csv
import io

import numpy as np
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.options import Shares, checked
from fedblocks.data.rows import Rows
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.divided import TRAIN, DividedPool
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.wisdm import fill_and_scale
from fedblocks.data.splits import cut_parts

NAME = "parkinsons_updrs.data"
ARCHIVE = "parkinsons+telemonitoring.zip"
PERSON, TIME = "subject#", "test_time"
TARGETS = ("motor_UPDRS", "total_UPDRS")
POINTS = 10.0  # targets are in tens of points, so that they are about 1 in size
FEATURES = (
    *("age", "sex", TIME, "Jitter(%)", "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP"),
    *("Shimmer", "Shimmer(dB)", "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA"),
    *("NHR", "HNR", "RPDE", "DFA", "PPE"),
)
FILES = FileSet(
    "parkinsons",
    "https://archive.ics.uci.edu/dataset/189",
    (
        FileSource("table", (File(NAME),)),
        FileSource(
            "table",
            (File(ARCHIVE, url=f"https://archive.ics.uci.edu/static/public/189/{ARCHIVE}"),),
        ),
    ),
)


@checked
def parkinsons(split: Shares = (0.7, 0.1, 0.2)) -> DividedPool:
    """19 features of a voice and two scores of severity, in tens of points, by person; a person's
    first recordings train, the last ones test.
    """
    arrays = cached_arrays(FILES, read_table)
    people, owner = np.unique(arrays["person"].astype(np.int64), return_inverse=True)
    part = np.empty(len(owner), np.int64)
    time = np.array(arrays["x"][:, FEATURES.index(TIME)], np.float64)
    for number, rows in enumerate(cut_parts(Rows.by_owner(owner, len(people)), time, split)):
        part[rows.index] = number
    x = fill_and_scale(np.array(arrays["x"], np.float32), part == TRAIN)
    return DividedPool(
        x=torch.from_numpy(x),
        y=torch.from_numpy(np.array(arrays["y"], np.float32) / np.float32(POINTS)),
        classes=len(TARGETS),
        users=np.array([f"person-{person:02d}" for person in people[owner].tolist()]),
        about={"name": "parkinsons", "unit": "10 points", "split": list(split)}
        | {"class_names": list(TARGETS), "columns": list(FEATURES)},
        task=Task("regression"),
        part=part,
    )


def read_table(local: LocalFiles) -> Arrays:
    """The columns by their names, as the official file has them."""
    text = contents(local, NAME)[NAME].decode("utf-8", errors="replace")
    first, *lines = [line for line in csv.reader(io.StringIO(text)) if line] or [[]]
    wanted = (PERSON, *TARGETS, *FEATURES)
    fix = f"it is damaged, cut short or another file: get it again; see {FILES.home}"
    if missing := [name for name in wanted if name not in first]:
        raise DataError(f'{NAME} has no column "{missing[0]}"', fix)
    if odd := next((n for n, line in enumerate(lines, 2) if len(line) != len(first)), None):
        raise DataError(f"line {odd} of {NAME} has not {len(first)} fields", fix)
    try:
        numbers = np.array(lines, dtype=np.float64).reshape(len(lines), len(first))
    except ValueError as error:
        raise DataError(f"{NAME} cannot be read: {error}", fix) from error
    if not len(lines) or not np.isfinite(numbers).all():
        raise DataError(f"{NAME} has no rows, or values that are no numbers", fix)
    column = {name: numbers[:, place] for place, name in enumerate(first)}
    x = np.stack([column[name] for name in FEATURES], 1)
    y = np.stack([column[name] for name in TARGETS], 1)
    return {"x": x, "y": y, "person": column[PERSON].astype(np.int64)}


SETS = {
    "parkinsons": StoredSet(
        "parkinsons",
        parkinsons,
        len(TARGETS),
        "features",
        "5,875 voice recordings of 42 people: two scores of severity, numbers",
        FILES,
    )
}
