"""The gate of a server to other machines: it lets pass what clients need, and nothing by which runs are started.

Flower has one port for all: for clients, for apps, and for commands, which anybody who reaches it may give. So its
SuperLink listens on this machine alone, and this small relay, with the same certificate, stands outside.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedblocks.flower.hosts import ServerHost

OPEN = "/v1/fleet/"  # what SuperNodes use
LARGEST = 2**31  # bytes of one request
HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"te", b"trailer"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def relay(host: ServerHost, folder: Path) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """An ASGI application in front of the SuperLink."""
    import httpx

    trust: ssl.SSLContext | bool = False if host.insecure else ssl.create_default_context(cafile=str(folder / "ca.crt"))
    inside = f"http{'' if host.insecure else 's'}://127.0.0.1:{host.inner_port}"
    link = httpx.AsyncClient(base_url=inside, verify=trust, timeout=httpx.Timeout(300.0))

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http" and not scope["path"].startswith(OPEN) and scope["path"] != "/health":
            await _answer(send, 403, [], b"this port is for clients of the federation")
        elif scope["type"] == "http":
            await _passed(link, scope, receive, send)

    return app


async def _passed(link: Any, scope: Message, receive: Receive, send: Send) -> None:
    import httpx

    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in HOP]
    url = scope["raw_path"].decode("latin-1") + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
    try:
        body = b"".join([piece async for piece in _body(receive)])
        found = await link.request(scope["method"], url, headers=headers, content=body)
    except (httpx.HTTPError, ValueError) as error:
        await _answer(send, 413 if isinstance(error, ValueError) else 503, [], str(error).encode())
        return
    kept = [(n, v) for n, v in found.headers.raw if n.lower() not in HOP | {b"content-encoding"}]
    await _answer(send, found.status_code, kept, found.content)


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    total, more = 0, True
    while more:
        message = await receive()
        total += len(message.get("body", b""))
        if total > LARGEST:
            raise ValueError("too large")
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def main(folder: Path) -> None:
    """Listen where clients connect."""
    import uvicorn

    host = ServerHost.read(folder)
    secured: dict[str, Any] = {} if host.insecure else {
        "ssl_certfile": str(folder / "server.crt"), "ssl_keyfile": str(folder / "server.key")
    }  # fmt: skip
    server = uvicorn.Server(
        uvicorn.Config(relay(host, folder), host=host.bind, port=host.port, access_log=False, **secured)
    )
    asyncio.run(server.serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
