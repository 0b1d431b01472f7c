"""Start Flower's SuperLink so that only our own user may use it, clients send answers alone, and
its database waits for other writers.

On loopback everybody with an account reaches its port, and Flower asks nobody who gives a command
or takes an app's place, and reads what clients send before it looks at their keys. Clients come
through the gateway, which is of our own user. The kernel knows to whom the other end of a
connection belongs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedblocks.flower.gateway.envelopes import guard
from fedblocks.flower.gateway.owners import owner_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

ANSWERS = "/v1/fleet/push-messages"
WAIT = 60_000  # ms that a writer of the database waits for another


class OwnUser:
    """An ASGI application that only its own user may use."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_ours(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await refuse(send)


class AnswersOnly:
    """An ASGI application that takes answers from clients, and no messages of their own.

    Flower checks who sends a request and not what the messages in it say of their sender: a client
    could ask another one something in the server's name, or answer in another one's.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("path", "") != ANSWERS:
            await self.app(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None or not are_answers(body):
            await refuse(send)
            return
        pieces = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(pieces, None) or await receive()

        await self.app(scope, receive_again, send)


def are_answers(body: bytes) -> bool:
    """Whether every message of a request is an answer of the node that sends it."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    return all(
        message.metadata.src_node_id == request.node.node_id
        and message.metadata.reply_to_message_id
        for message in request.messages_list
    )


async def read_body(receive: Receive) -> bytes | None:
    """Return a request's body; None if the other side has gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def refuse(send: Send) -> None:
    """Answer as for a path that is not there."""
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


def refuse_unknown(check: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return Flower's check of a run, which also says of a run that there is none; Flower's own
    fails over it, and its log is filled.
    """

    def check_known(run: int, statuses: list[str], state: Any) -> str | None:
        return check(run, statuses, state) if state.get_run_status({run}) else "no such run"

    return check_known


def main() -> None:
    """Run `flower-superlink` with the arguments of this process."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from sqlalchemy import Pool, event
    from starlette.middleware import Middleware

    event.listen(Pool, "checkout", wait_longer)
    handlers: Any = fleet_handlers
    handlers.push_messages = guard(handlers.push_messages)
    handlers.check_abort = refuse_unknown(handlers.check_abort)
    extensions.get_middleware = lambda: (Middleware(OwnUser), Middleware(AnswersOnly))
    flower_superlink()


if __name__ == "__main__":
    main()
