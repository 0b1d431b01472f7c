"""Gateways without TLS, as processes of their own: ours with its keys, and two that are
not safe.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import httpx

from fedblocks.flower.gateway.gateway import Gateway, superlink
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.gateway.members import Members
from fedblocks.flower.gateway.requests import ROUTES
from fedblocks.flower.hosts.folders import ServerHost


async def keys(folder: Path, listener: socket.socket, host: ServerHost) -> None:
    link = superlink(f"http://127.0.0.1:{host.inner_port}", False)
    await Gateway(Members(folder).check, ROUTES, link, host.limits or Limits()).serve(
        listener, None
    )


async def prefix(folder: Path, listener: socket.socket, host: ServerHost) -> None:
    """Everything below /v1/fleet/ passes; so does what httpx makes of it."""
    link = httpx.AsyncClient(base_url=f"http://127.0.0.1:{host.inner_port}")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, target, *_ = (
                (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split(" ", 2)
            )
            if target.startswith("/v1/fleet/"):
                await link.request(method, target)
        except (
            OSError,
            EOFError,
            ValueError,
            httpx.HTTPError,
            httpx.InvalidURL,
            asyncio.LimitOverrunError,
        ):
            pass
        writer.close()

    async with await asyncio.start_server(answer, sock=listener) as server:
        await server.serve_forever()


async def buffer(folder: Path, listener: socket.socket, host: ServerHost) -> None:
    """Bodies are read whole before anybody asks whose they are."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, sock=listener) as server:
        await server.serve_forever()


if __name__ == "__main__":
    base = Path(sys.argv[2])
    settings = ServerHost.read(base)
    with socket.create_server((settings.bind, settings.port), backlog=1024) as listener_:
        modes = {"keys": keys, "prefix": prefix, "buffer": buffer}
        asyncio.run(modes[sys.argv[1]](base, listener_, settings))
