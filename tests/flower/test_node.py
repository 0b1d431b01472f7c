"""A client's process against a server that is broken or hostile, on real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.flower.client import fleet, node
from fedblocks.flower.client.host import start_client, watch_client
from fedblocks.flower.client.node import Node
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.wire.records import HELLO, with_spec

from .fleet_stand_in import NODE, Answer, StandIn, standing_in

TABLE: dict[str, Any] = {
    "rounds": 1,
    "threads": 1,
    "data": {"name": "digits", "clients": 2},
    "net": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedper"},
}


class Ending(Exception):
    """Raised in the client's thread when a test is over."""


class Place:
    """A client that works in a thread, and what it needs to be asked."""

    def __init__(self, base: Path, server: StandIn) -> None:
        self.server, self.folder = server, base / "f" / "one"
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        set_up(
            base / "f",
            "127.0.0.1",
            {"one": [0], "two": [1]},
            server.port,
            insecure=True,
            data=TABLE["data"],
        )
        path = new_run(Config.of(TABLE), base / "run", [])
        self.spec = job_for(
            path, "f", kind="train", seconds=1.0, patience=1.0
        ).spec.model_dump_json()
        self.node = Node(self.folder)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pull = self.server.routes["pull-messages"]

        def next_one(body: bytes) -> Answer | bytes:
            return (500, b"", {}) if self.over.is_set() else pull(body)

        self.server.routes["pull-messages"] = next_one
        with suppress(Ending):
            self.node.run()

    def ask(self, content: RecordDict, kind: str = HELLO, seconds: float = 60.0) -> Message:
        """Send a message; what comes back."""
        count = len(self.server.replies)
        self.server.send(Message(content, NODE, kind, ttl=seconds))
        self.server.wait(lambda: len(self.server.replies) > count)
        return self.server.replies[-1]

    def hello(self) -> dict[str, Any]:
        answer = self.ask(with_spec(RecordDict({"hello": ConfigRecord({})}), self.spec))
        introduction: dict[str, Any] = json.loads(str(answer.content["hello"]["json"]))
        return introduction


@pytest.fixture
def server() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        yield stand_in


@pytest.fixture
def place(tmp_path: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(node, "QUICK", 0.02)
    monkeypatch.setattr(fleet, "BEGIN", 0.02)
    new_place = Place(tmp_path, server)
    connect = Node._connect

    def unless_over(self: Node) -> None:
        if new_place.over.is_set():
            raise Ending
        connect(self)

    monkeypatch.setattr(Node, "_connect", unless_over)
    new_place.thread.start()
    yield new_place
    new_place.over.set()
    new_place.thread.join(30)
    assert not new_place.thread.is_alive()


def test_a_client_says_who_it_is_and_never_asks_for_an_app(place: Place) -> None:
    assert [member["client"] for member in place.hello()["members"]] == [0]
    assert {*place.server.asked} <= {*place.server.routes} and "get-fab" not in place.server.asked
    standing = Standing.read(place.folder)
    assert standing is not None and (standing.state, standing.node) == ("connected", NODE)


def test_a_message_of_another_app_is_refused_with_one_line_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        answer = place.ask(RecordDict({"config": ConfigRecord({"run": "this"})}), MessageType.TRAIN)
        assert answer.has_error() and "not-fedblocks" in answer.error.reason
    assert sum("not-fedblocks" in record.getMessage() for record in caplog.records) == 1
    answer = place.ask(with_spec(RecordDict(), place.spec), MessageType.EVALUATE)
    assert answer.has_error() and "not-fedblocks" in answer.error.reason


def test_terms_of_another_version_are_refused(place: Place) -> None:
    place.spec = json.dumps({**json.loads(place.spec), "version": "0.0.0"})
    assert place.hello()["reason"] == "version-mismatch"
    place.spec = json.dumps({**json.loads(place.spec), "more": 1})
    assert place.hello()["reason"] == "version-mismatch"


def test_what_the_owner_changes_counts_from_the_next_message(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert "members" in place.hello()
    path = place.folder / "client.toml"
    path.write_text(path.read_text().replace("[allow]\n", '[allow]\nmethods = ["fedavg"]\n'))
    for _ in range(2):
        introduction = place.hello()
        assert (
            introduction["reason"] == "not-allowed"
            and '"fedper" is not among' in introduction["detail"]
        )
    assert (
        sum("cannot take part: not-allowed" in record.getMessage() for record in caplog.records)
        == 1
    )


def large(place: Place, numbers: int) -> RecordDict:
    arrays = ArrayRecord({"x": Array(np.zeros(numbers, np.float32))})
    return with_spec(RecordDict({"hello": ConfigRecord({}), "0": arrays}), place.spec)


def allow(place: Place, size: str) -> None:
    path = place.folder / "client.toml"
    path.write_text(path.read_text().replace('largest = "2GB"', f'largest = "{size}"'))


@pytest.mark.parametrize("bounded", [True, False])
def test_no_more_is_taken_than_the_owner_allows(
    place: Place, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "ENVELOPE", 2**16)
    allow(place, "1MB" if bounded else "20MB")
    answer = place.ask(large(place, 4_000_000))  # 16 MB
    assert answer.has_error() == bounded
    if bounded:
        assert "more than the 1065536 bytes" in answer.error.reason  # 1 MB and the envelope
        assert place.server.asked.count("pull-object") <= 6  # the first piece of 5 MB ended it
    assert "members" in place.hello()


@pytest.mark.parametrize("bounded", [True, False])
def test_a_piece_that_is_named_often_is_counted_as_often(
    place: Place, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece of 1 MB, of which an array of 300 MB is put together: refused before it is."""
    if not bounded:
        monkeypatch.setattr(fleet, "count_assembled_bytes", lambda contents: 0)
    allow(place, "10MB")
    array = Array(np.zeros(2**18, np.float32))
    often = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=array.data * 300)
    record = ArrayRecord({"x": often})
    content = with_spec(RecordDict({"hello": ConfigRecord({}), "0": record}), place.spec)
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", len(array.data))
    answer = place.ask(content)
    # the others are the same
    assert sum(len(piece) > 2**19 for piece in place.server.contents.values()) == 1
    assert answer.has_error() == bounded
    if bounded:
        assert "bytes, and this client takes" in answer.error.reason


@pytest.mark.parametrize("patient", [True, False])
def test_an_answer_that_is_lost_on_the_way_is_sent_again(
    place: Place, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "members" in place.hello()
    if not patient:
        monkeypatch.setattr(fleet, "patiently", lambda action, end: action())
    push, lost = place.server.routes["push-object"], [503, 500, 502]

    def at_last(body: bytes) -> Answer | bytes:
        return (lost.pop(), b"", {}) if lost else push(body)

    place.server.routes["push-object"] = at_last
    if patient:
        assert "members" in place.hello()
        assert lost == []
    else:
        place.server.send(
            Message(
                with_spec(RecordDict({"hello": ConfigRecord({})}), place.spec), NODE, HELLO, ttl=60
            )
        )
        place.server.wait(lambda: len(lost) < 3)
        asked = place.server.asked.count("pull-messages")
        place.server.wait(lambda: place.server.asked.count("pull-messages") > asked + 2)
        assert len(place.server.replies) == 1  # and nobody will ever send the second


def test_a_download_that_is_lost_on_the_way_is_asked_for_again(place: Place) -> None:
    pull, lost = place.server.routes["pull-object"], [503, 503]
    place.server.routes["pull-object"] = lambda body: (lost.pop(), b"", {}) if lost else pull(body)
    assert "members" in place.hello() and lost == []


def test_a_message_of_a_run_that_is_over_is_dropped(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    pull = place.server.routes["pull-object"]
    place.server.routes["pull-object"] = lambda _: (403, b"{}", {})
    place.server.send(Message(with_spec(RecordDict(), place.spec), NODE, HELLO, ttl=60))
    place.server.wait(lambda: "pull-object" in place.server.asked)
    place.server.routes["pull-object"] = pull
    assert "members" in place.hello() and len(place.server.replies) == 1
    assert any(
        "is over; its message was dropped" in record.getMessage() for record in caplog.records
    )


def test_tries_end_with_the_time_of_a_message(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    push = place.server.routes["push-messages"]
    place.server.routes["push-messages"] = lambda _: (503, b"", {})
    place.server.send(
        Message(
            with_spec(RecordDict({"hello": ConfigRecord({})}), place.spec), NODE, HELLO, ttl=1.0
        )
    )
    place.server.wait(lambda: place.server.asked.count("push-messages") > 1)
    asked = place.server.asked.count("pull-messages")
    # it looks for other messages again
    place.server.wait(lambda: place.server.asked.count("pull-messages") > asked)
    place.server.routes["push-messages"] = push
    assert "members" in place.hello()


def test_an_error_is_told_and_the_process_lives_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("fedblocks.flower.client.app.hello", lambda *_: 1 / 0)
        answer = place.ask(with_spec(RecordDict({"hello": ConfigRecord({})}), place.spec))
    assert (
        answer.has_error()
        and answer.error.reason == "it failed (ZeroDivisionError); its log says why"
    )
    assert "members" in place.hello()


def test_a_client_lives_for_its_server_while_it_works(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def slow(message: Message, sides: object) -> Message:
        assert free.wait(60)
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr("fedblocks.flower.client.app.hello", slow)
    # less 5 for the call
    monkeypatch.setattr("flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL", 5.02)
    place.server.wait(lambda: "send-node-heartbeat" in place.server.asked)
    place.server.send(Message(with_spec(RecordDict(), place.spec), NODE, HELLO, ttl=60))
    place.server.wait(lambda: "confirm-message-received" in place.server.asked)
    beats = place.server.asked.count("send-node-heartbeat")
    try:
        place.server.wait(lambda: place.server.asked.count("send-node-heartbeat") > beats + 1)
    finally:
        free.set()


def test_a_client_that_is_refused_says_so_once_and_enters_when_it_is_enrolled(
    tmp_path: Path,
    server: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node, "RETRY", 0.02)
    place, activate = Place(tmp_path, server), server.routes["activate-node"]
    server.routes["activate-node"] = lambda _: (404, b"", {})
    thread = threading.Thread(target=place.node._connect)
    thread.start()
    server.wait(lambda: server.asked.count("activate-node") > 3)
    standing = Standing.read(place.folder)
    assert (
        standing is not None
        and standing.state == "trying"
        and "does not know the key" in standing.text
    )
    server.routes["activate-node"] = activate
    thread.join(30)
    standing = Standing.read(place.folder)
    assert standing is not None and standing.state == "connected"
    assert sum("does not know the key" in record.getMessage() for record in caplog.records) == 1


def test_what_a_client_cannot_begin_with_ends_it_with_the_reason(
    tmp_path: Path, server: StandIn
) -> None:
    place, news = Place(tmp_path, server), list[str]()
    path = place.folder / "client.toml"
    path.write_text(path.read_text().replace("[allow]\n", '[allow]\nmethods = ["fedpr"]\n'))
    with ProcessGroup(tmp_path / "logs", {}) as processes:
        start_client(processes, place.folder)
        with pytest.raises(UserError, match='methods: "fedpr" is not installed') as raised:
            watch_client(processes, place.folder, news.append)
    assert 'did you mean "fedprox"' in raised.value.fix and news == []


def test_two_processes_of_a_folder_are_one_too_many(tmp_path: Path, server: StandIn) -> None:
    place = Place(tmp_path, server)
    with (
        node.alone(place.folder),
        pytest.raises(UserError, match="another process already works for"),
        node.alone(place.folder),
    ):
        pass


def test_a_process_tells_what_it_holds_connects_and_leaves(tmp_path: Path, server: StandIn) -> None:
    place, news = Place(tmp_path, server), list[str]()

    def tell(text: str) -> None:
        news.append(text)
        if text.startswith("connected"):
            raise KeyboardInterrupt

    with ProcessGroup(tmp_path / "logs", {}) as processes, pytest.raises(KeyboardInterrupt):
        start_client(processes, place.folder)
        watch_client(processes, place.folder, tell)
    assert "examples, kept here" in news[0] and news[-1].startswith("connected")
    assert server.asked[-2:] == ["deactivate-node", "unregister-node"]
