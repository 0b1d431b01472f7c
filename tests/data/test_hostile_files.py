"""Files that were damaged or made to harm: a clear error, before memory is taken."""

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data import Federation
from fedblocks.data.sets.own import number_labels
from fedblocks.data.sets.pixels import picture
from fedblocks.data.storage import read_arrays


def npy(shape: str, content: bytes = b"") -> bytes:
    """A npy file that says it has a shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(2, 3)", "(-1,)", "(99999999999999999999999,)", "'x'", "(" * 999]
)
def test_an_array_that_is_not_as_large_as_it_says_is_refused(tmp_path: Path, shape: str) -> None:
    path = archive(tmp_path / "a.npz", x=npy(shape, b"1234"))
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_arrays(path)
    assert read_arrays(archive(path, x=npy("(1,)", b"1234")))["x"].shape == (1,)


def test_an_archive_that_would_fill_the_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", npy("(1024,)", bytes(4096)))
    content = bytearray(path.read_bytes())
    for place in (m.start() for m in re.finditer(b"PK\x01\x02", bytes(content))):
        content[place + 24 : place + 28] = struct.pack("<I", 4_000_000_000)  # its size, it says
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"would take 4\.0 GB of memory"):
        read_arrays(path)


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc32(kind + content))
    )


def png(side: int) -> bytes:
    """A picture that says it has so many pixels a side, and has next to none."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [4_097, 60_000])  # 4096 x 4096 = 2^24 are always allowed
def test_a_picture_that_would_fill_the_memory_is_refused_before_it_is_unpacked(side: int) -> None:
    with pytest.raises(DataError, match=r"a\.png is not an image that can be read: .* pixels"):
        picture(png(side), "a.png")
    with pytest.raises(DataError, match="truncated"):  # it is not too large, and only a head
        picture(png(4_096), "a.png")


HEADERS: dict[str, Any] = {
    "list": [],
    "number": 3,
    "nothing": {},
    "no hash": {"kind": "Federation", "format": 1, "classes": 3, "about": {}, "names": ["a"]},
    "no classes": {"kind": "Federation", "format": 1, "hash": "x", "about": {}},
    "names": {"kind": "Federation", "format": 1, "hash": "x", "classes": 3, "names": 5},
    "prefix": {"kind": "Federation", "format": 1, "hash": "x", "classes": "3", "prefix": []},
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_saved_federation_with_another_header_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 3
    Federation.from_arrays(x, y, [[0, 1, 2], [3, 4, 5]]).save(path)
    arrays = read_arrays(path)
    arrays["header"] = np.frombuffer(json.dumps(HEADERS[name]).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(DataError):
        Federation.load(path)


def test_a_stream_with_a_damaged_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(5000))
    content = bytearray(path.read_bytes())
    content[200:260] = b"\xff" * 60
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_arrays(path)


def test_labels_too_long_for_a_class_are_refused_and_other_digits_are_words() -> None:
    with pytest.raises(DataError, match="too large for the number of a class"):
        number_labels(["1", "12345678901234567890"])
    labels, words = number_labels(["2", "\u00b2", "2"])
    assert labels.tolist() == [0, 1, 0] and words == ["2", "\u00b2"]
    assert number_labels(["0000000000003", " 1 "])[0].tolist() == [3, 1]
