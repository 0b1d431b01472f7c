"""One message of an enrolled client, whatever it is, costs this client its round and
the others nothing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from fedblocks.engines.sequential import Sequential
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.pulling import UNUSABLE, Inbox
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.server.side import Ask
from fedblocks.flower.wire.records import HEADERS, HELLO, count_assembled_bytes
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.rounds import run

from .federations import leaves
from .local_grid import LocalGrid, Meddle
from .test_apps import BAD, Federated, node_of, replaced, tampering, without

Change = Callable[[RecordDict], Any]
DEEP = 200_000  # brackets; Python's reader of JSON gives up at a thousand


def npy(head: str) -> Array:
    """An array whose description is this text."""
    stream = io.BytesIO()
    stream.write(np.lib.format.magic(1, 0))
    text = head.ljust(117).encode() + b"\n"
    stream.write(len(text).to_bytes(2, "little") + text)
    return Array("float64", (5, 6), "numpy.ndarray", stream.getvalue() + bytes(240))


def under(name: str) -> Change:
    """Send everything under another name than the client's number."""

    def change(content: RecordDict) -> None:
        content[HEADERS] = ConfigRecord({name: content[HEADERS][str(BAD)]})
        content[name] = content.pop(str(BAD))

    return change


def scores(*counts: float) -> Change:
    def change(content: RecordDict) -> None:
        header = json.loads(str(content[HEADERS][str(BAD)]))
        content[HEADERS] = ConfigRecord(
            {str(BAD): json.dumps({**header, "counts": {"local": counts}})}
        )

    return change


SENT: dict[str, tuple[Change, str]] = {
    "a number of 5000 digits": (under("1" * 5000), "envelope"),
    "its number in other digits": (under("٣"), "envelope"),
    "a header that is deep": (
        lambda c: c.update({HEADERS: ConfigRecord({str(BAD): "[" * DEEP})}),
        "envelope",
    ),
    "an open bracket": (
        replaced(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (5, 6")),
        "dtype",
    ),
    "an array of no type": (
        replaced(npy("{'descr': (), 'fortran_order': False, 'shape': (5, 6)}")),
        "dtype",
    ),
    "arrays that are settings": (
        lambda c: c.update({str(BAD): ConfigRecord({"a": 1})}),
        "envelope",
    ),
    "a NaN of right answers": (scores(float("nan"), 1, 0), "envelope"),
    "a NaN of labels": (scores(0, float("nan"), 0), "envelope"),
    "endless labels": (scores(0, float("inf"), 0), "envelope"),
    "more labels than there are": (scores(1, 1e300, 0), "envelope"),
    "more right answers than labels": (scores(1e300, 1, 0), "envelope"),
    "less than no right answers": (scores(-1, 1, 0), "envelope"),
    "an endless loss": (scores(0, 1, float("inf")), "envelope"),
    "a loss that is no number": (scores(0, 1, float("nan")), "envelope"),
}


@pytest.mark.parametrize("what", SENT)
def test_a_round_goes_on_without_a_client_that_sends(what: str, tmp_path: Path) -> None:
    change, reason = SENT[what]
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, tampering(change))
    federation.go(Ask(score="test"))
    refusals = [r for closed in federation.rounds for r in closed.report.refusals]
    assert refusals and {(r.client, r.reason) for r in refusals} == {(BAD, reason)}
    assert len(federation.rounds) == example.rounds and all(len(r.detail) <= 300 for r in refusals)


def saying(text: Any) -> Meddle:
    def meddle(node: int, answer: Message) -> Message:
        if node == node_of(BAD) and answer.metadata.message_type == HELLO:
            answer.content["hello"] = ConfigRecord({"json": text})
        return answer

    return meddle


MEMBER = {"client": BAD, "size": 3, "limit": 3.0, "tags": {}, "group": "all"}
HELLOS: dict[str, Any] = {
    "deep": "[" * DEEP,
    "deep and short": "[" * 2**15,
    "long": json.dumps({"members": [MEMBER], "more": "x" * 2**16}),
    "a number": 3,
    "a list": "[]",
    "nobody": json.dumps({"members": []}),
    "a tag beyond 64 bits": json.dumps({"members": [{**MEMBER, "tags": {"cluster": 2**70}}]}),
    "a size beyond 64 bits": json.dumps({"members": [{**MEMBER, "size": 2**70}]}),
}


@pytest.mark.parametrize("what", HELLOS)
def test_a_node_is_refused_whose_hello_is(what: str, tmp_path: Path) -> None:
    federation = Federated(EXAMPLES["fedper"](), tmp_path, saying(HELLOS[what]))
    registry = Registry(federation.grid)
    others = [c for c in federation.example.everybody if c != BAD]
    registry.wait(others, len(others), 10.0)
    assert sorted(registry.nodes) == others and list(registry.refused) == [node_of(BAD)]
    assert registry.refused[node_of(BAD)].startswith("envelope: ")


def test_an_update_does_not_count_if_its_key_is_revoked_before_the_round_ends(
    tmp_path: Path,
) -> None:
    example = EXAMPLES["fedper"]()
    keys = {f"key {node_of(c)}".encode(): [c] for c in example.everybody}

    def revoke(node: int, answer: Message) -> Message:
        if node == node_of(BAD) and answer.metadata.message_type == "train":
            keys.pop(f"key {node}".encode(), None)
        return answer

    federation = Federated(example, tmp_path, revoke)
    progress = federation.go(Ask(score="test"), enrolled=lambda: Enrolment(dict(keys)))
    refusals = [
        (r.client, r.reason) for closed in federation.rounds for r in closed.report.refusals
    ]
    assert refusals[0] == (BAD, "revoked") and {client for client, _ in refusals} == {BAD}
    first = federation.rounds[0].report
    assert all(BAD not in some for some in (*first.counts.values(), *first.bytes_up.values()))
    simulated = run(example.experiment(), Sequential(), without(BAD, example)).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


class StandIn:
    """Flower's Runtime API with answers that have come; `damage` changes the pieces of
    one of them.
    """

    def __init__(
        self, answers: dict[str, Message], bad: str, damage: Callable[[dict[str, bytes]], None]
    ) -> None:
        self.confirmed: list[str] = []
        self.missing: set[str] = set()  # pieces that were announced and have not come
        self.asked: list[str] = []  # messages whose answers were asked for
        self.contents: dict[str, bytes] = {}
        self.come = PullAppMessagesResponse()
        for asked, message in answers.items():
            parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
            if asked == bad:
                damage(parts)
            self.contents |= parts
            message.metadata.__dict__["_message_id"] = message.object_id
            head = message_to_proto(remove_content_from_message(message))
            head.metadata.reply_to_message_id = asked
            self.come.messages_list.append(head)
            self.come.message_object_trees.append(get_object_tree(message))

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        self.asked += request.message_ids
        come, self.come = self.come, PullAppMessagesResponse()
        return come

    def PullObject(self, request: Any) -> PullObjectResponse:
        if request.object_id in self.missing:
            return PullObjectResponse(object_found=True, object_available=False)
        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def of_kind(parts: dict[str, bytes], kind: bytes) -> str:
    return next(name for name, content in parts.items() if content.startswith(kind + b" "))


def with_pieces(*pieces: int) -> Callable[[dict[str, bytes]], None]:
    """Let an array be put together of these of its pieces."""

    def damage(parts: dict[str, bytes]) -> None:
        name = of_kind(parts, b"Array")
        head, body = parts[name].split(b"\0", 1)
        parts[name] = (
            head + b"\0" + json.dumps({**json.loads(body), "arraychunk_ids": pieces}).encode()
        )

    return damage


def noise(kind: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda parts: parts.update({of_kind(parts, kind): b"\xff" * 40})


def grid_of(damage: Callable[[dict[str, bytes]], None]) -> tuple[HttpGrid, StandIn]:
    """A grid of Flower's to which three answers have come; that to "b" is damaged."""
    LocalGrid(lambda message, context: message, [])  # messages belong to a run
    answers = {}
    for asked in "abc":
        arrays = ArrayRecord({"x": Array(np.full(1000, float(ord(asked))))})
        answers[asked] = Message(RecordDict({"arrays": arrays}), 1, "train")
    grid, server = HttpGrid(token="of nobody"), StandIn(answers, "b", damage)
    grid._client = server
    return grid, server


DAMAGES = {
    "a piece that is not there": with_pieces(99),
    "pieces that are no numbers": noise(b"Array"),
    "a record that is noise": noise(b"RecordDict"),
    "a message that is noise": noise(b"Message"),
    "a piece named 800 times": with_pieces(*[0] * 800),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_answers_come_though_one_among_them_has(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, _ = grid_of(DAMAGES[what])
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    come = dict(Inbox(grid).pull(dict.fromkeys("abc", 20_000)))
    assert {asked for asked, message in come.items() if message.has_error()} == {"b"}
    assert come["b"].error.code == UNUSABLE and len(come["b"].error.reason) < 300
    assert come["c"].content["arrays"]["x"].numpy()[0] == ord("c")


def test_an_answer_that_the_superlink_cannot_read_costs_its_node_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, server = grid_of(lambda parts: None)
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    heads = {head.metadata.reply_to_message_id: head for head in server.come.messages_list}
    trees = dict(zip(heads, server.come.message_object_trees, strict=True))

    def pull(request: Any) -> PullAppMessagesResponse:
        if "b" in request.message_ids:
            failed = httpx.Response(500)
            raise httpx.HTTPStatusError("500", request=httpx.Request("POST", "/"), response=failed)
        names = request.message_ids
        return PullAppMessagesResponse(
            messages_list=[heads[name] for name in names],
            message_object_trees=[trees[name] for name in names],
        )

    monkeypatch.setattr(server, "PullMessages", pull)
    come = dict(Inbox(grid).pull(dict.fromkeys("abc", 20_000)))
    assert come.keys() == {"a", "c"}


@pytest.mark.timeout(30)  # Flower's own wait for a piece is two hours
def test_an_answer_that_comes_piece_by_piece_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[str] = []
    grid, server = grid_of(lambda parts: late.extend(parts))
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    monkeypatch.setattr("fedblocks.flower.server.pulling.SELDOM", 0.0)
    inbox = Inbox(grid)
    server.missing = {*late} - {late[0]}
    assert [asked for asked, _ in inbox.pull(dict.fromkeys("abc", 20_000))] == ["a", "c"]
    assert inbox.pull({"b": 20_000}) == []
    server.missing = set()
    ((asked, message),) = inbox.pull({"b": 20_000})
    assert asked == "b" and message.content["arrays"]["x"].numpy()[0] == ord("b")
    assert server.asked == [*"abc"]  # once each: the SuperLink has forgotten them by then


def test_what_came_of_an_answer_that_nobody_waits_for_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[str] = []
    grid, server = grid_of(lambda parts: late.extend(parts))
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    inbox = Inbox(grid)
    server.missing = {late[-1]}
    inbox.pull(dict.fromkeys("abc", 20_000))
    assert inbox._arriving.keys() == {"b"}
    inbox.pull({})
    assert inbox._arriving == {}


def test_a_piece_that_is_named_often_is_counted_as_often() -> None:
    """1000 doubles and numpy's 128 bytes before them, and Flower's few bytes before a
    piece, 800 times.
    """
    parts = {
        n: p.deflate()
        for n, p in get_all_nested_objects(ArrayRecord({"x": Array(np.zeros(1000))})).items()
    }
    once = count_assembled_bytes(parts)
    with_pieces(*[0] * 800)(parts)
    assert 8128 <= once <= 8128 + 64 and count_assembled_bytes(parts) == 800 * once


def test_an_answer_with_too_many_bytes_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, server = grid_of(lambda parts: None)
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    monkeypatch.setattr("fedblocks.flower.server.pulling.count_assembled_bytes", lambda contents: 0)
    come = dict(Inbox(grid).pull({"a": 20_000, "b": 8000, "c": 20_000}))
    assert come["b"].error.code == UNUSABLE and "TooLargeError" in come["b"].error.reason
    assert len(server.confirmed) == 3  # the SuperLink keeps none of them
