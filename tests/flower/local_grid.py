"""A Flower grid without a network: messages go through Flower's own serialisation and
straight into the ClientApp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# (node, its answer) -> what arrives instead; None: nothing
Meddle = Callable[[int, Message], Message | None]


class LocalGrid(Grid):
    """Nodes 100, 101, ... hold clients 0, 1, ...; each message is answered at once."""

    def __init__(
        self, app: ClientApp, clients: Iterable[int], meddle: Meddle | None = None
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self.meddle = app, meddle
        self.contexts = {
            100 + c: Context(1, 100 + c, {"client": c}, RecordDict(), {}) for c in clients
        }
        self.answers: dict[str, Message] = {}
        self.messages: list[tuple[int, Message]] = []  # all that were pushed: (node, message)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError("Message(...) makes messages")

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=node, public_key=f"key {node}".encode(), last_activated_at="")
            for node in self.contexts
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        number, node = uuid4().hex, message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        self.messages.append((node, message))
        arrived = message_from_proto(message_to_proto(message))
        try:
            answer = self.app(arrived, self.contexts[node])
        except Exception as error:
            answer = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=arrived)
        meddled = answer if self.meddle is None else self.meddle(node, answer)
        if meddled is not None:
            self.answers[number] = message_from_proto(message_to_proto(meddled))
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.answers.pop(number) for number in message_ids if number in self.answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))
