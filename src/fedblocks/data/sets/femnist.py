"""FEMNIST: digits and letters by writer, in the json files that LEAF's preprocessing writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.core.options import Help
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.idx import MEAN, STD
from fedblocks.data.sets.pixels import Bytes, Part, pool_of

HOME = "https://github.com/TalwalkarLab/leaf"
PIXELS = 28 * 28
FEMNIST = FileSet(
    "femnist",
    HOME,
    (
        FileSource("json", (File("train/*.json"), File("test/*.json"))),
        FileSource("json", (File("all_data/*.json"),)),
    ),
)


@checked
def femnist(
    part: Annotated[
        Part, Help("all, train or test; files that LEAF has not split are all train")
    ] = "all",
) -> DataPool:
    """Images [rows, 1, 28, 28] of 62 classes with their writer as the user; the
    background is white (1) as in LEAF.
    """
    about = {"name": "femnist", "source": HOME}
    return pool_of(cached_arrays(FEMNIST, decode), part, MEAN, STD, 62, about)


def decode(local: LocalFiles) -> Arrays:
    """All files, the test part last."""
    test = [path for path in local.paths if path.parent.name == "test"]
    train = [writer for path in local.paths if path not in test for writer in writers(path)]
    pieces = [*train, *(writer for path in test for writer in writers(path))]
    users = np.array([name for name, x, _ in pieces for _ in range(len(x))], dtype=np.str_)
    count = sum(len(x) for _, x, _ in train)
    x = np.concatenate([x for _, x, _ in pieces]).reshape(-1, 1, 28, 28)
    y = np.concatenate([y for _, _, y in pieces])
    return {"x": x, "y": y, "user": users, "train_rows": np.array(count)}


def writers(path: Path) -> list[tuple[str, Bytes, Bytes]]:
    """Name, pixels and labels of each writer in a file."""
    try:
        held = json.loads(path.read_bytes())
        data = held["user_data"]
        return [
            (name, pixels(data[name]["x"]), np.array(data[name]["y"], np.uint8))
            for name in held["users"]
        ]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        fix = (
            "it is damaged or not a json file of LEAF's FEMNIST: make it again with LEAF's "
            "preprocess.sh"
        )
        raise DataError(f"{path} cannot be read: {error!r}", fix) from error


def pixels(rows: list[Any]) -> Bytes:
    """LEAF's numbers are bytes divided by 255, so bytes keep them exactly."""
    values: npt.NDArray[np.float64] = np.array(rows, np.float64).reshape(-1, PIXELS)
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("pixels outside 0..1")
    return np.rint(values * 255).astype(np.uint8)


SETS = {
    "femnist": StoredSet(
        "femnist", femnist, 62, "images", "805,263 digits and letters of 3,550 writers", FEMNIST
    )
}
