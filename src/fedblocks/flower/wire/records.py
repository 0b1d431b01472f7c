"""Messages as Flower carries them: headers in a ConfigRecord, arrays in ArrayRecords; unpacked with
suspicion.

A node holds one client or several; one message carries what all of them are sent, each under its
number.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)

from fedblocks.flower.wire.messages import HEADER_LIMIT, Malformed, Wire

DIGITS = 20  # of a client's number
HELLO_LIMIT = 2**16  # characters of a node's answer to who its clients are
NPY_HEADER = 512  # bytes; what numpy writes before an array of a few dimensions is 128
HEADERS, RUN = "headers", "run"
HELLO = "query.hello"  # the type of a message that asks a node who its clients are


def to_content(messages: Mapping[int, Wire]) -> RecordDict:
    """Pack messages to some clients, or from them."""
    headers = ConfigRecord({str(client): message.header for client, message in messages.items()})
    arrays = {
        str(client): ArrayRecord({name: Array(array) for name, array in message.arrays.items()})
        for client, message in messages.items()
    }
    return RecordDict({HEADERS: headers, **arrays})


def with_spec(content: RecordDict, spec: str) -> RecordDict:
    """Add the run specification, as JSON, to what a client is sent."""
    return RecordDict({**content, RUN: ConfigRecord({"json": spec})})


def spec_of(content: RecordDict) -> str:
    """Return the run specification of a message, as JSON."""
    try:
        spec = content[RUN]["json"]
    except (KeyError, TypeError) as error:
        raise Malformed("not-fedblocks", "the message is not of a fedblocks run") from error
    if not isinstance(spec, str) or len(spec) > HEADER_LIMIT:
        raise Malformed(
            "envelope", f"a run specification is a text of at most {HEADER_LIMIT} characters"
        )
    return spec


def hello_message(node: int, spec: str, seconds: float) -> Message:
    """Ask a node who its clients are; after so many seconds an answer is of no use."""
    question = with_spec(RecordDict({"hello": ConfigRecord({})}), spec)
    return Message(question, node, HELLO, group_id="hello", ttl=seconds)


def hello_content(answer: Mapping[str, object]) -> RecordDict:
    """Pack a node's answer to the question who its clients are."""
    return RecordDict({"hello": ConfigRecord({"json": json.dumps(answer)})})


def hello_answer(content: RecordDict) -> dict[str, Any]:
    """Unpack such an answer; what is none raises: Malformed, or what Flower and JSON
    find wrong with it.
    """
    text = content["hello"]["json"]
    if not isinstance(text, str) or len(text) > HELLO_LIMIT:
        raise Malformed(
            "envelope", f"who a node's clients are is a text of at most {HELLO_LIMIT} characters"
        )
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise Malformed("envelope", "it does not say who it is")
    return answer


def from_content(
    content: RecordDict, limits: Mapping[int, int] | None = None
) -> dict[int, Wire | Malformed]:
    """Unpack messages by client, or what is wrong with each; `limits` are the bytes
    that clients may send.
    """
    try:
        headers = dict(content[HEADERS])
    except (KeyError, TypeError) as error:
        raise Malformed("envelope", "a message has headers") from error
    if {*content} - {HEADERS, RUN, *headers}:
        raise Malformed(
            "envelope", "a message has headers and arrays of its clients, and nothing else"
        )
    messages: dict[int, Wire | Malformed] = {}
    for name, header in headers.items():
        is_number = len(name) <= DIGITS and name.isascii() and name.isdecimal()
        if not is_number or (limits is not None and int(name) not in limits):
            raise Malformed("envelope", f'there is no client "{name[:20]}" in what was asked')
        try:
            limit = None if limits is None else limits[int(name)]
            messages[int(name)] = Wire(_text(header), _arrays(content, name, limit))
        except Malformed as error:
            messages[int(name)] = error
        # a gap in the checks must cost this client its round, not all clients theirs
        except Exception as error:
            problem = f"it cannot be read: {type(error).__name__}: {error}"
            messages[int(name)] = Malformed("envelope", problem)
    return messages


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
    return {key: _unpack(key, array) for key, array in arrays.items()}


def _unpack(name: str, array: Array) -> npt.NDArray[Any]:
    """Return the numbers of an array; nothing is allocated for what a header promises
    and the bytes do not hold.
    """
    if array.stype != "numpy.ndarray":
        raise Malformed("dtype", f'"{name[:80]}" is not a numpy array')
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("an unusual version")
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(
            stream, max_header_size=NPY_HEADER
        )
        if dtype.hasobject:
            raise ValueError("objects are not numbers")
        flat = np.frombuffer(array.data, dtype, offset=stream.tell())
        return flat.reshape(shape, order="F" if by_column else "C")
    # numpy's reader of headers raises many kinds of errors, those of its tokenizer too
    except Exception as error:
        raise Malformed("dtype", f'"{name[:80]}" cannot be read: {str(error)[:80]}') from error


def count_assembled_bytes(contents: Mapping[str, bytes]) -> int:
    """Count the bytes of all arrays once their pieces are put together; a piece may be named more
    than once.
    """
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[children[index]]) for index in pieces)
    return total
