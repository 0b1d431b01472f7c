"""The reader of pickled batches reads plain data as pickle does, and nothing else."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.sets.python_batches import read_batch

WORDS = [f"word {number}" for number in range(300)]  # more than a byte can number
VALUES: dict[str, Any] = {
    "numbers": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, -1, -(2**31)],
    "a single one": [7],
    "none at all": [],
    "truth": [True, False, None],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "text": ["", "plain", "ünï"],
    "bytes": [b"", b"short", 300 * b"long"],
    "nested": {"a": [1, {"b": (2,)}], "c": {}},
    "many": WORDS,
    "the same again": [WORDS[0], WORDS[299], WORDS[299]],
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_data_are_read_as_by_pickle(name: str) -> None:
    batch = {name: VALUES[name]}
    assert read_batch(pickle.dumps(batch, 3), "b") == batch
    assert read_batch(pickle.dumps({"before": WORDS, **batch}, 3), "b")[name] == VALUES[name]


def test_strings_of_python_2_are_bytes_and_their_keys_are_text() -> None:
    short, long = b"U\x03abc", b"T\x03\x00\x00\x00xyz"
    assert read_batch(b"\x80\x02}" + short + long + b"s.", "b") == {"abc": b"xyz"}


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes_keep_their_layout(order: Any) -> None:
    array = np.asarray(np.arange(6, dtype=np.uint8).reshape(2, 3), order=order)
    data = array.tobytes("A")  # as they lie in memory
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNK\xffK\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    by_column = b"\x88" if order == "F" else b"\x89"
    body = b"(K\x01K\x02K\x03\x86" + kind + by_column + b"U\x06" + data + b"tb"
    found = read_batch(b"\x80\x02}U\x04data" + start + body + b"s.", "b")["data"]
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]] and found.dtype == np.uint8


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x80\x03}", "it ends too early"),
        (b"\x80\x04}.", "its format is 4, newer than 3"),
        (b"\x80\x02cos\nsystem\n.", "it asks for os system"),
        (b"\x80\x02}}b.", "it changes something that is not an array"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "it calls numpy ndarray"),
        (b"\x80\x02}\x93.", "is not one that plain data need"),
        (pickle.dumps({"a": np.arange(2.0)}, 2), "b is not a batch of plain data"),
    ],
)
def test_anything_else_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_batch(raw, "b")
