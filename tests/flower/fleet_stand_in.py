"""A server on loopback that answers a client's process as a SuperLink does; tests break
its routes.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import heartbeat_pb2 as heartbeat
from flwr.proto import message_pb2 as messages
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

NODE = 7
Answer = tuple[int, bytes, dict[str, str]]
Route = Callable[[bytes], Answer | bytes]


class StandIn:
    """Messages to be sent, answers that came, and what was asked for."""

    def __init__(self, secured: ssl.SSLContext | None = None) -> None:
        self.asked: list[str] = []
        self.outbox: list[Message] = []
        self.contents: dict[str, bytes] = {}  # of messages under way, and of answers
        self.replies: list[Message] = []
        self.changed = threading.Condition()
        self.routes: dict[str, Route] = {
            "register-node": lambda _: fleet.RegisterNodeFleetResponse(
                node_id=NODE
            ).SerializeToString(),
            "activate-node": lambda _: fleet.ActivateNodeResponse(node_id=NODE).SerializeToString(),
            "deactivate-node": lambda _: fleet.DeactivateNodeResponse().SerializeToString(),
            "unregister-node": lambda _: fleet.UnregisterNodeFleetResponse().SerializeToString(),
            "send-node-heartbeat": lambda _: heartbeat.SendNodeHeartbeatResponse(
                success=True
            ).SerializeToString(),
            "pull-messages": self._pull,
            "pull-object": self._pull_object,
            "confirm-message-received": lambda _: (
                messages.ConfirmMessageReceivedResponse().SerializeToString()
            ),
            "push-messages": self._push,
            "push-object": self._push_object,
        }
        self._missing: dict[str, set[str]] = {}
        self._heads: dict[str, tuple[messages.ObjectTree, Any]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        if secured is not None:
            self.server.socket = secured.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self.server.server_address[1]

    def send(self, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        self.contents |= {
            name: part.deflate() for name, part in get_all_nested_objects(message).items()
        }
        self.outbox.append(message)

    def wait(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(true, seconds), self.asked[-20:]

    def answer(self, route: str, body: bytes) -> Answer:
        with self.changed:
            self.asked.append(route)
            self.changed.notify_all()
        reply = self.routes[route](body) if route in self.routes else (404, b"", {})
        return reply if isinstance(reply, tuple) else (200, reply, {})

    def _pull(self, _: bytes) -> bytes:
        with self.changed:
            if not self.outbox:
                return fleet.PullMessagesResponse().SerializeToString()
            message = self.outbox.pop(0)
        head, tree = (
            message_to_proto(remove_content_from_message(message)),
            get_object_tree(message),
        )
        return fleet.PullMessagesResponse(
            messages_list=[head], message_object_trees=[tree]
        ).SerializeToString()

    def _pull_object(self, body: bytes) -> bytes:
        name = messages.PullObjectRequest.FromString(body).object_id
        response = messages.PullObjectResponse(
            object_found=name in self.contents,
            object_available=True,
            object_content=self.contents.get(name, b""),
        )
        return response.SerializeToString()

    def _push(self, body: bytes) -> bytes:
        request = fleet.PushMessagesRequest.FromString(body)
        head, tree = request.messages_list[0], request.message_object_trees[0]
        names = {node.object_id for node in _nodes(tree)}
        with self.changed:
            self._missing[head.metadata.message_id] = names - self.contents.keys()
            self._heads[head.metadata.message_id] = (tree, head)
        return fleet.PushMessagesResponse(
            objects_to_push=sorted(names), session_id="s"
        ).SerializeToString()

    def _push_object(self, body: bytes) -> bytes:
        request = messages.PushObjectRequest.FromString(body)
        with self.changed:
            self.contents[request.object_id] = request.object_content
            for number, missing in self._missing.items():
                missing.discard(request.object_id)
                if not missing and number in self._heads:
                    tree, head = self._heads.pop(number)
                    whole = inflate_object_from_contents(
                        tree.object_id, self.contents, keep_object_contents=True
                    )
                    assert isinstance(whole, Message)
                    self.replies.append(message_from_proto(head) if whole.has_error() else whole)
            self.changed.notify_all()
        return messages.PushObjectResponse(stored=True).SerializeToString()


def _nodes(tree: messages.ObjectTree) -> Iterator[messages.ObjectTree]:
    yield tree
    for child in tree.children:
        yield from _nodes(child)


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content, headers = stand_in.answer(self.path.rpartition("/")[2], body)
            self.send_response_only(status)
            for name, value in {
                "date": self.date_time_string(),
                **headers,
                "content-length": str(len(content)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    return Handler


@contextmanager
def standing_in(secured: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    stand_in = StandIn(secured)
    stand_in.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # handshakes that are to fail
    stand_in.server.daemon_threads = True
    thread = threading.Thread(target=stand_in.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.server.shutdown()
        thread.join()
        stand_in.server.server_close()
