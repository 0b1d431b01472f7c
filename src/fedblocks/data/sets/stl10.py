"""STL-10 (Coates et al., 2011), binary version: its 5,000 training and 8,000 test
images that have labels.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedblocks.core.errors import DataError
from fedblocks.core.options import Help
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.pixels import Part, pool_of, square

HOME = "https://cs.stanford.edu/~acoates/stl10/"
# of the training images, as commonly published
MEAN, STD = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)
NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SHAPE = (3, 96, 96)
TARBALL = File(
    "stl10_binary.tar.gz",
    2_640_397_119,
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
)
UNPACKED = (
    File("train_X.bin", 138_240_000),
    File("train_y.bin", 5_000),
    File("test_X.bin", 221_184_000),
    File("test_y.bin", 8_000),
)
STL10 = FileSet("stl10", HOME, (FileSource("binary", UNPACKED), FileSource("binary", (TARBALL,))))


@checked
def stl10(
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Images [rows, 3, 96, 96] of ten classes, normalised; 5,000 to train and 8,000 to test."""
    about = {"name": "stl10", "source": HOME, "class_names": list(NAMES)}
    return pool_of(cached_arrays(STL10, decode), part, MEAN, STD, 10, about)


def decode(local: LocalFiles) -> Arrays:
    """Images are stored channel by channel and column by column, labels count from 1."""
    names = [f"{part}_{kind}.bin" for part in ("train", "test") for kind in ("X", "y")]
    raw = contents(local, *names)
    images = [square(raw[name], SHAPE, name) for name in names[::2]]
    labels = [square(raw[name], (), name) for name in names[1::2]]
    if [len(x) for x in images] != [len(y) for y in labels] or min(y.min() for y in labels) < 1:
        raise DataError(
            "images and labels of STL-10 do not belong together", f"get the files again; see {HOME}"
        )
    x = np.concatenate(images).swapaxes(-1, -2)
    return {
        "x": np.ascontiguousarray(x),
        "y": np.concatenate(labels) - 1,
        "train_rows": np.array(len(labels[0])),
    }


SETS = {
    "stl10": StoredSet(
        "stl10", stl10, 10, "images", "13,000 photographs of 10 classes, 96 x 96", STL10
    )
}
