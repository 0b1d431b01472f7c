"""The server's door to other machines: it passes on what enrolled clients need, and no commands.

Flower has one port for all: for clients, for apps, and for commands, which anybody who reaches it
may give. So its SuperLink listens on this machine alone, and this relay stands outside. A request
is a short head with one of a few paths, and a body whose length is said before; what else HTTP
knows is refused, for two programs might read it differently.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from fedblocks.flower.gateway.connections import ByteFlow, Connections
from fedblocks.flower.gateway.limits import KIB, Limits
from fedblocks.flower.gateway.members import Headers, Members, Sender, anybody
from fedblocks.flower.gateway.refusals import Refusals
from fedblocks.flower.hosts.folders import ServerHost

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
# keyed clients are enrolled by hand
UNKEYED = frozenset({b"/v1/fleet/register-node", b"/v1/fleet/unregister-node"})
HEAD = 16 * KIB  # bytes of a request's first line and headers
PIECE = 64 * KIB  # bytes of a body that are held at a time
LINGER = 1.0  # seconds in which the other side may read an answer while it still sends
LEFTOVERS = 64  # pieces of a body that are thrown away meanwhile
FIRST_LINE = re.compile(rb"POST (/[a-z0-9/-]+) HTTP/1\.1")
FIELD = re.compile(rb"([A-Za-z0-9-]+):([\x20-\x7e]*)")
LENGTH = re.compile(rb"[0-9]{1,12}")
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
# whatever the reason
REFUSED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
CLOSING = {b"close": True, b"keep-alive": False}
UNUSUAL = frozenset(
    {b"transfer-encoding", b"upgrade", b"expect", b"te", b"trailer", b"proxy-connection"}
)

Check = Callable[[Headers], Sender | None]


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request that is well formed."""

    path: bytes
    headers: Headers
    length: int
    closing: bool


def parsed(block: bytes) -> HttpRequest | None:
    """Read the head of a request; None if it has anything that clients of a federation
    do not send.
    """
    first, *lines = block.removesuffix(b"\r\n\r\n").split(b"\r\n")
    asked, fields = FIRST_LINE.fullmatch(first), [FIELD.fullmatch(line) for line in lines]
    headers = {field[1].lower(): field[2].strip(b" ") for field in fields if field}
    length, connection = (
        headers.get(b"content-length", b""),
        headers.get(b"connection", b"keep-alive").lower(),
    )
    is_plain = len(headers) == len(fields) and b"host" in headers and not headers.keys() & UNUSUAL
    if not asked or not is_plain or not LENGTH.fullmatch(length) or connection not in CLOSING:
        return None
    return HttpRequest(asked[1], headers, int(length), CLOSING[connection])


class Gateway:
    """A relay between clients and the SuperLink."""

    def __init__(
        self, check: Check, routes: Iterable[bytes], link: httpx.AsyncClient, limits: Limits
    ) -> None:
        self.check, self.routes, self.link, self.limits = check, frozenset(routes), link, limits
        self.connections, self.flow, self.refusals = (
            Connections(limits),
            ByteFlow(limits),
            Refusals(),
        )

    async def serve(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Take connections for ever; they are counted before the handshake."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connected, address = await loop.sock_accept(listener)
            except OSError as error:  # it was gone already, or the system has no more to give
                self.refusals.count(f"not accepted, {type(error).__name__}", "")
                await asyncio.sleep(0.05)
                continue
            self.connections.enter(
                loop.create_task(self._converse(connected, address[0], tls)), address[0]
            )

    async def _converse(
        self, connected: socket.socket, address: str, tls: ssl.SSLContext | None
    ) -> None:
        """Serve all requests of one connection."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        patience = None if tls is None else self.limits.handshake_seconds
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connected, ssl=tls, ssl_handshake_timeout=patience
            )
        except (OSError, asyncio.CancelledError):
            self.refusals.count("no TLS", address)
            connected.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while await self.exchange(reader, writer, address):
                pass
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            self.refusals.count("gone or too slow", address)
        finally:
            transport.abort()

    async def exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> bool:
        """Serve one request; return whether another may follow."""
        try:
            async with asyncio.timeout(self.limits.head_seconds):
                request = parsed(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            request = None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return False
            raise
        sender = self.check(request.headers) if request and request.path in self.routes else None
        if request is None or sender is None:
            self.refusals.count(
                "a key" if request and request.path in self.routes else "a request", address
            )
            return await _close(reader, writer, REFUSED)
        problem = self._problem(request, sender)
        if problem is not None:
            self.refusals.count(f"{sender.name}, {problem[1]['reason']}", address)
            return await _close(reader, writer, _answer(*problem))
        return await self._pass_on(request, sender, reader, writer)

    def _problem(
        self, request: HttpRequest, sender: Sender
    ) -> tuple[HTTPStatus, dict[str, Any]] | None:
        """Return the answer that turns an enrolled client away, or None."""
        task = asyncio.current_task()
        assert task is not None
        if not self.connections.admit(task, sender.key):
            return HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "connections"}
        if not sender.clock_is_right:
            return HTTPStatus.UNAUTHORIZED, {
                "reason": "clock",
                "server_time": datetime.now(UTC).isoformat(),
            }
        if request.length > self.limits.request:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {
                "reason": "too-large",
                "largest": self.limits.request,
            }
        return None

    async def _pass_on(
        self,
        request: HttpRequest,
        sender: Sender,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        body, is_answered = Body(reader, request.length), False
        try:
            async with (
                self.flow.room(sender.key, request.length),
                asyncio.timeout(self.limits.exchange_seconds),
            ):
                about = [
                    (b"content-length", b"%d" % request.length),
                    (b"accept-encoding", b"identity"),
                ]
                headers = [*_passed_headers(request.headers.items()), *about]
                sent = self.link.build_request(
                    "POST", request.path.decode(), headers=headers, content=body.pieces()
                )
                answer = await self.link.send(sent, stream=True)
                is_answered = True
                closing = request.closing or body.left > 0
                await _relay(answer, writer, closing)
        except (httpx.HTTPError, TimeoutError) as error:
            if is_answered:
                raise ConnectionError("the answer broke off") from error
            self.refusals.count(
                f"{sender.name}, no answer from the SuperLink: {type(error).__name__}", ""
            )
            return await _close(
                reader, writer, _answer(HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "busy"})
            )
        return not closing or await _close(reader, writer, b"")


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


async def _relay(answer: httpx.Response, writer: asyncio.StreamWriter, closing: bool) -> None:
    """Send the SuperLink's answer on, as it comes."""
    try:
        length = answer.headers.get("content-length")
        framing = (
            (b"transfer-encoding", b"chunked")
            if length is None
            else (b"content-length", length.encode())
        )
        connection = (b"connection", b"close" if closing else b"keep-alive")
        writer.write(
            _head(
                HTTPStatus(answer.status_code),
                [*_passed_headers(answer.headers.raw), framing, connection],
            )
        )
        async for piece in answer.aiter_raw():
            writer.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"" if length is not None else b"0\r\n\r\n")
        await writer.drain()
    finally:
        await answer.aclose()


def _passed_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.lower() in PASSED]


def _head(status: HTTPStatus, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}".encode(),
        *(name + b": " + value for name, value in headers),
    ]
    return b"\r\n".join([*lines, b"", b""])


def _answer(status: HTTPStatus, content: dict[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    about = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(text)),
        (b"connection", b"close"),
    ]
    return _head(status, about) + text


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> bool:
    """Send the last answer of a connection; discard what still comes in, or the answer
    could be lost.
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


async def run(host: ServerHost, folder: Path) -> None:
    """Listen where clients connect, until the process is ended."""
    family = socket.AF_INET6 if ":" in host.bind else socket.AF_INET
    limits, inside = host.limits or Limits(), f"127.0.0.1:{host.inner_port}"
    with socket.create_server((host.bind, host.port), family=family, backlog=1024) as listener:
        if host.insecure:
            link = superlink(f"http://{inside}", False)
            await Gateway(anybody, ROUTES | UNKEYED, link, limits).serve(listener, None)
        else:
            link = superlink(
                f"https://{inside}", ssl.create_default_context(cafile=str(folder / "ca.crt"))
            )
            await Gateway(Members(folder).check, ROUTES, link, limits).serve(
                listener, certificate(folder)
            )


def certificate(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings with the server's certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(folder / "server.crt", folder / "server.key")
    return tls


def superlink(address: str, trust: ssl.SSLContext | bool) -> httpx.AsyncClient:
    """Return an HTTP client for the SuperLink, which ignores proxies of the environment."""
    waits = httpx.Timeout(60.0, connect=5.0)
    room = httpx.Limits(max_connections=128, max_keepalive_connections=32, keepalive_expiry=2.0)
    return httpx.AsyncClient(
        base_url=address, verify=trust, timeout=waits, limits=room, trust_env=False
    )


def main(folder: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(run(ServerHost.read(folder), folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
