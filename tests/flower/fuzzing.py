"""Requests that are almost right: valid ones with a few changes, of what HTTP programs
disagree about.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fedblocks.flower.gateway.gateway import Gateway
from fedblocks.flower.gateway.requests import HEAD, ROUTES

from .doors import Door, Headers, everything

EVIL = [
    b"/v1/control/list-runs",
    b"/v1/control/start-run",
    b"/v1/runtime/acquire-task",
    b"/docs",
    b"/health",
]
UP = [
    *[b".."] * 6,
    b"%2e%2e",
    b"%2E.",
    b".%2e",
    b"%252e%252e",
    b"..%00",
    b"..;",
    b"\\..",
    b"%5c..",
    b"%c0%ae%c0%ae",
    b"...",
    b".",
]
SLASH = [*[b"/"] * 6, b"//", b"%2f", b"%2F", b"\\", b"%5c", b"/./", b"%252f", b";/", b"/;/"]
ODD = [
    b"\x00",
    b"%00",
    b"\t",
    b" ",
    b"\x0b",
    b"\x85",
    b"\xa0",
    b"\xc3\xa9",
    b"\xe2\x80\xae",
    b"\xff",
    b"#",
    b"?",
    b"?a=/../",
    b";a=b",
    b".",
    b"/",
    b"%20",
]
METHODS = [
    b"GET",
    b"PUT",
    b"HEAD",
    b"post",
    b"POSTX",
    b"CONNECT",
    b"OPTIONS",
    b"TRACE",
    b"DELETE",
    b"PRI",
    b"POST\t",
    b" POST",
    b"",
    b"P\x00OST",
]
VERSIONS = [
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"HTTP/1.1\t",
    b"HTTP/11",
    b"",
    b"HTTP/1.1 HTTP/1.1",
]
LENGTHS = [
    b"+4",
    b"-1",
    b"0x4",
    b"4,4",
    b"4, 4",
    b"4 ",
    b"\t4",
    b"04",
    b"4\x00",
    b"",
    b"999999999999",
    b"9" * 30,
    b"4.0",
    b"\xb2",
    b"0",
    b"3",
    b"5",
]
CODINGS = [
    b"chunked",
    b"Chunked",
    b"identity",
    b"gzip, chunked",
    b"chunked, identity",
    b" chunked",
    b"\x0bchunked",
    b"xchunked",
    b"chunked\x00",
]
EXTRA = [
    (b"Upgrade", b"h2c"),
    (b"Connection", b"Upgrade"),
    (b"Expect", b"100-continue"),
    (b"X-Original-URL", EVIL[0]),
    (b"X-Rewrite-URL", EVIL[1]),
    (b"X-HTTP-Method-Override", b"GET"),
    (b"X-Forwarded-Host", b"evil"),
    (b"TE", b"trailers"),
    (b"Host", b"evil"),
    (b"Content Length", b"0"),
    (b"Trailer", b"Host"),
    (b"Content-Length\x00", b"0"),
    (b"Forwarded", b"for=127.0.0.1"),
    (b":path", EVIL[0]),
    (b":authority", b"evil"),
    (b"Connection", b"content-length"),
    (b"", b"x"),
    (b"X", b"a" * 17_000),
    (b"X", b"1\r\n folded"),
    (b"X", b"1\nHost: evil"),
    (b"X", b"1\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nHost: x"),
    (b"X", b"\xe9\x00\x7f"),
]
SMUGGLED = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
BODIES = [
    b"",
    b"body",
    SMUGGLED,
    b"0\r\n\r\n" + SMUGGLED,
    b"4\r\nbody\r\n0\r\n\r\n",
    b"\r\n\r\n",
    b"\x00" * 64,
]


@dataclass
class Draft:
    """A request that is still being changed."""

    method: bytes
    target: bytes
    version: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    end: bytes = b"\r\n"

    def bytes(self) -> bytes:
        lines = [
            b" ".join((self.method, self.target, self.version)),
            *(k + b": " + v for k, v in self.headers),
        ]
        return self.end.join([*lines, b"", self.body])


def valid(signed: Headers, rng: random.Random) -> Draft:
    body = rng.choice(BODIES)
    headers = [(b"Host", b"server"), (b"Content-Length", b"%d" % len(body)), *signed.items()]
    return Draft(b"POST", rng.choice(sorted(ROUTES)), b"HTTP/1.1", headers, body)


def _climb(draft: Draft, rng: random.Random) -> None:
    steps = b"".join(rng.choice(UP) + rng.choice(SLASH) for _ in range(rng.choice((1, 1, 2, 3))))
    start = rng.choice([b"/v1/fleet/", draft.target + rng.choice(SLASH)])
    draft.target = start + steps + rng.choice(EVIL).removeprefix(b"/v1/")


def _go_elsewhere(draft: Draft, rng: random.Random) -> None:
    path = rng.choice([*EVIL, draft.target])
    start = rng.choice(
        [b"", b"http://server", b"https://127.0.0.1", b"//server", b"*", b"server:443", b"/"]
    )
    draft.target = start + path


def _spoil_path(draft: Draft, rng: random.Random) -> None:
    place = rng.randrange(len(draft.target) + 1)
    draft.target = draft.target[:place] + rng.choice([*ODD, *SLASH]) + draft.target[place:]


def _change_case(draft: Draft, rng: random.Random) -> None:
    draft.target = bytes(
        c ^ 32 if 97 <= c <= 122 and rng.random() < 0.2 else c for c in draft.target
    )


def _change_first_line(draft: Draft, rng: random.Random) -> None:
    if rng.random() < 0.5:
        draft.method = rng.choice(METHODS)
    else:
        draft.version = rng.choice(VERSIONS)


def _reframe(draft: Draft, rng: random.Random) -> None:
    wrong = [(b"Content-Length", rng.choice(LENGTHS)), (b"Transfer-Encoding", rng.choice(CODINGS))]
    if rng.random() < 0.3:
        draft.headers = [(k, v) for k, v in draft.headers if k != b"Content-Length"]
    draft.headers.insert(rng.randrange(len(draft.headers) + 1), rng.choice(wrong))


def _add(draft: Draft, rng: random.Random) -> None:
    draft.headers.insert(
        rng.randrange(len(draft.headers) + 1), rng.choice([*EXTRA, *draft.headers])
    )


def _drop(draft: Draft, rng: random.Random) -> None:
    if draft.headers:
        draft.headers.pop(rng.randrange(len(draft.headers)))


def _spoil_header(draft: Draft, rng: random.Random) -> None:
    if draft.headers:
        place = rng.randrange(len(draft.headers))
        name, value = draft.headers[place]
        at = rng.randrange(len(value) + 1)
        value = value[:at] + rng.choice([*ODD, b"A"]) + value[at + rng.randrange(2) :]
        draft.headers[place] = (rng.choice([name, name.upper(), name + b" ", b" " + name]), value)


def _change_body(draft: Draft, rng: random.Random) -> None:
    draft.body = rng.choice([*BODIES, rng.randbytes(rng.randrange(200))])


def _change_ends(draft: Draft, rng: random.Random) -> None:
    draft.end = rng.choice([b"\n", b"\r", b"\r\r\n", b"\n\r"])


CHANGES: list[Callable[[Draft, random.Random], None]] = [
    _climb,
    _climb,
    _go_elsewhere,
    _spoil_path,
    _change_case,
    _change_first_line,
    _reframe,
    _add,
    _drop,
    _spoil_header,
    _change_body,
    _change_ends,
]


def conversation(signed: Headers, rng: random.Random) -> tuple[bytes, int]:
    """The bytes of a connection, and how many requests they hold: some valid ones
    first, then one that was changed.
    """
    before = rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 3))
    draft = valid(signed, rng)
    for change in rng.choices(CHANGES, k=rng.choice((0, 1, 1, 1, 2, 3))):
        change(draft, rng)
    text = draft.bytes()
    if rng.random() < 0.1 and text:  # a byte anywhere
        place = rng.randrange(len(text))
        text = text[:place] + rng.randbytes(1) + text[place + 1 :]
    first = b"".join(valid(signed, rng).bytes() for _ in range(before))
    return first + text + rng.choice((b"", SMUGGLED)), before + 1


@dataclass
class Outcome:
    """What came of many conversations."""

    requests: int = 0  # that the gateway has read to the end of their heads, or refused to
    answers: Counter[bytes] = field(default_factory=Counter)  # by status; silence too


def fuzz(door: Door, seed: int, requests: int, seconds: float, threads: int = 4) -> Outcome:
    """Talk to a gateway until so many requests are made or so much time is over."""
    end, total = time.monotonic() + seconds, Outcome()

    def talk(number: int) -> Outcome:
        rng, own, signed, renewed = (
            random.Random(seed * 1000 + number),
            Outcome(),
            door.signed(),
            time.monotonic(),
        )
        while own.requests < requests / threads and time.monotonic() < end:
            if time.monotonic() - renewed > 100:
                signed, renewed = door.signed(), time.monotonic()
            text, count = conversation(signed, rng)
            own.requests += count
            own.answers.update(statuses(door, text))
        return own

    with ThreadPoolExecutor(threads) as pool:
        for own in pool.map(talk, range(threads)):
            total.requests += own.requests
            total.answers += own.answers
    return total


class Sink:
    """In a connection's place, for what the gateway writes."""

    def __init__(self) -> None:
        self.answer = b""

    def write(self, content: bytes) -> None:
        self.answer += content

    def can_write_eof(self) -> bool:
        return False

    async def drain(self) -> None:
        pass


async def fuzz_in_memory(
    gateway: Gateway, door: Door, seed: int, requests: int, seconds: float
) -> Outcome:
    """The same conversations without sockets, which are most of the work."""
    end, total, rng = time.monotonic() + seconds, Outcome(), random.Random(seed)

    async def talk(text: bytes) -> bytes:
        reader, sink = asyncio.StreamReader(limit=HEAD), Sink()
        reader.feed_data(text)
        reader.feed_eof()
        try:
            while await gateway.exchange(reader, sink, "127.0.0.1"):  # type: ignore[arg-type]
                pass
        except (OSError, EOFError):
            pass
        return sink.answer

    while total.requests < requests and time.monotonic() < end:
        signed = door.signed()
        for _ in range(1000):
            text, count = conversation(signed, rng)
            total.requests += count
            connection = asyncio.create_task(talk(text))
            gateway.connections.enter(connection, "127.0.0.1")
            total.answers.update(counted(await connection))
    return total


def counted(answer: bytes) -> list[bytes]:
    return [piece[:3] for piece in answer.split(b"HTTP/1.1 ")[1:]] or [b"silence"]


def statuses(door: Door, text: bytes) -> list[bytes]:
    with door.connect(20.0) as connection:
        try:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused while it was sending
        return counted(everything(connection))
