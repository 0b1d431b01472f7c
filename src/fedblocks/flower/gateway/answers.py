"""The answers that the gateway writes: the SuperLink's as they come, and its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httpx

from fedblocks.flower.gateway.requests import PIECE

LINGER = 1.0  # seconds in which the other side may read an answer while it still sends
LEFTOVERS = 64  # pieces of a body that are thrown away meanwhile
# headers that SuperLink and clients are shown of each other
PASSED = frozenset(
    {
        b"accept",
        b"content-type",
        b"flwr-public-key",
        b"flwr-timestamp",
        b"flwr-signature",
        b"flwr-package-name",
        b"flwr-package-version",
        b"flwr-component-name",
        b"flwr-version-incompatibility-message",
    }
)
# the same, whatever the reason: a stranger learns nothing from it
REFUSED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def relay(answer: httpx.Response, writer: asyncio.StreamWriter, closing: bool) -> None:
    """Send the SuperLink's answer on, as it comes."""
    try:
        length = answer.headers.get("content-length")
        framing = (b"transfer-encoding", b"chunked")
        if length is not None:
            framing = (b"content-length", length.encode())
        connection = (b"connection", b"close" if closing else b"keep-alive")
        headers = [*pick_headers(answer.headers.raw), framing, connection]
        writer.write(_head(HTTPStatus(answer.status_code), headers))
        async for piece in answer.aiter_raw():
            writer.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"" if length is not None else b"0\r\n\r\n")
        await writer.drain()
    finally:
        await answer.aclose()


def pick_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that one side may see of the other."""
    return [(name.lower(), value) for name, value in headers if name.lower() in PASSED]


def _head(status: HTTPStatus, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}".encode(),
        *(name + b": " + value for name, value in headers),
    ]
    return b"\r\n".join([*lines, b"", b""])


def json_answer(status: HTTPStatus, content: dict[str, Any]) -> bytes:
    """Return an answer of the gateway itself, the last one of its connection."""
    text = json.dumps(content).encode()
    about = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(text)),
        (b"connection", b"close"),
    ]
    return _head(status, about) + text


async def close_with(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes
) -> bool:
    """Send the last answer of a connection; discard what still comes in, or the answer could be
    lost. Return that no request follows.
    """
    writer.write(answer)
    if writer.can_write_eof():
        writer.write_eof()
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(LINGER):
            for _ in range(LEFTOVERS):
                if not await reader.read(PIECE):
                    break
    return False
