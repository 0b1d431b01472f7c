"""Messages over Flower's grid: what is sent, what is sent again, and when a round is over."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity

from fedblocks.flower.server import app
from fedblocks.flower.server.app import Link, play_round
from fedblocks.flower.server.pulling import ROOM
from fedblocks.flower.wire.messages import Wire
from fedblocks.flower.wire.records import NPY_HEADER, from_content, spec_of

HELLO = {client: Wire(f"to {client}", {}) for client in range(4)}


class Clock:
    """A time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    own = Clock()
    monkeypatch.setattr(app, "time", own)
    monkeypatch.setattr(app, "PAUSE", 1.0)
    yield own


def link(numbers: Any = (), **more: Any) -> tuple[Link, list[Any]]:
    """A link to clients 0 and 2 of node 7, and 1 and 3 of node 8; and what is pushed."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    pushed: list[Any] = []

    def push(messages: Any) -> Any:
        pushed.append(messages)
        if isinstance(numbers, Exception):
            raise numbers
        return numbers

    grid: Any = SimpleNamespace(push_messages=push)
    return Link(grid, {0: 7, 1: 8, 2: 7, 3: 8}, "a spec", **more), pushed


def failed(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://here")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


def test_each_node_is_sent_one_message_with_all_its_clients() -> None:
    own, pushed = link(["a", "b"])
    assert own.send(HELLO, "5", 9.0) == []
    ((one, two),) = pushed
    assert [m.metadata.dst_node_id for m in (one, two)] == [7, 8]
    for message, clients in ((one, [0, 2]), (two, [1, 3])):
        meta = message.metadata
        assert (meta.message_type, meta.group_id, meta.ttl) == ("train", "5", 9.0)
        assert spec_of(message.content) == "a spec"
        came = {c: m.header for c, m in from_content(message.content).items()}  # type: ignore[union-attr]
        assert came == {c: f"to {c}" for c in clients}
    assert {number: [*some] for number, some in own.waiting.items()} == {"a": [0, 2], "b": [1, 3]}
    assert own.lost == {}


def test_nodes_that_flower_does_not_know_are_told_and_nothing_is_sent_for_nothing() -> None:
    own, pushed = link(["a", ""])
    assert own.send(HELLO, "5", 9.0) == [1, 3] and [*own.waiting] == ["a"]
    assert own.send({}, "5", 9.0) == [] and len(pushed) == 1


@pytest.mark.parametrize(("status", "is_lost"), [(500, True), (503, True), (499, False)])
def test_what_a_superlink_that_failed_was_sent_is_sent_again_after_two_seconds(
    status: int, is_lost: bool, clock: Clock
) -> None:
    own, _ = link(failed(status))
    if not is_lost:
        with pytest.raises(httpx.HTTPStatusError):
            own.send(HELLO, "5", 9.0)
        assert own.lost == {}
        return
    assert own.send(HELLO, "5", 9.0) == [] and own.waiting == {}
    assert {when for when, _ in own.lost.values()} == {102.0}
    clock.now = 101.9
    own.lost[3] = (99.0, HELLO[3])
    assert own.due_again() == {3: HELLO[3]} and [*own.lost] == [0, 1, 2]
    clock.now = 102.0
    assert own.due_again() == {c: HELLO[c] for c in (0, 1, 2)} and own.lost == {}


def answer(code: int | None = None) -> Any:
    error = None if code is None else SimpleNamespace(code=code, reason="gone")
    return SimpleNamespace(has_error=lambda: code is not None, error=error)


@pytest.mark.parametrize(("code", "is_lost"), [(3, True), (4, True), (5, False), (None, False)])
def test_a_message_that_did_not_arrive_whole_is_lost_and_any_other_answer_comes(
    code: int | None, is_lost: bool, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    own, _ = link()
    own.waiting.update({"a": {2: HELLO[2], 0: HELLO[0]}, "b": {1: HELLO[1]}})
    asked: list[Any] = []
    own.__dict__["inbox"] = SimpleNamespace(
        pull=lambda limits: asked.append(limits) or [("z", answer()), ("a", answer(code))]
    )
    came = list(own.receive(lambda client: 10 + client))
    # 10 + 2 and 10 + 0 bytes, and 10 + 1
    assert asked == [{"a": ROOM + 22, "b": ROOM + 11}] and [*own.waiting] == ["b"]
    assert [clients for clients, _ in came] == ([] if is_lost else [(2, 0)])
    assert own.lost == ({c: (102.0, HELLO[c]) for c in (2, 0)} if is_lost else {})
    said = ["clients [0, 2]: asked again, gone"] if is_lost else []
    assert [record.getMessage() for record in caplog.records] == said
    own.forget()
    assert own.waiting == {} and own.lost == {}


class Round:
    """Stands in for a round: what it was told, in order."""

    def __init__(self, clients: Any = (0, 1, 2), sent: Any = None, fresh: Any = None) -> None:
        self.downloads = {c: HELLO[c] for c in clients}
        self.waiting = {*clients}
        self.told: list[Any] = []
        self.sent, self.fresh = sent, fresh
        self.admitted = 0
        self.progress = SimpleNamespace(state=SimpleNamespace(round=5))

    def limit(self, client: int, each: int = 0) -> int:
        return 100 * client + each

    def refuse(self, *what: Any) -> None:
        self.told.append(what)
        self.waiting.discard(what[0])

    def drop(self, *what: Any) -> None:
        self.told.append(("drop", *what))

    def receive(self, client: int, message: Any) -> Any:
        self.told.append((client, message))
        return self.sent

    def ask_again(self, client: int) -> Any:
        self.told.append((client, "again"))
        return self.fresh

    def close(self, minimum: int) -> Any:
        return ("closed", minimum)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, "envelope"), (3, "no-answer"), (4, "no-answer"), (5, "no-answer"),
     (2, "client-error"), (0, "client-error"), (6, "client-error")],
)  # fmt: skip
def test_an_error_is_that_of_all_clients_of_its_node(code: int, reason: str) -> None:
    own: Any = Round()
    assert app._take_answers(own, [1, 0], answer(code)) == {}
    assert own.told == [(1, reason, f"{code}: gone"), (0, reason, f"{code}: gone")]


def test_an_answer_is_read_by_client_and_silence_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: Any = Round(sent=HELLO[3])
    asked: list[Any] = []

    def read(content: Any, limits: Any) -> Any:
        asked.append(limits)
        return {0: HELLO[0], 2: app.Malformed("shape", "odd")}

    monkeypatch.setattr(app, "from_content", read)
    whole: Any = SimpleNamespace(has_error=lambda: False, content=None)
    assert app._take_answers(own, [0, 1, 2], whole) == {0: HELLO[3]}
    silent = (1, "envelope", "the answer says nothing of this client")
    assert own.told == [(0, HELLO[0]), silent, (2, "shape", "odd")]
    # 100 for each client, by `limit`, and numpy's own header for each array
    assert asked == [{0: NPY_HEADER, 1: 100 + NPY_HEADER, 2: 200 + NPY_HEADER}]
    monkeypatch.setattr(app, "from_content", lambda *_: {}["odd"])
    own = Round()
    assert app._take_answers(own, [2], whole) == {}
    assert own.told == [(2, "envelope", "it cannot be read: KeyError: 'odd'")]


@pytest.mark.parametrize(("is_waiting", "fresh"), [(True, HELLO[1]), (True, None), (False, None)])
def test_who_answered_something_else_is_asked_again_while_it_is_waited_for(
    is_waiting: bool, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = Round(fresh=fresh)
    own.waiting = {0} if is_waiting else set()
    monkeypatch.setattr(app, "from_content", lambda content, limits: {0: HELLO[0]})
    whole: Any = SimpleNamespace(has_error=lambda: False, content=None)
    assert app._take_answers(own, [0], whole) == ({} if fresh is None else {0: fresh})
    assert own.told == [(0, HELLO[0]), *([(0, "again")] if is_waiting else [])]


class Lines:
    """Stands in for a link: what is sent, and a round in which one client answers at each look."""

    def __init__(self, answers: list[int], revoked: Any = (), again: Any = ()) -> None:
        self.nodes = {0: 7, 1: 8, 2: 9}
        self.answers, self.gone, self.again = answers, [*revoked], [*again]
        self.sent: list[Any] = []
        self.forgot = 0

    def forget(self) -> None:
        self.forgot += 1

    def send(self, messages: Any, group: str, seconds: float) -> list[int]:
        self.sent.append(([*messages], group, round(seconds, 3)))
        return [1] if 1 in messages else []

    def receive(self, limit: Any) -> Any:
        return [((self.answers.pop(0),), None)] if self.answers else []

    def due_again(self) -> Any:
        return {self.again.pop(0): HELLO[0]} if self.again else {}

    def revoked(self, clients: Any) -> list[int]:
        return [c for c in clients if c in self.gone]


@pytest.mark.parametrize(
    ("seconds", "goal", "answers", "sent", "slept"),
    [
        (9.0, None, [0, 2], [([0, 1, 2], "5", 9.0), ([], "5", 9.0), ([], "5", 8.0)], [1.0, 0]),
        (9.0, 1, [0, 2], [([0, 1, 2], "5", 9.0), ([], "5", 9.0)], [1.0]),
        # two looks, at 100 and 101; at 102 the time is up; the shortest wait is one second
        (1.5, None, [], [([0, 1, 2], "5", 1.5), ([], "5", 1.5), ([], "5", 1.0)], [1.0, 1.0]),
        (0.0, None, [0], [([0, 1, 2], "5", 0.0)], []),
    ],
)
def test_a_round_ends_with_the_last_answer_enough_of_them_or_its_time(
    seconds: float,
    goal: int | None,
    answers: list[int],
    sent: Any,
    slept: list[float],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, lines = Round(), Lines(answers, revoked=[2])

    def take(open_round: Any, clients: Any, message: Any) -> Any:
        open_round.waiting -= {*clients}
        open_round.admitted += 1
        return {}

    monkeypatch.setattr(app, "_take_answers", take)
    closed: Any = play_round(lines, own, 3, seconds, goal)  # type: ignore[arg-type]
    assert closed == ("closed", 3) and lines.forgot == 1
    assert lines.sent == sent and clock.slept == slept
    revoked = "its key was taken out of server.toml during the round"
    assert own.told == [(1, "unreachable", "its node has left"), ("drop", 2, "revoked", revoked)]
