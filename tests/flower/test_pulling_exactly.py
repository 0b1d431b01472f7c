"""Answers that come in pieces: when they are looked for, what is kept, and what fails alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

from fedblocks.flower.server import pulling
from fedblocks.flower.server.pulling import Inbox, _Arriving
from fedblocks.flower.wire.messages import TooLargeError


def failed(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://here")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        own = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(pulling, "time", own)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A grid that notes what is confirmed."""
    monkeypatch.setattr(pulling, "ConfirmMessageReceivedRequest", lambda **what: what)
    monkeypatch.setattr(pulling, "make_pull_object_fn_protobuf", lambda *what: what)
    confirmed: list[Any] = []
    client = SimpleNamespace(ConfirmMessageReceived=confirmed.append, PullObject="pull")
    run = SimpleNamespace(run_id=5)
    return SimpleNamespace(_runtime_client=client, run=run, node="node", confirmed=confirmed)


CONFIRMED = {"node": "node", "run_id": 5, "message_object_id": "answer"}


def test_missing_pieces_are_looked_for_seldomer_and_seldomer(
    clock: Clock, grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = _Arriving("answer", ["a", "b"], most=10, pieces={"a": b""})
    looks: list[float] = []
    monkeypatch.setattr(answer, "_fetch_pieces", lambda fetch: looks.append(clock.now))
    for _ in range(60):
        assert answer.fetch(grid) is None
        clock.now += 0.25
    # a quarter of a second, doubled up to four seconds
    assert looks == [100.0, 100.25, 100.75, 101.75, 103.75, 107.75, 111.75] and answer.looks == 7
    monkeypatch.setattr(answer, "_put_together", lambda: "whole")
    answer.pieces["b"] = b""
    assert answer.fetch(grid) is None and grid.confirmed == []  # it is not due
    clock.now = 115.75
    whole: Any = answer.fetch(grid)
    assert whole == "whole" and grid.confirmed == [CONFIRMED]


def test_an_answer_that_is_too_large_is_thrown_away(clock: Clock, grid: Any) -> None:
    answer = _Arriving("answer", ["a"], most=10)
    answer._fetch_pieces = lambda fetch: (_ for _ in ()).throw(TooLargeError("much"))  # type: ignore[method-assign]
    with pytest.raises(TooLargeError):
        answer.fetch(grid)
    assert grid.confirmed == [CONFIRMED]


def test_pieces_are_kept_as_they_come_up_to_their_bytes() -> None:
    answer = _Arriving("answer", ["a", "b", "c"], most=5)

    def missing(name: str) -> bytes:
        raise ObjectUnavailableError(name)

    assert answer._fetch_piece(missing, "a") == b"" and answer.pieces == {}
    assert answer._fetch_piece(lambda name: b"123", "a") == b"123"
    assert answer._fetch_piece(lambda name: b"45", "b") == b"45"
    assert answer.pieces == {"a": b"123", "b": b"45"} and answer.size == 5
    with pytest.raises(TooLargeError, match="more than the 5 bytes that were expected"):
        answer._fetch_piece(lambda name: b"6", "c")


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_an_answer_is_put_together_up_to_its_bytes_and_is_a_message(
    size: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = _Arriving("answer", ["a"], most=10, pieces={"a": b""})
    monkeypatch.setattr(pulling, "count_assembled_bytes", lambda pieces: size)
    monkeypatch.setattr(pulling, "inflate_object_from_contents", lambda *what: "odd")
    with pytest.raises(TypeError if fits else TooLargeError):
        answer._put_together()


def test_pieces_are_fetched_for_a_second_at_a_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (pulling.LOOK, pulling.BATCH) == (1.0, 256)
    monkeypatch.setattr(pulling, "BATCH", 1)
    answer = _Arriving("answer", list("abcdef"), most=10, pieces={"b": b""})
    seen: list[str] = []

    def pull(some: list[str], fetch: Any) -> None:
        seen.extend(some)
        answer.pieces |= dict.fromkeys(some, b"")
        clock.now += 0.5

    monkeypatch.setattr(pulling, "pull_objects", pull)
    answer._fetch_pieces(lambda name: b"")
    assert seen == ["a", "c"]
    answer._fetch_pieces(lambda name: b"")
    assert seen == ["a", "c", "d", "e"]


@pytest.mark.parametrize(
    ("comes", "code"),
    [
        ("whole", None), (None, None), (ObjectPullError("a", "gone"), 3),
        (httpx.ReadError("gone"), 3), (failed(500), 3), (failed(499), 1000),
        (ValueError("x" * 300), 1000),
    ],
)  # fmt: skip
def test_whatever_is_wrong_with_an_answer_stands_for_itself(
    comes: Any, code: int | None, clock: Clock
) -> None:
    def fetch(grid: Any) -> Any:
        if isinstance(comes, Exception):
            raise comes
        return comes

    inbox = Inbox("grid")  # type: ignore[arg-type]
    inbox._arriving = {
        "q": SimpleNamespace(fetch=fetch),
        "r": SimpleNamespace(fetch=lambda _: None),
    }  # type: ignore[dict-item]
    came = list(inbox._whole("grid"))  # type: ignore[arg-type]
    assert [*inbox._arriving] == (["q", "r"] if comes is None else ["r"])
    if code is None:
        assert came == ([("q", "whole")] if comes else [])
        return
    ((asked, message),) = came
    meta = message.metadata
    assert asked == meta.reply_to_message_id == "q" and message.error.code == code
    assert (meta.message_type, meta.created_at, meta.ttl, meta.run_id) == ("system", 100.0, 0.0, 0)
    assert message.error.reason == f"{type(comes).__name__}: {str(comes)[:200]}"


def test_other_grids_hand_over_whole_answers_and_a_superlink_that_fails_none() -> None:
    asked: list[Any] = []
    message = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="q"))
    grid: Any = SimpleNamespace(pull_messages=lambda some: asked.append(some) or [message])
    inbox = Inbox(grid)
    inbox._arriving = {"q": "kept", "z": "forgotten"}  # type: ignore[dict-item]
    assert inbox.pull({"q": 1, "r": 2}) == [("q", message)] and asked == [["q", "r"]]  # type: ignore[comparison-overlap]
    assert [*inbox._arriving] == ["q"]
    assert inbox.pull({}) == [] and len(asked) == 1 and inbox._arriving == {}
    for status, passes in ((500, True), (499, False)):

        def fail(some: Any, status: int = status) -> Any:
            raise failed(status)

        grid.pull_messages = fail
        if passes:
            assert inbox.pull({"q": 1}) == []
        else:
            with pytest.raises(httpx.HTTPStatusError):
                inbox.pull({"q": 1})


def test_answers_that_cannot_be_read_together_are_asked_for_one_by_one_for_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox("grid")  # type: ignore[arg-type]
    inbox._arriving = {"b": "here"}  # type: ignore[dict-item]
    learned: list[list[str]] = []

    def learn(grid: Any, unheard: list[str], limits: Any) -> None:
        learned.append(unheard)
        clock.now += 0.5 if len(unheard) == 1 else 0.0
        if unheard != ["c"]:
            raise failed(500)

    monkeypatch.setattr(inbox, "_learn", learn)
    monkeypatch.setattr(pulling.random, "sample", lambda some, count: some[::-1][:count])
    inbox._begin("grid", dict.fromkeys("abcdef", 1))  # type: ignore[arg-type]
    # at 100, 100.5 and 101 s, and no more at 101.5 s
    assert learned == [["a", "c", "d", "e", "f"], ["f"], ["e"], ["d"]]
