"""Messages as Flower carries them: headers in a ConfigRecord, arrays in ArrayRecords; unpacked with suspicion.

A node holds one client or several; one message carries what all of them are sent, each under its number.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedblocks.flower.wire.messages import HEADER_LIMIT, Malformed, Wire

NPY_HEADER = 512  # bytes; what numpy writes before an array of a few dimensions is 128
HEADERS, TERMS = "headers", "terms"


def to_content(messages: Mapping[int, Wire]) -> RecordDict:
    """Messages of some clients to send."""
    headers = ConfigRecord({str(client): message.header for client, message in messages.items()})
    arrays = {
        str(client): ArrayRecord({name: Array(array) for name, array in message.arrays.items()})
        for client, message in messages.items()
    }
    return RecordDict({HEADERS: headers, **arrays})


def with_terms(content: RecordDict, terms: str) -> RecordDict:
    """Something for a client, with what it must know of the run."""
    return RecordDict({**content, TERMS: ConfigRecord({"json": terms})})


def terms_of(content: RecordDict) -> str:
    """What a message says of its run."""
    try:
        terms = content[TERMS]["json"]
    except (KeyError, TypeError) as error:
        raise Malformed("not-fedblocks", "the message is not of a fedblocks run") from error
    if not isinstance(terms, str) or len(terms) > HEADER_LIMIT:
        raise Malformed("envelope", f"terms are a text of at most {HEADER_LIMIT} characters")
    return terms


def from_content(content: RecordDict, limits: Mapping[int, int] | None = None) -> dict[int, Wire | Malformed]:
    """The messages that came, or what is wrong with each; limits are the bytes that clients may send."""
    try:
        headers = dict(content[HEADERS])
    except (KeyError, TypeError) as error:
        raise Malformed("envelope", "a message has headers") from error
    if {*content} - {HEADERS, TERMS, *headers}:
        raise Malformed("envelope", "a message has headers and arrays of its clients, and nothing else")
    found: dict[int, Wire | Malformed] = {}
    for name, header in headers.items():
        if not name.isdecimal() or (limits is not None and int(name) not in limits):
            raise Malformed("envelope", f'there is no client "{name[:20]}" in what was asked')
        try:
            limit = None if limits is None else limits[int(name)]
            found[int(name)] = Wire(_text(header), _arrays(content, name, limit))
        except Malformed as error:
            found[int(name)] = error
    return found


def _text(header: Any) -> str:
    if not isinstance(header, str):
        raise Malformed("envelope", "a header is text")
    return header


def _arrays(content: RecordDict, name: str, limit: int | None) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, Any] | None = dict(content[name]) if name in content else None
    if arrays is None or not all(isinstance(a, Array) for a in arrays.values()):
        raise Malformed("envelope", "a message has a header and arrays, and nothing else")
    total = sum(len(array.data) for array in arrays.values())
    if limit is not None and total > limit:
        raise Malformed("too-large", f"{total} bytes, and the plan has at most {limit}")
    return {key: _unpacked(key, array) for key, array in arrays.items()}


def _unpacked(name: str, array: Array) -> npt.NDArray[Any]:
    """The numbers of an array; nothing is allocated for what a header promises and the bytes do not hold."""
    if array.stype != "numpy.ndarray":
        raise Malformed("dtype", f'"{name[:80]}" is not a numpy array')
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("an unusual version")
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=NPY_HEADER)
        if dtype.hasobject:
            raise ValueError("objects are not numbers")
        flat = np.frombuffer(array.data, dtype, offset=stream.tell())
        return flat.reshape(shape, order="F" if by_column else "C")
    except (ValueError, TypeError, SyntaxError) as error:
        raise Malformed("dtype", f'"{name[:80]}" cannot be read: {str(error)[:80]}') from error
