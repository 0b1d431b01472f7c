"""Start Flower's SuperLink so that only our own user may use it, and its database waits for other
writers.

On loopback everybody with an account reaches its port, and Flower asks nobody who gives a command
or takes an app's place, and reads what clients send before it looks at their keys. Clients come
through the gateway, which is of our own user. The kernel knows to whom the other end of a
connection belongs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedblocks.flower.gateway.owners import owner_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HEALTH = "/health"
WAIT = 60_000  # ms that a writer of the database waits for another


class OwnUser:
    """An ASGI application that only its own user may use; others may ask whether it runs."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path", "") == HEALTH or is_ours(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": b""})


def is_ours(scope: Message) -> bool:
    """Whether the other end of a connection is a socket of our own user."""
    client, server = scope.get("client"), scope.get("server")
    return client is not None and server is not None and owner_of(client, server) == os.getuid()


def wait_longer(connection: Any, *_: object) -> None:
    """Wait longer for other writers: Flower gives up after 5 s, and then an upload of a
    client is lost.
    """
    connection.execute(f"PRAGMA busy_timeout = {WAIT}")


def main() -> None:
    """Run `flower-superlink` with the arguments of this process."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from sqlalchemy import Pool, event
    from starlette.middleware import Middleware

    event.listen(Pool, "checkout", wait_longer)
    extensions.get_middleware = lambda: (Middleware(OwnUser),)
    flower_superlink()


if __name__ == "__main__":
    main()
