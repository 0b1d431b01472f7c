"""The server's door to other machines: it passes on what enrolled clients need, and no commands.

Flower has one port for all: for clients, for apps, and for commands, which anybody who reaches it
may give. So its SuperLink listens on this machine alone, and this relay stands outside. A request
is a short head with one of a few paths, and a body whose length is said before; what else HTTP
knows is refused, for two programs might read it differently.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from fedblocks.flower.gateway.answers import REFUSED, close_with, json_answer, pick_headers, relay
from fedblocks.flower.gateway.connections import ByteFlow, Connections, Quota
from fedblocks.flower.gateway.key_uses import KeyUses, Report
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.gateway.members import Headers, Members, Sender, anybody
from fedblocks.flower.gateway.refusals import Refusals
from fedblocks.flower.gateway.requests import (
    HEAD,
    ROUTES,
    SMALL,
    UNKEYED,
    UPLOADS,
    Body,
    HttpRequest,
    parse_head,
)
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.shared_keys import write_shared
from fedblocks.flower.keys.trust import trust_in

Check = Callable[[Headers], Sender | None]


class Gateway:
    """A relay between clients and the SuperLink."""

    def __init__(
        self,
        check: Check,
        routes: Iterable[bytes],
        link: httpx.AsyncClient,
        limits: Limits,
        free: Callable[[], int] = lambda: sys.maxsize,
        report: Report = lambda shared: None,
    ) -> None:
        self.check = check
        self.free = free  # bytes of the disk on which the SuperLink stores what clients send
        self.routes = frozenset(routes)
        self.link = link
        self.limits = limits
        self.connections = Connections(limits)
        self.flow = ByteFlow(limits)
        self.quota = Quota(limits.hour_each)
        self.refusals = Refusals()
        self.uses = KeyUses(report)

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
            conversation = loop.create_task(self._converse(connected, address[0], tls))
            self.connections.enter(conversation, address[0])

    async def _converse(
        self, connected: socket.socket, address: str, tls: ssl.SSLContext | None
    ) -> None:
        """Serve all requests of one connection."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=HEAD)
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
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            request = None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return False
            raise
        if request is None or request.path not in self.routes:
            self.refusals.count("a request", address)
            return await close_with(reader, writer, REFUSED)
        sender = self.check(request.headers)
        if sender is None:
            self.refusals.count("a key", address)
            return await close_with(reader, writer, REFUSED)
        self.uses.note(sender.name, request.headers, address)
        problem = self._problem(request, sender)
        if problem is not None:
            self.refusals.count(f"{sender.name}, {problem[1]['reason']}", address)
            return await close_with(reader, writer, json_answer(*problem))
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
            now = datetime.now(UTC).isoformat()
            return HTTPStatus.UNAUTHORIZED, {"reason": "clock", "server_time": now}
        is_upload = request.path in UPLOADS
        largest = self.limits.request if is_upload else min(SMALL, self.limits.request)
        if request.length > largest:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"reason": "too-large", "largest": largest}
        if is_upload:
            if self.free() < self.limits.spare + request.length:
                return HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "disk"}
            if not self.quota.spend(sender.key, request.length):
                return HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "quota"}
        return None

    async def _pass_on(
        self,
        request: HttpRequest,
        sender: Sender,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        body = Body(reader, request.length)
        is_answered = False
        try:
            async with (
                self.flow.room(sender.key, request.length),
                asyncio.timeout(self.limits.exchange_seconds),
            ):
                answer = await self.link.send(self._outgoing(request, body), stream=True)
                is_answered = True
                closing = request.closing or body.left > 0
                await relay(answer, writer, closing)
        except (httpx.HTTPError, TimeoutError) as error:
            if is_answered:
                raise ConnectionError("the answer broke off") from error
            problem = f"no answer from the SuperLink: {type(error).__name__}"
            self.refusals.count(f"{sender.name}, {problem}", "")
            busy = json_answer(HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "busy"})
            return await close_with(reader, writer, busy)
        return not closing or await close_with(reader, writer, b"")

    def _outgoing(self, request: HttpRequest, body: Body) -> httpx.Request:
        """Return the request as the SuperLink is shown it."""
        headers = [
            *pick_headers(request.headers.items()),
            (b"content-length", b"%d" % request.length),
            (b"accept-encoding", b"identity"),
        ]
        path = request.path.decode()
        return self.link.build_request("POST", path, headers=headers, content=body.pieces())


async def run(host: ServerHost, folder: Path) -> None:
    """Listen where clients connect, until the process is ended."""
    family = socket.AF_INET6 if ":" in host.bind else socket.AF_INET
    limits = host.limits or Limits()
    inside = f"127.0.0.1:{host.inner_port}"
    free = lambda: shutil.disk_usage(folder).free
    with socket.create_server((host.bind, host.port), family=family, backlog=1024) as listener:
        if host.insecure:
            link = superlink(f"http://{inside}", False)
            door = Gateway(anybody, ROUTES | UNKEYED, link, limits, free)
            await door.serve(listener, None)
        else:
            trust = trust_in(folder)
            link = superlink(f"https://{inside}", trust)
            report = partial(write_shared, folder)
            door = Gateway(Members(folder).check, ROUTES, link, limits, free, report)
            await door.serve(listener, certificate(folder))


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
