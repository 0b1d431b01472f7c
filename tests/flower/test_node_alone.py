"""The process of a machine's clients without a server: what it asks, tells, logs and waits for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.common.constant import ErrorCode

from fedblocks.flower.client import node
from fedblocks.flower.client.fleet import RunOverError
from fedblocks.flower.client.node import Node
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.wire.messages import Malformed

AWAY = httpx.ConnectError("away")
META = SimpleNamespace(run_id=9, created_at=90.0, ttl=10.0, message_type="train")
MESSAGE: Any = SimpleNamespace(metadata=META, content={"run": {"json": "a spec"}})


class Stop(Exception):
    """Ends a loop that has no end."""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A client on a clock that stands at 100."""
    host = ClientHost(
        federation="f", server="127.0.0.1:1", clients=(0,), insecure=True, data={"name": "x"}
    )
    host.write(tmp_path)
    own = Node(tmp_path, "client 0: 5 examples")
    clock = SimpleNamespace(time=lambda: 100.0, monotonic=lambda: 100.0, sleep=lambda pause: None)
    monkeypatch.setattr(node, "time", clock)
    return own


def fails(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


@pytest.mark.parametrize(("insecure", "number"), [(True, None), (False, 5)])
def test_the_number_of_an_earlier_time_is_taken_up_where_there_are_keys(
    insecure: bool, number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "Fleet", lambda host, folder: (host, folder))
    host = ClientHost(
        federation="f", server="127.0.0.1:1", clients=(0,), insecure=insecure, data={"name": "x"}
    )
    host.write(tmp_path)
    assert Node(tmp_path).number is None
    Standing("connected", "", "", 5).write(tmp_path)
    own = Node(tmp_path, "much")
    assert own.number == number and own.holds == "much"
    assert own.fleet == (host, tmp_path)


def test_pauses_between_two_tries_to_connect_double_up_to_the_longest(
    alone: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(node.time, "sleep", slept.append)
    answers = iter([AWAY, ValueError("odd"), AWAY, AWAY, AWAY, AWAY])
    asked: list[int | None] = []

    def enter(number: int | None) -> int:
        asked.append(number)
        if (error := next(answers, None)) is not None:
            raise error
        return 7

    alone.fleet.enter = enter  # type: ignore[method-assign]
    alone._connect()
    assert slept == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert asked == [None] * 7 and alone.number == 7
    fix = ""
    text = "connected; waiting for what the server asks for"
    own = Standing("connected", text, fix, 7, os.getpid(), "client 0: 5 examples")
    assert Standing.read(alone.folder) == own
    said = [record.getMessage() for record in caplog.records]
    # each once, though the first came five times
    assert len(said) == 3 and said[0].startswith("127.0.0.1:1 does not answer (away); start it")
    assert said[1].startswith("127.0.0.1:1 gives an answer that this client does not understand")
    assert said[2] == text
    alone._tell_cause(AWAY)  # what was said before it connected counts no more
    assert caplog.records[-1].getMessage() == said[0]
    standing = Standing.read(alone.folder)
    assert standing is not None and (standing.state, standing.node) == ("trying", 7)


def test_a_heart_beats_once_there_is_a_number_and_a_server_that_hears_it(alone: Node) -> None:
    beats: list[int] = []
    alone.fleet.beat = lambda number: beats.append(number) is None  # type: ignore[method-assign]
    assert alone._beat() is False and beats == []
    alone.number = 4
    assert alone._beat() is True and beats == [4]
    alone.fleet.beat = lambda number: False  # type: ignore[method-assign]
    assert alone._beat() is False
    alone.fleet.beat = fails(AWAY)  # type: ignore[method-assign]
    assert alone._beat() is False


def test_trouble_is_shown_in_one_line_as_of_a_client_that_is_connected(alone: Node) -> None:
    alone.number = 3
    alone.show_trouble("full\n" + "x" * 3000)
    # 2000 letters of a line, the blank in place of its end among them
    text = "full " + "x" * 1995
    own = Standing("connected", text, "", 3, os.getpid(), "client 0: 5 examples")
    assert Standing.read(alone.folder) == own


@pytest.mark.parametrize(
    ("since", "pause"), [(0.0, 0.25), (2.5, 0.25), (20.0, 2.0), (30.0, 3.0), (99.0, 3.0)]
)
def test_the_longer_nothing_came_the_seldomer_a_client_looks(
    since: float, pause: float, alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the time since the last message, from a quarter of a second to three."""
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise Stop

    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", sleep)
    alone.number = 4
    came: Any = iter([("message", "tree"), None])
    taken: list[Any] = []

    def following(number: int) -> Any:
        now[0] += since
        assert number == 4
        return next(came)

    alone.fleet.next = following  # type: ignore[method-assign]
    alone._take = lambda *what: taken.append(what)  # type: ignore[method-assign]
    with pytest.raises(Stop):
        alone._answer_messages()
    assert taken == [(4, "message", "tree")] and slept == [pytest.approx(pause)]


@pytest.mark.parametrize(
    ("error", "now", "said"),
    [
        (RunOverError(), 0.0, "run 9 is over; its message was dropped"),
        (AWAY, 100.0, "a message of run 9 was dropped, since its time was over"),
        (AWAY, 99.9, None),
    ],
)
def test_an_answer_that_nobody_waits_for_is_dropped_with_a_line(
    error: Exception,
    now: float,
    said: str | None,
    alone: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its time ends at 90 + 10 s."""
    monkeypatch.setattr(node.time, "time", lambda: now)
    alone._fetch_and_reply = lambda *_: "reply"  # type: ignore[assignment, method-assign]
    alone.fleet.deliver = fails(error)  # type: ignore[method-assign]
    if said is None:
        with pytest.raises(httpx.ConnectError):
            alone._take(4, MESSAGE, None)  # type: ignore[arg-type]
    else:
        alone._take(4, MESSAGE, None)  # type: ignore[arg-type]
        assert [record.getMessage() for record in caplog.records] == [said]


def test_an_answer_goes_out_with_the_seconds_that_it_took(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 103.5])
    monkeypatch.setattr(node.time, "monotonic", lambda: next(times))
    alone._fetch_and_reply = lambda *what: what  # type: ignore[assignment, method-assign]
    sent: list[Any] = []
    alone.fleet.deliver = lambda *what: sent.append(what)  # type: ignore[method-assign]
    alone._take(4, MESSAGE, "tree")  # type: ignore[arg-type]
    assert sent == [(4, (4, MESSAGE, "tree"), 3.5)]


def test_a_message_is_fetched_up_to_what_the_owner_allows_and_an_envelope(alone: Node) -> None:
    fetched: list[Any] = []
    alone.fleet.fetch = lambda *what: fetched.append(what)  # type: ignore[method-assign]
    alone.reply = lambda message: (message, "reply")  # type: ignore[assignment, method-assign]
    assert alone._fetch_and_reply(4, MESSAGE, "tree") == (MESSAGE, "reply")  # type: ignore[arg-type]
    # 2 GB and 16 MiB
    assert fetched == [(4, MESSAGE, "tree", 2 * 10**9 + 16 * 2**20)]


@pytest.mark.parametrize(
    ("error", "code", "told", "shown"),
    [
        (Malformed("shape", "no"), ErrorCode.UNKNOWN, "refused: shape: no", None),
        (
            KeyError("ward"),
            ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
            "it failed (KeyError); its log says why",
            "a message could not be answered: 'ward'",
        ),
    ],
)
def test_what_fails_is_told_to_the_server_without_a_word_of_this_machine(
    error: Exception,
    code: int,
    told: str,
    shown: str | None,
    alone: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node, "Message", lambda what, reply_to: (what.code, what.reason, reply_to))
    alone.fleet.fetch = lambda *_: None  # type: ignore[method-assign]
    alone.reply = fails(error)  # type: ignore[method-assign]
    for _ in range(2):
        assert alone._fetch_and_reply(4, MESSAGE, None) == (code, told, MESSAGE)  # type: ignore[arg-type]
    said = [record.getMessage() for record in caplog.records]
    standing = Standing.read(alone.folder)
    assert (standing.text if standing else None) == shown
    if shown is None:
        assert said == ["refused: run 9: shape: no"]
    else:
        assert said == ["a message of run 9 could not be answered"] * 2


@pytest.mark.parametrize("error", [RunOverError(), AWAY])
def test_what_is_no_fault_of_a_message_is_passed_on(error: Exception, alone: Node) -> None:
    alone.fleet.fetch = fails(error)  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        alone._fetch_and_reply(4, MESSAGE, None)  # type: ignore[arg-type]
