"""Flower's app around a node's clients: what they answer when a server asks who they
are, and in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedblocks.core.errors import UserError
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.side import ClientSide, member_of
from fedblocks.flower.wire.messages import Malformed, Wire
from fedblocks.flower.wire.records import from_content, hello_content, to_content

Sides = Mapping[int, tuple[ClientSide, str]]  # client -> its side, and the group that it belongs to


def client_app(sides_of: Callable[[Context], Sides]) -> ClientApp:
    """Return the app of a node; `sides_of` finds the clients that it holds from
    Flower's context.
    """
    app = ClientApp()
    app.train()(lambda message, context: work(message, sides_of(context)))
    app.query("hello")(lambda message, context: hello(message, lambda: sides_of(context)))
    return app


def work(message: Message, sides: Sides) -> Message:
    """Return what the clients of a node answer to a message of a round."""
    asked = {
        c: m for c, m in from_content(message.content).items() if isinstance(m, Wire) and c in sides
    }
    return Message(
        to_content({c: sides[c][0].answer(m) for c, m in asked.items()}), reply_to=message
    )


def hello(message: Message, sides_of: Callable[[], Sides]) -> Message:
    """Say who the clients of a node are, or why they cannot take part."""
    answer: dict[str, object]
    try:
        answer = {"members": [vars(member_of(*side)) for side in sides_of().values()]}
    except Malformed as error:
        answer = {"reason": error.reason, "detail": error.detail}
    except UserError as error:
        answer = {"reason": "client-error", "detail": excuse_for(error)}
    return Message(hello_content(answer), reply_to=message)
