"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): binary and python versions, and a compact
file of JPEG mosaics.
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
from fedblocks.data.sets.pixels import Bytes, Part, picture, pool_of, square
from fedblocks.data.sets.python_batches import read_batch
from fedblocks.data.storage import read_arrays

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
SITE = "https://www.cs.toronto.edu/~kriz/"
# of CIFAR-10, for both sets as in FedEM's test-bed
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def archive(name: str, size: int, sha256: str) -> tuple[File, ...]:
    """The one file of a packed source."""
    return (File(name, size, sha256, SITE + name),)


CIFAR10 = FileSet(
    "cifar10",
    HOME,
    (
        FileSource(
            "binary", tuple(File(f"{batch}.bin", 30_730_000) for batch in (*BATCHES, "test_batch"))
        ),
        FileSource(
            "binary",
            archive(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        FileSource(
            "python",
            tuple(File(f"cifar-10-batches-py/{batch}") for batch in (*BATCHES, "test_batch")),
        ),
        FileSource(
            "python",
            archive(
                "cifar-10-python.tar.gz",
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        FileSource(
            "compact",
            (
                File(
                    "cifar10.npz",
                    45_320_252,
                    "fd424e520f9448148af14abbaa085bc41e1e0bf91ce7a3cb8fe7f6dd0db722ca",
                ),
            ),
        ),
    ),
)
CIFAR100 = FileSet(
    "cifar100",
    HOME,
    (
        FileSource("binary", (File("train.bin", 153_700_000), File("test.bin", 30_740_000))),
        FileSource(
            "binary",
            archive(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        FileSource("python", (File("cifar-100-python/train"), File("cifar-100-python/test"))),
        FileSource(
            "python",
            archive(
                "cifar-100-python.tar.gz",
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        FileSource(
            "compact",
            (
                File(
                    "cifar100.npz",
                    46_206_352,
                    "2b7434731daeebe684596005b73565556d03485d403ab89fb68664389e26c3dd",
                ),
            ),
        ),
    ),
)


@checked
def cifar10(
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Images [rows, 3, 32, 32] of ten classes, normalised; 50,000 to train and 10,000 to test."""
    arrays = cached_arrays(CIFAR10, decode10)
    about = {"name": "cifar10", "source": HOME, "class_names": list(NAMES)}
    return pool_of(arrays, part, MEAN, STD, 10, about)


@checked
def cifar100(
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Images [rows, 3, 32, 32] of 100 classes in 20 coarse ones, normalised; 50,000 to
    train and 10,000 to test.
    """
    about = {"name": "cifar100", "source": HOME}
    return pool_of(cached_arrays(CIFAR100, decode100), part, MEAN, STD, 100, about)


def decode10(local: LocalFiles) -> Arrays:
    """Pixels and labels of CIFAR-10."""
    if local.source.form == "compact":
        return decode_mosaics(local)
    names = [*BATCHES, "test_batch"]
    if local.source.form == "binary":
        raw = contents(local, *(f"{name}.bin" for name in names))
        records = [square(raw[f"{name}.bin"], (3073,), f"{name}.bin") for name in names]
        labels = [record[:, 0] for record in records]
        return join_batches([record[:, 1:] for record in records], {"y": labels})
    raw = contents(local, *names)
    batches = [read_batch(raw[name], name) for name in names]
    labels = [np.array(batch["labels"], np.uint8) for batch in batches]
    return join_batches([batch["data"] for batch in batches], {"y": labels})


def decode100(local: LocalFiles) -> Arrays:
    """Pixels, fine and coarse labels of CIFAR-100."""
    if local.source.form == "compact":
        return decode_mosaics(local)
    if local.source.form == "binary":
        raw = contents(local, "train.bin", "test.bin")
        records = [square(raw[name], (3074,), name) for name in ("train.bin", "test.bin")]
        labels = {
            "y": [record[:, 1] for record in records],
            "coarse": [record[:, 0] for record in records],
        }
        return join_batches([record[:, 2:] for record in records], labels)
    raw = contents(local, "train", "test")
    batches = [read_batch(raw[name], name) for name in ("train", "test")]
    kinds = {"y": "fine_labels", "coarse": "coarse_labels"}
    labels = {
        name: [np.array(batch[key], np.uint8) for batch in batches] for name, key in kinds.items()
    }
    return join_batches([batch["data"] for batch in batches], labels)


def join_batches(pixels: list[Bytes], labels: dict[str, list[Bytes]]) -> Arrays:
    """Batches one after the other; the last one is the official test part."""
    x = np.concatenate(pixels).reshape(-1, *SHAPE)
    train = np.array(len(x) - len(pixels[-1]))
    arrays: Arrays = {
        "x": x,
        "train_rows": train,
        **{name: np.concatenate(parts) for name, parts in labels.items()},
    }
    if any(len(arrays[name]) != len(x) for name in labels):
        raise DataError(
            f"{len(x)} images but {len(arrays['y'])} labels", "get the official files again"
        )
    return arrays


def decode_mosaics(local: LocalFiles) -> Arrays:
    """The compact file: every JPEG holds tile x tile images side by side."""
    held = read_arrays(local.paths[0])
    tile = int(held["tile"])
    sheets = sorted(name for name in held if name.startswith("jpg_"))
    x = np.empty((len(held["y"]), *SHAPE), np.uint8)
    for number, name in enumerate(sheets):
        # [tile * 32, tile * 32, 3]
        sheet = picture(held[name].tobytes(), f"{name} of {local.paths[0]}")
        # [row, column, channel, height, width]
        cells = sheet.reshape(tile, 32, tile, 32, 3).transpose(0, 2, 4, 1, 3)
        x[number * tile**2 : (number + 1) * tile**2] = cells.reshape(-1, *SHAPE)
    coarse = {"coarse": held["y_coarse"]} if "y_coarse" in held else {}
    return {"x": x, "y": held["y"], "train_rows": held["n_train"], **coarse}


SETS = {
    "cifar10": StoredSet(
        "cifar10", cifar10, 10, "images", "60,000 photographs of 10 classes, 32 x 32", CIFAR10
    ),
    "cifar100": StoredSet(
        "cifar100", cifar100, 100, "images", "60,000 photographs of 100 classes, 32 x 32", CIFAR100
    ),
}
