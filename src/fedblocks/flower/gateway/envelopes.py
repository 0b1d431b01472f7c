"""The envelope of an answer: as the server's question asks for it, field by field, or refused.

Flower stores the numbers of an envelope as they come. One that is not finite can be written to its
database and not be read again, together with all answers that are read with it. So each field is
compared with the question before anything is stored; an answer that differs is replaced by an error
in the name of its node, which costs that node its round and nobody else theirs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Handler = Callable[..., Any]  # (request, state) -> response
Question = Mapping[str, Any]  # a row of Flower's table of questions

UNUSABLE = 1000  # our own error, which Flower does not have: the answer is there and cannot be read
NAME = re.compile(r"[0-9a-f]{64}")  # of a message or a piece: a hash
PIECES, DEPTH = 50_000, 16  # of an answer; Flower nests five deep
REASON = 64 * 2**10  # letters of an error
RUNTIME = 1e9  # seconds
CLOCK = 600.0  # seconds that a client's clock may be off; the gateway allows half of it
LIFETIME = 1.0  # seconds by which the end of an answer may differ from that of its question


def guard(store: Handler) -> Handler:
    """Return Flower's handler of pushed messages, behind a check of their envelopes."""

    def check_and_store(request: Any, state: Any) -> Any:
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        question = find_question(request, state)
        problem = find_flaw(request)
        if problem is None and question is not None:
            problem = find_difference(request.messages_list[0].metadata, question)
        if problem is None:
            return store(request=request, state=state)
        if question is not None:
            store_refusal(state, question, problem)
        return PushMessagesResponse()

    return check_and_store


def find_question(request: Any, state: Any) -> Question | None:
    """Return what a node was asked and now answers; None if it was asked nothing like it."""
    from flwr.server.superlink.linkstate.utils import convert_sint64_values_in_dict_to_uint64

    asked = [message.metadata.reply_to_message_id for message in request.messages_list[:1]]
    if not asked or not NAME.fullmatch(asked[0]):
        return None
    question: dict[str, Any] | None = state.get_valid_message_ins(asked[0])
    if question is None:
        return None
    convert_sint64_values_in_dict_to_uint64(question, ["run_id", "src_node_id", "dst_node_id"])
    return question if question["dst_node_id"] == request.node.node_id else None


def find_flaw(request: Any) -> str | None:
    """Return what no answer has, whatever it answers; nothing of it is repeated."""
    if (len(request.messages_list), len(request.message_object_trees)) != (1, 1):
        return "it is not one message with its list of pieces"
    runtimes = request.clientapp_runtime_list
    if len(runtimes) > 1 or not all(0 <= seconds <= RUNTIME for seconds in runtimes):
        return "its running time is no number of seconds"
    (message,), (tree,) = request.messages_list, request.message_object_trees
    if not all(map(math.isfinite, (message.metadata.ttl, message.metadata.created_at))):
        return "ttl or created_at is not finite"
    if message.HasField("content") == message.HasField("error"):
        return "it has both a content and an error, or none"
    if message.content.ByteSize() or len(message.error.reason) > REASON:
        return "its content is in the envelope, or its error is too long"
    if tree.object_id != message.metadata.message_id:
        return "its list of pieces is not its own"
    return _find_flaw_of_pieces(tree)


def _find_flaw_of_pieces(tree: Any) -> str | None:
    for number, (name, depth) in enumerate(_pieces(tree)):
        if number >= PIECES or depth >= DEPTH:
            return f"it has more than {PIECES} pieces, or they are nested {DEPTH} deep"
        if not NAME.fullmatch(name):
            return "a piece's name is no hash"
    return None


def _pieces(tree: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the depth of each piece."""
    waiting = [(tree, 0)]
    while waiting:
        piece, depth = waiting.pop()
        yield piece.object_id, depth
        waiting += [(child, depth + 1) for child in piece.children]


def find_difference(metadata: Any, question: Question) -> str | None:
    """Return the field in which an envelope is not what the question asks for."""
    expected = {
        "run_id": question["run_id"],
        "src_node_id": question["dst_node_id"],
        "dst_node_id": question["src_node_id"],
        "group_id": question["group_id"],
        "message_type": question["message_type"],
    }
    for name, value in expected.items():
        if getattr(metadata, name) != value:
            return f"{name} is not that of the question"
    if not question["created_at"] - CLOCK <= metadata.created_at <= time.time() + CLOCK:
        return "created_at is before the question, or in the future"
    end = question["created_at"] + question["ttl"]
    if abs(metadata.created_at + metadata.ttl - end) > LIFETIME:
        return "ttl does not end with that of the question"
    return None


def store_refusal(state: Any, question: Question, problem: str) -> None:
    """Store an error instead of an answer, in the name of the node that was asked."""
    from flwr.app import Error, Message
    from flwr.server.superlink.linkstate.utils import dict_to_message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
    )

    reply = Message(Error(UNUSABLE, problem), reply_to=dict_to_message(dict(question)))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    run = question["run_id"]
    session = state.start_session(run)
    _, missing = state.store_message_and_object_tree(reply, get_object_tree(reply), session)
    pieces = get_all_nested_objects(reply)
    for name in missing:
        state.store_object(run, session, name, pieces[name].deflate())
