"""Image sets from tiny files of the official formats, which the tests write themselves."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data import DATASETS, DataPool, dataset
from fedblocks.data.sets import cifar, describe_sets, fetch, idx, stl10
from fedblocks.data.sets.files import FileSet, StoredSet
from fedblocks.data.sets.python_batches import read_batch

RNG = np.random.Generator(np.random.PCG64(7))


def tiny(files: FileSet) -> FileSet:
    """The same files without their official sizes and hashes, which tiny files do not have."""
    sources = (
        replace(s, files=tuple(replace(f, size=None, sha256="") for f in s.files))
        for s in files.sources
    )
    return replace(files, sources=tuple(sources))


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in [
        (cifar, "CIFAR10"),
        (cifar, "CIFAR100"),
        (idx, "MNIST"),
        (idx, "FASHION"),
        (stl10, "STL10"),
    ]:
        monkeypatch.setattr(module, name, tiny(getattr(module, name)))
    monkeypatch.setattr(idx, "EMNIST_ZIP", replace(idx.EMNIST_ZIP, sha256=""))
    monkeypatch.setattr(idx, "WRITERS", tiny(idx.WRITERS))


def some(*shape: int, top: int = 256) -> np.ndarray:
    return RNG.integers(0, top, shape, dtype=np.uint8)


def scaled(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """(x / 255 - mean) / std in double precision: the oracle of the preprocessing."""
    shape = (1, -1, 1, 1)
    values = (pixels / 255 - np.reshape(mean, shape)) / np.reshape(std, shape)
    return torch.from_numpy(values).float()


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))


def batch(data: np.ndarray, **labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it: protocol 2, byte strings, an array by its class
    names and raw bytes.
    """
    text = lambda value: b"U" + bytes([len(value)]) + value
    out = b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5") + b"q\x02"
    for name, values in labels.items():
        numbers = b"".join(b"K" + bytes([value]) for value in values)
        out += text(name.encode()) + b"]q\x03(" + numbers + b"e"
    rows, columns = data.shape
    out += text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\nq\x04"
    out += b"cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87Rq\x06"
    out += b"(K\x01" + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    out += b"cnumpy\ndtype\nq\x07U\x02u1K\x00K\x01\x87Rq\x08"
    out += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    out += b"\x89T" + struct.pack("<I", data.size) + data.tobytes() + b"tb"
    return out + text(b"filenames") + b"]q\x09(" + text(b"a.png") + text(b"b.png") + b"eu."


def cifar10_members(form: str) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """Six batches of three images, in the binary or the python version."""
    x, y = some(18, 3072), some(18, top=10)
    names = [*cifar.BATCHES, "test_batch"]
    pieces = {name: (x[3 * i : 3 * i + 3], y[3 * i : 3 * i + 3]) for i, name in enumerate(names)}
    if form == "binary":
        records = {n: np.concatenate([b[:, None], a], 1).tobytes() for n, (a, b) in pieces.items()}
        return {f"cifar-10-batches-bin/{n}.bin": raw for n, raw in records.items()}, x, y
    return (
        {f"cifar-10-batches-py/{n}": batch(a, labels=b.tolist()) for n, (a, b) in pieces.items()},
        x,
        y,
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar10_is_read_in_both_versions_packed_or_not(
    data_folder: Path, form: str, packed: bool
) -> None:
    members, x, y = cifar10_members(form)
    if packed:
        tar(data_folder / f"cifar-10-{form}.tar.gz", members)
    else:
        for name, raw in members.items():
            path = data_folder / "cifar10" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
    pool = cifar.cifar10()
    torch.testing.assert_close(pool.x, scaled(x.reshape(-1, 3, 32, 32), cifar.MEAN, cifar.STD))
    assert pool.y.tolist() == y.tolist() and pool.about["train_rows"] == 15 and pool.classes == 10
    assert (
        cifar.cifar10("train").y.tolist() == y[:15].tolist()
        and cifar.cifar10("test").y.tolist() == y[15:].tolist()
    )


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100_has_fine_and_coarse_labels(data_folder: Path, form: str) -> None:
    x, fine, coarse = some(6, 3072), some(6, top=100), some(6, top=20)
    pieces = {"train": slice(0, 4), "test": slice(4, 6)}
    if form == "binary":
        whole = np.concatenate([coarse[:, None], fine[:, None], x], 1)
        members = {
            f"cifar-100-binary/{name}.bin": whole[rows].tobytes() for name, rows in pieces.items()
        }
    else:
        labels = {
            n: {"fine_labels": fine[r].tolist(), "coarse_labels": coarse[r].tolist()}
            for n, r in pieces.items()
        }
        members = {
            f"cifar-100-python/{name}": batch(x[rows], **labels[name])
            for name, rows in pieces.items()
        }
    tar(data_folder / f"cifar-100-{form}.tar.gz", members)
    pool = cifar.cifar100()
    torch.testing.assert_close(pool.x, scaled(x.reshape(-1, 3, 32, 32), cifar.MEAN, cifar.STD))
    assert (
        pool.y.tolist() == fine.tolist()
        and pool.coarse is not None
        and pool.coarse.tolist() == coarse.tolist()
    )
    assert cifar.cifar100("test").coarse.tolist() == coarse[4:].tolist()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"cos\nsystem\n(U\x04true\x85R.", "asks for os system"),
        (b"\x80\x02cbuiltins\neval\nU\x01a\x85R.", "asks for builtins eval"),
        (b"\x80\x04\x95", "newer"),
        (b"cnumpy\nndarray\nK\x00\x85R.", "calls numpy ndarray"),
        (b"(icollections\nOrderedDict\n.", "not one that plain data need"),
        (b"\x80\x02}q\x01(U\x04data", "ends too early"),
        (b"]K\x01b.", "not an array"),
        (b"e.", "not a batch"),
        (b"", "ends too early"),
    ],
)
def test_a_pickle_that_is_more_than_plain_data_is_refused_and_runs_nothing(
    raw: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_batch(raw, "batch")


def test_a_cut_batch_names_the_file(data_folder: Path) -> None:
    members, _, _ = cifar10_members("binary")
    members["cifar-10-batches-bin/test_batch.bin"] = members["cifar-10-batches-bin/test_batch.bin"][
        :-1
    ]
    tar(data_folder / "cifar-10-binary.tar.gz", members)
    with pytest.raises(DataError, match=r"test_batch\.bin holds 9218 bytes"):
        cifar.cifar10()
    assert not (data_folder / ".cache").exists()


def as_idx(values: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.tobytes()
    )


def mnist_members(x: np.ndarray, y: np.ndarray, train: int) -> dict[str, bytes]:
    parts = {"train": slice(0, train), "t10k": slice(train, None)}
    images = {f"{name}-images-idx3-ubyte": as_idx(x[rows]) for name, rows in parts.items()}
    return images | {f"{name}-labels-idx1-ubyte": as_idx(y[rows]) for name, rows in parts.items()}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_mnist_and_fashion_mnist_are_read_gz_or_not(
    data_folder: Path, name: str, packed: bool
) -> None:
    x, y = some(7, 28, 28), some(7, top=10)
    (data_folder / name).mkdir()
    for file, raw in mnist_members(x, y, 5).items():
        path = data_folder / name / (f"{file}.gz" if packed else file)
        path.write_bytes(gzip.compress(raw) if packed else raw)
    pool = dataset(name).load()
    torch.testing.assert_close(pool.x, scaled(x[:, None], (0.1307,), (0.3081,)))
    assert pool.y.tolist() == y.tolist() and dataset(name).load("test").y.tolist() == y[5:].tolist()
    with pytest.raises(DataError, match='part = "tests": must be "all" or'):
        dataset(name).load("tests")


def test_the_files_of_mnist_are_not_taken_for_those_of_fashion_mnist(data_folder: Path) -> None:
    for file, raw in mnist_members(some(2, 28, 28), some(2, top=10), 1).items():
        (data_folder / file).write_bytes(raw)
    with pytest.raises(DataError, match='"fashion_mnist" are not in'):
        idx.fashion_mnist()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: raw[:-1], r"should hold \[2, 28, 28\] bytes but holds 1567"),
        (lambda raw: b"PK" + raw, "not an idx file"),
        (lambda raw: raw[:6], "ends before it says how much it holds"),
        (lambda raw: as_idx(some(3, 28, 28)), r"shape \[3, 28, 28\] with labels of shape \[2\]"),
    ],
)
def test_a_spoilt_idx_file_is_refused(data_folder: Path, spoil, message: str) -> None:
    (data_folder / "mnist").mkdir()
    for file, raw in mnist_members(some(4, 28, 28), some(4, top=10), 2).items():
        (data_folder / "mnist" / file).write_bytes(
            spoil(raw) if file.startswith("t10k-images") else raw
        )
    with pytest.raises(DataError, match=message):
        idx.mnist()
    assert not (data_folder / ".cache").exists()


def emnist_zip(path: Path, split: str, x: np.ndarray, y: np.ndarray, train: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        # stored lying on its side
        for file, raw in mnist_members(x.swapaxes(1, 2), y, train).items():
            name = f"gzip/emnist-{split}-{file.replace('t10k', 'test')}.gz"
            archive.writestr(name, gzip.compress(raw))


@pytest.mark.parametrize(("split", "first", "classes"), [("byclass", 0, 62), ("letters", 1, 26)])
def test_emnist_is_upright_and_counts_from_0(
    data_folder: Path, split: str, first: int, classes: int
) -> None:
    x, y = some(5, 28, 28), some(5, top=classes)
    emnist_zip(data_folder / "gzip.zip", split, x, y + first, 3)
    pool = idx.emnist(split)
    torch.testing.assert_close(pool.x, scaled(x[:, None], (0.1307,), (0.3081,)))
    assert (
        pool.y.tolist() == y.tolist() and pool.classes == classes and pool.about["train_rows"] == 3
    )


def test_emnist_in_matlab_files_is_the_same_as_in_idx_files(data_folder: Path) -> None:
    savemat = pytest.importorskip(
        "scipy.io", reason="needs scipy: pip install 'fedblocks[analysis]'"
    ).savemat
    x, y = some(5, 28, 28), some(5, top=47)
    part = lambda rows: {
        "images": x.swapaxes(1, 2)[rows].reshape(-1, 784),
        "labels": y[rows][:, None].astype(float),
    }
    path = data_folder / "emnist" / "emnist-balanced.mat"
    path.parent.mkdir()
    savemat(
        path,
        {
            "dataset": {
                "train": part(slice(3)),
                "test": part(slice(3, 5)),
                "mapping": np.zeros((47, 2)),
            }
        },
    )
    pool = idx.emnist("balanced")
    torch.testing.assert_close(pool.x, scaled(x[:, None], (0.1307,), (0.3081,)))
    assert pool.y.tolist() == y.tolist() and pool.about["train_rows"] == 3
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="cannot be read"):
        idx.emnist("balanced")


def test_a_split_of_emnist_that_does_not_exist_gets_the_names_of_all(data_folder: Path) -> None:
    with pytest.raises(DataError, match='must be "byclass" or "bymerge" or "balanced"'):
        idx.emnist("by_class")


@pytest.mark.parametrize("packed", [True, False])
def test_stl10_is_stored_by_column_and_counts_from_1(data_folder: Path, packed: bool) -> None:
    x, y = some(3, 3, 96, 96), some(3, top=10)
    files = {"train": slice(0, 2), "test": slice(2, 3)}
    members = {
        f"stl10_binary/{n}_X.bin": x[rows].swapaxes(2, 3).tobytes() for n, rows in files.items()
    }
    members |= {f"stl10_binary/{n}_y.bin": (y[rows] + 1).tobytes() for n, rows in files.items()}
    if packed:
        tar(
            data_folder / "stl10_binary.tar.gz",
            members | {"stl10_binary/unlabeled_X.bin": b"not read"},
        )
    else:
        (data_folder / "stl10" / "stl10_binary").mkdir(parents=True)
        for name, raw in members.items():
            (data_folder / "stl10" / name).write_bytes(raw)
    pool = stl10.stl10()
    torch.testing.assert_close(pool.x, scaled(x, stl10.MEAN, stl10.STD))
    assert pool.y.tolist() == y.tolist() and stl10.stl10("test").y.tolist() == y[2:].tolist()


def leaf(users: dict[str, tuple[np.ndarray, list[int]]]) -> str:
    data = {name: {"x": (x / 255).tolist(), "y": y} for name, (x, y) in users.items()}
    return json.dumps(
        {
            "users": list(data),
            "num_samples": [len(v["y"]) for v in data.values()],
            "user_data": data,
        }
    )


def test_femnist_keeps_pixels_exactly_and_knows_the_writers(data_folder: Path) -> None:
    a, b, c = some(2, 784), some(1, 784), some(1, 784)
    for part, users in {
        "train": {"f1": (a, [0, 61]), "f2": (b, [10])},
        "test": {"f1": (c, [5])},
    }.items():
        (data_folder / "femnist" / "data" / part).mkdir(parents=True)
        (data_folder / "femnist" / "data" / part / "all_data_0.json").write_text(leaf(users))
    pool: DataPool = DATASETS["femnist"].load()
    pixels = np.concatenate([a, b, c]).reshape(-1, 1, 28, 28)
    torch.testing.assert_close(pool.x, scaled(pixels, (0.1307,), (0.3081,)))
    assert pool.users.tolist() == ["f1", "f1", "f2", "f1"] and pool.y.tolist() == [0, 61, 10, 5]
    assert pool.about["train_rows"] == 3 and DATASETS["femnist"].load("test").users.tolist() == [
        "f1"
    ]


@pytest.mark.parametrize(
    "text", ['{"users": ["a"]}', '{"users": ["a"], "user_da', leaf({"a": (some(1, 783), [1])})]
)
def test_a_spoilt_json_file_is_refused(data_folder: Path, text: str) -> None:
    (data_folder / "femnist" / "all_data").mkdir(parents=True)
    (data_folder / "femnist" / "all_data" / "one.json").write_text(text)
    with pytest.raises(DataError, match=r"one\.json cannot be read"):
        DATASETS["femnist"].load()


def test_mnist_with_writers_has_users(data_folder: Path) -> None:
    x, y, writer = some(4, 28, 28), some(4, top=10), np.array([7, 7, 9, 3], np.uint16)
    np.savez(data_folder / "mnist_writers.npz", X=x, y=y, writer=writer, hsf=y, n_train=np.array(3))
    pool = idx.mnist_writers("train")
    assert pool.users.tolist() == [7, 7, 9] and pool.y.tolist() == y[:3].tolist()
    torch.testing.assert_close(pool.x, scaled(x[:3, None], (0.1307,), (0.3081,)))


def test_every_stored_set_says_where_its_files_would_go_and_nothing_is_found_in_an_empty_folder(
    data_folder: Path,
) -> None:
    stored = {name for name, actual in DATASETS.items() if isinstance(actual, StoredSet)}
    listed = {entry["name"]: entry for entry in describe_sets()}
    assert (
        listed.keys()
        == stored
        >= {"cifar10", "cifar100", "emnist", "femnist", "stl10", "mnist", "fashion_mnist"}
    )
    for entry in listed.values():
        assert (
            not entry["found"]
            and str(data_folder) in entry["fix"]
            and Path(entry["where"]).parent == data_folder
        )
    np.savez(data_folder / "mnist_writers.npz", X=np.zeros(1))
    actual = next(entry for entry in describe_sets() if entry["name"] == "mnist_writers")
    assert actual["found"] and actual["form"] == "compact" and actual["where"] == str(data_folder)


def test_only_stored_sets_can_be_fetched(data_folder: Path) -> None:
    with pytest.raises(DataError, match="digits"):
        fetch("digits")
