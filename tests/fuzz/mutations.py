"""Files that are almost right: whole ones with a few changes, of bytes, numbers and structure."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

Change = Callable[[bytearray, random.Random], bytearray]
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
NUMBERS = (
    *(b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775809", b"1e308", b"1e999", b"-0.0", b"NaN"),
    *(b"Infinity", b"nan", b"inf", b"0.1", b"1" * 30, b"9" * 5000, "²".encode(), "٣".encode()),
)
WORDS = (
    *(b"null", b"true", b"[]", b"{}", b'""', b"''", b"[[[[[[[[", b"]" * 8, b'{"a":' * 50, b"\x00"),
    *(b"\xff\xfe", b"\xef\xbb\xbf", "\u202e".encode(), b"\xed\xa0\x80", b"../../etc/passwd", b"/"),
    *(b"<script>", b"\x1b[2J", b"[" * 3000, b"a" * 5000, b"\n", b"\r\n", b",", b";", b'"', b"'"),
)
PACKED = [
    struct.pack(kind, value)
    for kind, value in (
        *(("<H", 0xFFFF), ("<I", 0xFFFFFFFF), ("<I", 0x7FFFFFFF), ("<Q", 2**63 - 1)),
        *(("<Q", 2**64 - 1), ("<Q", 2**40), (">I", 0x7FFFFFFF), ("<d", float("nan")), ("<q", -1)),
    )
]


def flip_bit(content: bytearray, rng: random.Random) -> bytearray:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def set_bytes(content: bytearray, rng: random.Random) -> bytearray:
    """Overwrite a few bytes, as a number of some width where it may be a length or an offset."""
    value = rng.choice(PACKED) if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 8))
    at = rng.randrange(len(content))
    content[at : at + len(value)] = value
    return content


def cut(content: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(content))
    del content[at : at + rng.choice((1, 1, 4, 16, 200, len(content)))]
    return content


def repeat(content: bytearray, rng: random.Random) -> bytearray:
    """Write a stretch twice, or many times."""
    at = rng.randrange(len(content))
    stretch = content[at : at + rng.choice((1, 8, 64, 512))]
    content[at:at] = stretch * rng.choice((1, 1, 2, 50))
    return content


def insert(content: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(content))
    content[at:at] = rng.choice(WORDS)
    return content


def swap(content: bytearray, rng: random.Random) -> bytearray:
    """Exchange two stretches of equal length."""
    length = rng.choice((1, 4, 16, 64))
    a, b = sorted((rng.randrange(len(content)), rng.randrange(len(content))))
    if a + length <= b and b + length <= len(content):
        content[a : a + length], content[b : b + length] = (
            content[b : b + length],
            content[a : a + length],
        )
    return content


def change_number(content: bytearray, rng: random.Random) -> bytearray:
    """Write another number for one that is written in digits."""
    places = [match.span() for match in NUMBER.finditer(content)]
    if places:
        start, end = rng.choice(places)
        content[start:end] = rng.choice(NUMBERS)
    return content


CHANGES: Sequence[Change] = (
    *(flip_bit, set_bytes, cut, repeat, insert, swap, change_number, change_number, insert),
)


def mutate(sample: bytes, rng: random.Random) -> bytes:
    """A sample with one to four changes."""
    content = bytearray(sample)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(CHANGES)(content, rng) or bytearray(b"\n")
    return bytes(content)
