"""Read the "python version" of CIFAR without running anything that the file says.

Its batches are pickles, and a pickle is a program. This reader knows only the handful of
instructions that build numbers, strings, lists, dictionaries and plain arrays of bytes; names such
as numpy's are compared, never imported; anything else is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedblocks.core.errors import DataError

ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
TYPE = "numpy dtype"
NAMES = (*ARRAY, TYPE, "numpy ndarray")
MARK = object()


@dataclass
class MadeObject:
    """An array or its type before it is built: its name and arguments."""

    name: str
    arguments: tuple[Any, ...]
    state: tuple[Any, ...] = ()


@dataclass
class Reader:
    """A stack, a memory, and a place in the bytes."""

    raw: bytes
    at: int = 0
    stack: list[Any] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if self.at + count > len(self.raw):
            raise ValueError("it ends too early")
        self.at += count
        return self.raw[self.at - count : self.at]

    def number(self, layout: str) -> int:
        """The next number, by struct's layout."""
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def at_most(self, newest: int) -> None:
        """Refuse a format newer than the one this reader knows."""
        if (version := self.number("<B")) > newest:
            raise ValueError(f"its format is {version}, newer than {newest}")

    def line(self) -> str:
        """The text up to the next line end."""
        end = self.raw.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("ascii")

    def since_mark(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        start = max(i for i, value in enumerate(self.stack) if value is MARK)
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        """The last values of the stack, taken off."""
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        return values


def read_batch(raw: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a batch file: lists, strings as text or bytes, and arrays of bytes."""
    reader = Reader(raw)
    try:
        while (code := reader.take(1)) != b".":
            if code not in STEPS:
                raise ValueError(f"instruction {code!r} is not one that plain data need")
            STEPS[code](reader)
        (batch,) = reader.stack
        return {text(key): plain(value) for key, value in batch.items()}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        fix = "use the official file, or the binary version of the data set"
        raise DataError(f"{name} is not a batch of plain data: {error}", fix) from error


def text(value: Any) -> str:
    """A key as text: Python 2 wrote it as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def plain(value: Any) -> Any:
    """A value of the batch, with an array put together."""
    if not isinstance(value, MadeObject):
        return value
    _, shape, kind, by_column, data = value.state
    if (
        value.name not in ARRAY
        or kind.name != TYPE
        or text(kind.arguments[0]) != "u1"
        or not isinstance(data, bytes)
    ):
        raise ValueError("an array of another type than bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_column else "C")


def push(read: Callable[[Reader], Any]) -> Callable[[Reader], None]:
    """An instruction that puts a value on the stack."""
    return lambda reader: reader.stack.append(read(reader))


def remember(reader: Reader, place: int) -> None:
    reader.memory[place] = reader.stack[-1]


def extend(reader: Reader) -> None:
    values = reader.since_mark()
    reader.stack[-1].extend(values)


def append(reader: Reader) -> None:
    (value,) = reader.last(1)
    reader.stack[-1].append(value)


def set_items(reader: Reader, values: list[Any]) -> None:
    reader.stack[-1].update(zip(values[::2], values[1::2]))


def named(reader: Reader) -> str:
    """A name, compared with those that arrays need and not looked up anywhere."""
    name = f"{reader.line()} {reader.line()}"
    if name not in NAMES:
        raise ValueError(f"it asks for {name}")
    return name


def call(reader: Reader) -> MadeObject:
    """Write down what would be a call in a pickle; nothing is called."""
    name, arguments = reader.last(2)
    if name not in (*ARRAY, TYPE):
        raise ValueError(f"it calls {name}")
    return MadeObject(name, arguments)


def build(reader: Reader) -> None:
    (state,) = reader.last(1)
    if not isinstance(reader.stack[-1], MadeObject):
        raise ValueError("it changes something that is not an array")
    reader.stack[-1].state = state


STEPS: dict[bytes, Callable[[Reader], None]] = {
    b"\x80": lambda r: r.at_most(3),
    b"(": push(lambda r: MARK),
    b"}": push(lambda r: {}),
    b"]": push(lambda r: []),
    b")": push(lambda r: ()),
    b"N": push(lambda r: None),
    b"\x88": push(lambda r: True),
    b"\x89": push(lambda r: False),
    b"K": push(lambda r: r.number("<B")),
    b"M": push(lambda r: r.number("<H")),
    b"J": push(lambda r: r.number("<i")),
    b"U": push(lambda r: r.take(r.number("<B"))),
    b"T": push(lambda r: r.take(r.number("<I"))),
    b"C": push(lambda r: r.take(r.number("<B"))),
    b"B": push(lambda r: r.take(r.number("<I"))),
    b"X": push(lambda r: r.take(r.number("<I")).decode("utf-8")),
    b"q": lambda r: remember(r, r.number("<B")),
    b"r": lambda r: remember(r, r.number("<I")),
    b"h": push(lambda r: r.memory[r.number("<B")]),
    b"j": push(lambda r: r.memory[r.number("<I")]),
    b"\x85": push(lambda r: r.last(1)),
    b"\x86": push(lambda r: r.last(2)),
    b"\x87": push(lambda r: r.last(3)),
    b"t": push(lambda r: tuple(r.since_mark())),
    b"a": append,
    b"e": extend,
    b"s": lambda r: set_items(r, list(r.last(2))),
    b"u": lambda r: set_items(r, r.since_mark()),
    b"c": push(named),
    b"R": push(call),
    b"b": build,
}
