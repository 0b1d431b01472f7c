"""Messages as Flower carries them: a header in a ConfigRecord, arrays in an ArrayRecord; unpacked with suspicion."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedblocks.flower.messages import Malformed, Wire

NPY_HEADER = 512  # bytes; what numpy writes before an array of a few dimensions is 128


def to_content(message: Wire) -> RecordDict:
    """A message to send."""
    arrays = ArrayRecord({name: Array(array) for name, array in message.arrays.items()})
    return RecordDict({"header": ConfigRecord({"json": message.header}), "arrays": arrays})


def from_content(content: RecordDict, limit: int | None = None) -> Wire:
    """A message that came; more bytes than the limit are refused before any of them is unpacked."""
    try:
        header, arrays = content["header"]["json"], dict(content["arrays"])
    except (KeyError, TypeError) as error:
        raise Malformed("envelope", "a message has a header and arrays") from error
    if len(content) != 2 or not isinstance(header, str) or not all(isinstance(a, Array) for a in arrays.values()):
        raise Malformed("envelope", "a message has a header and arrays, and nothing else")
    total = sum(len(array.data) for array in arrays.values())
    if limit is not None and total > limit:
        raise Malformed("too-large", f"{total} bytes, and the plan has at most {limit}")
    return Wire(header, {name: _unpacked(name, array) for name, array in arrays.items()})


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
