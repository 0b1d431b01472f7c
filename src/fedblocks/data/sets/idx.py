"""MNIST, Fashion-MNIST and EMNIST in the idx format, and two compact files with writers
and upright letters.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.core.options import Help
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cache import Arrays, cached_arrays
from fedblocks.data.sets.contents import contents
from fedblocks.data.sets.files import File, FileSet, FileSource, LocalFiles, StoredSet
from fedblocks.data.sets.pixels import Bytes, Part, pool_of
from fedblocks.data.storage import read_arrays

MEAN, STD = (0.1307,), (0.3081,)
PARTS = ("train", "t10k")
Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
# classes of each
SPLITS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
WRITERS_HOME = "https://github.com/facebookresearch/qmnist"
EMNIST_HOME = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
EMNIST_ZIP = File(
    "gzip.zip",
    sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
)


def idx_files(site: str, known: dict[str, tuple[int, str]]) -> tuple[FileSource, ...]:
    """The four files of MNIST and its likes, with size and SHA-256."""
    return (
        FileSource("idx", tuple(File(name, *about, site + name) for name, about in known.items())),
    )


MNIST = FileSet(
    "mnist",
    "http://yann.lecun.com/exdb/mnist/",
    idx_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        {
            "train-images-idx3-ubyte.gz": (
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            "train-labels-idx1-ubyte.gz": (
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            "t10k-images-idx3-ubyte.gz": (
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        },
    ),
)
FASHION = FileSet(
    "fashion_mnist",
    "https://github.com/zalandoresearch/fashion-mnist",
    idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": (
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            "train-labels-idx1-ubyte.gz": (
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            "t10k-images-idx3-ubyte.gz": (
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        },
    ),
)
WRITERS_FILE = File(
    "mnist_writers.npz",
    9_496_003,
    "1a1e2f8debaf538fe0b8b7da1ed075268d6b184f0595b8498600d4c76efae85d",
)
WRITERS = FileSet("mnist_writers", WRITERS_HOME, (FileSource("compact", (WRITERS_FILE,)),))
LETTERS_FILE = File(
    "emnist_byclass.npz",
    22_630_936,
    "66abbad0f46ba3b1e12d80192f257375ade517f4649ce3aeaaa32df1c7ed1f26",
)


def emnist_files(split: Split) -> FileSet:
    """The files of one of EMNIST's six splits; the compact file holds the test part of ByClass."""
    kinds = [
        f"{part}-{what}-ubyte"
        for part in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    ]
    sources = [
        FileSource("idx", tuple(File(f"emnist-{split}-{kind}.gz") for kind in kinds)),
        FileSource("idx", (EMNIST_ZIP,)),
        FileSource("mat", (File(f"emnist-{split}.mat"),)),
    ]
    compact = [FileSource("compact", (LETTERS_FILE,))] if split == "byclass" else []
    return FileSet("emnist", EMNIST_HOME, (*sources, *compact))


@checked
def mnist(
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Handwritten digits [rows, 1, 28, 28], normalised; 60,000 to train and 10,000 to test."""
    about = {"name": "mnist", "source": MNIST.home}
    return pool_of(cached_arrays(MNIST, decode_mnist), part, MEAN, STD, 10, about)


@checked
def fashion_mnist(
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Pictures of clothes [rows, 1, 28, 28], normalised like MNIST; 60,000 to train and
    10,000 to test.
    """
    about = {"name": "fashion_mnist", "source": FASHION.home}
    return pool_of(cached_arrays(FASHION, decode_mnist), part, MEAN, STD, 10, about)


@checked
def mnist_writers(
    part: Annotated[Part, Help("all, train (539 writers) or test (297 others)")] = "all",
) -> DataPool:
    """MNIST with who wrote each digit as the user, from the published NIST writer ids."""
    about = {"name": "mnist_writers", "source": WRITERS_HOME}
    return pool_of(cached_arrays(WRITERS, decode_compact), part, MEAN, STD, 10, about)


@checked
def emnist(
    split: Annotated[
        Split, Help("byclass, bymerge, balanced, letters, digits or mnist")
    ] = "byclass",
    part: Annotated[Part, Help("all, train or test")] = "all",
) -> DataPool:
    """Handwritten digits and letters [rows, 1, 28, 28], upright and normalised."""
    arrays = cached_arrays(emnist_files(split), decode_emnist, split=split)
    if part != "test" and not int(arrays["train_rows"]):
        fix = f'choose part = "test", or get the official files; see {EMNIST_HOME}'
        raise DataError("the compact file of EMNIST holds the official test part only", fix)
    about = {"name": "emnist", "split": split, "source": EMNIST_HOME}
    return pool_of(arrays, part, MEAN, STD, SPLITS[split], about)


def decode_mnist(local: LocalFiles) -> Arrays:
    """The four files of MNIST and its likes."""
    raw = contents(local, *(f"{part}-{kind}" for part in PARTS for kind in ("images*", "labels*")))
    return join_parts(
        [(raw[f"{part}-images-idx3-ubyte"], raw[f"{part}-labels-idx1-ubyte"]) for part in PARTS],
        local,
    )


def decode_emnist(local: LocalFiles) -> Arrays:
    """A split of EMNIST; its images are stored lying on their side, and letters count from 1."""
    if local.source.form == "compact":
        return decode_compact(local)
    split = local.files.sources[0].files[0].name.split("-")[1]
    arrays = decode_mat(local) if local.source.form == "mat" else decode_emnist_idx(local, split)
    arrays["x"] = np.ascontiguousarray(arrays["x"].swapaxes(-1, -2))
    arrays["y"] = arrays["y"] - np.uint8(split == "letters")
    return arrays


def decode_emnist_idx(local: LocalFiles, split: str) -> Arrays:
    """The four idx files of a split."""
    raw = contents(local, f"emnist-{split}-*-images*", f"emnist-{split}-*-labels*")
    names = [f"emnist-{split}-{part}" for part in ("train", "test")]
    return join_parts(
        [(raw[f"{name}-images-idx3-ubyte"], raw[f"{name}-labels-idx1-ubyte"]) for name in names],
        local,
    )


def decode_mat(local: LocalFiles) -> Arrays:
    """The MATLAB file of a split, read with scipy."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        fix = 'install "fedblocks[analysis]", or use the idx files of gzip.zip'
        raise DataError("MATLAB files need the package scipy", fix) from error
    try:
        held = loadmat(str(local.paths[0]))["dataset"][0, 0]
        parts = [held[name][0, 0] for name in ("train", "test")]
        x = np.concatenate([part["images"].reshape(-1, 1, 28, 28) for part in parts])
        y = np.concatenate([part["labels"].reshape(-1) for part in parts])
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise DataError(
            f"{local.paths[0]} cannot be read: {error}", "get it again, or use the idx files"
        ) from error
    return {
        "x": x.astype(np.uint8),
        "y": y.astype(np.uint8),
        "train_rows": np.array(len(parts[0]["labels"])),
    }


def decode_compact(local: LocalFiles) -> Arrays:
    """X, y, and the writer where there is one; without n_train all rows are for testing."""
    held = read_arrays(local.paths[0])
    writer = {"user": held["writer"].astype(np.int64)} if "writer" in held else {}
    return {
        "x": held["X"][:, None],
        "y": held["y"],
        "train_rows": held.get("n_train", np.array(0)),
        **writer,
    }


def join_parts(parts: list[tuple[bytes, bytes]], local: LocalFiles) -> Arrays:
    """Images and labels of the train and the test part, one after the other."""
    images = [read_idx(x, f"images of {local.files.folder}") for x, _ in parts]
    labels = [read_idx(y, f"labels of {local.files.folder}") for _, y in parts]
    for x, y in zip(images, labels):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            message = f"images of shape {list(x.shape)} with labels of shape {list(y.shape)}"
            raise DataError(
                f"{local.files.folder}: {message}", f"get the files again; see {local.files.home}"
            )
    x, y = np.concatenate(images)[:, None], np.concatenate(labels)
    return {"x": x, "y": y, "train_rows": np.array(len(labels[0]))}


def read_idx(raw: bytes, name: str) -> npt.NDArray[Any] | Bytes:
    """An array of bytes in the idx format: 0 0 8, the number of axes, the axes, the bytes."""
    fix = "it is damaged, cut short, or not an idx file: get it again"
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{name} is not an idx file of bytes", fix)
    begin = 4 + 4 * raw[3]
    if len(raw) < begin:
        raise DataError(f"{name} ends before it says how much it holds", fix)
    shape = struct.unpack(f">{raw[3]}I", raw[4:begin])
    if int(np.prod(shape)) != len(raw) - begin:
        raise DataError(f"{name} should hold {list(shape)} bytes but holds {len(raw) - begin}", fix)
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(shape)


SETS = {
    "mnist": StoredSet("mnist", mnist, 10, "images", "70,000 handwritten digits, 28 x 28", MNIST),
    "fashion_mnist": StoredSet(
        "fashion_mnist",
        fashion_mnist,
        10,
        "images",
        "70,000 pictures of 10 kinds of clothes, 28 x 28",
        FASHION,
    ),
    "mnist_writers": StoredSet(
        "mnist_writers",
        mnist_writers,
        10,
        "images",
        "MNIST with the writer of each digit, 836 users",
        WRITERS,
    ),
    "emnist": StoredSet(
        "emnist",
        emnist,
        None,
        "images",
        "814,255 handwritten digits and letters, 28 x 28",
        emnist_files("byclass"),
    ),
}
