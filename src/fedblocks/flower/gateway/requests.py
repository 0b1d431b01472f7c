"""The requests that the gateway reads, and nothing else that HTTP knows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fedblocks.flower.gateway.limits import KIB
from fedblocks.flower.gateway.members import Headers

ROUTES = frozenset(
    f"/v1/fleet/{name}".encode()
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    )
)
# what the SuperLink stores
UPLOADS = frozenset({b"/v1/fleet/push-messages", b"/v1/fleet/push-object"})
# where there are no keys; clients with keys are enrolled by hand
UNKEYED = frozenset({b"/v1/fleet/register-node", b"/v1/fleet/unregister-node"})
HEAD = 16 * KIB  # bytes of a request's first line and headers
VALUE = KIB  # bytes of one header; the longest of Flower's client is its public key
SMALL = 64 * KIB  # bytes of a body that is no upload
CONTENT = b"application/protobuf"  # of a body; the SuperLink logs any other as it is
PIECE = 64 * KIB  # bytes of a body that are held at a time
FIRST_LINE = re.compile(rb"POST (/[a-z0-9/-]+) HTTP/1\.1")
FIELD = re.compile(rb"([A-Za-z0-9-]+):([\x20-\x7e]*)")
LENGTH = re.compile(rb"[0-9]{1,12}")
CLOSING = {b"close": True, b"keep-alive": False}
UNUSUAL = frozenset(
    {b"transfer-encoding", b"upgrade", b"expect", b"te", b"trailer", b"proxy-connection"}
)


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request that is well formed."""

    path: bytes
    headers: Headers
    length: int
    closing: bool


def parse_head(block: bytes) -> HttpRequest | None:
    """Read the head of a request; None if it has anything that clients of a federation do not
    send.
    """
    first, *lines = block.removesuffix(b"\r\n\r\n").split(b"\r\n")
    asked = FIRST_LINE.fullmatch(first)
    fields = [FIELD.fullmatch(line) for line in lines]
    headers = {field[1].lower(): field[2].strip(b" ") for field in fields if field}
    length = headers.get(b"content-length", b"")
    connection = headers.get(b"connection", b"keep-alive").lower()
    is_plain = len(headers) == len(fields) and b"host" in headers and not headers.keys() & UNUSUAL
    is_short = all(len(value) <= VALUE for value in headers.values())
    is_known = headers.get(b"content-type", CONTENT) == CONTENT
    if (
        not asked
        or not (is_plain and is_short and is_known)
        or not LENGTH.fullmatch(length)
        or connection not in CLOSING
    ):
        return None
    return HttpRequest(asked[1], headers, int(length), CLOSING[connection])


class Body:
    """A request's body, a piece at a time."""

    def __init__(self, reader: asyncio.StreamReader, length: int) -> None:
        self.reader, self.left = reader, length

    async def pieces(self) -> AsyncIterator[bytes]:
        while self.left:
            piece = await self.reader.read(min(self.left, PIECE))
            if not piece:
                raise EOFError("the other side has gone")
            self.left -= len(piece)
            yield piece
