"""The questions of a server to its nodes, and what it reads of their answers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedblocks.flower.server import registry as module
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.pulling import ROOM
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.records import hello_content

from .test_registry_limits import member, registry


def online(node: int, since: str = "9") -> Any:
    return SimpleNamespace(node_id=node, public_key=b"key %d" % node, last_activated_at=since)


def said(*members: Member) -> Any:
    content = hello_content({"members": [vars(one) for one in members]})
    return SimpleNamespace(has_error=lambda: False, content=content)


def failed(code: int, reason: str = "") -> Any:
    error = SimpleNamespace(code=code, reason=reason)
    return SimpleNamespace(has_error=lambda: True, error=error)


def test_nodes_are_greeted_that_are_unknown_and_were_not_asked_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked again after 90 s, and not before they are over."""
    assert (90.0, {3, 4, 5}) == (module.AGAIN, module.UNANSWERED)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(module, "hello_message", lambda *what: what)
    own, _ = registry(spec="a spec")
    own._public = dict.fromkeys((1, 2, 3, 4), b"")
    own.nodes = {0: 1}
    own._when = {2: 10.0, 3: 9.9}
    own._asked = {"old": 3, "other": 2}
    pushed: list[Any] = []
    numbers = ["a", "b"]
    own.grid.push_messages = lambda some: pushed.extend(some) or numbers  # type: ignore[method-assign,assignment,func-returns-value]
    own._greet()
    assert pushed == [(3, "a spec", 90.0), (4, "a spec", 90.0)]
    assert own._asked == {"other": 2, "a": 3, "b": 4}
    assert own._when == {2: 10.0, 3: 100.0, 4: 100.0}
    own._greet()
    assert len(pushed) == 2


@pytest.mark.parametrize(("status", "passes"), [(500, True), (499, False)])
def test_nobody_was_asked_by_a_superlink_that_failed(status: int, passes: bool) -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    own, _ = registry()
    own._public = {1: b""}
    request = httpx.Request("POST", "http://here")
    error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))

    def push(_: Any) -> Any:
        raise error

    own.grid.push_messages = push  # type: ignore[method-assign]
    if passes:
        own._greet()
        assert own._asked == {} and own._when == {}
    else:
        with pytest.raises(httpx.HTTPStatusError):
            own._greet()


def test_a_look_reads_what_has_come_each_time_and_the_nodes_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module, "LOOK", 1.0)
    own, _ = registry()
    own._asked = {"a": 1, "b": 2}
    done: list[Any] = []
    for name in ("_read_nodes", "_read_enrolment", "_cross_out", "_greet", "_take_in"):
        monkeypatch.setattr(own, name, lambda name=name: done.append(name))
    monkeypatch.setattr(own, "_hear", lambda *what: done.append(what))
    own._inbox = SimpleNamespace(  # type: ignore[assignment]
        pull=lambda limits: done.append(limits) or [("z", "unasked"), ("b", "said")]
    )
    first = ["_read_nodes", "_read_enrolment", "_cross_out", "_greet"]
    own.look()
    assert done == [*first, {"a": ROOM, "b": ROOM}, (2, "said"), "_take_in"]
    for now, again in ((1.0, []), (1.1, first), (2.1, []), (2.2, first)):
        clock.now = now
        done.clear()
        own.look()
        assert done == [*again, {"a": ROOM}, "_take_in"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (failed(2, "odd"), "client-error: odd"),
        (failed(2), "client-error: it does not say why"),
        (failed(1000, "odd"), "envelope: odd"),
        (said(), "envelope: it does not say who it is"),
        (said(member(5)), "wrong-key: its key is not that of client 5"),
        (said(member(0, 4, 9.0)), "too-large-claim: client 0 claims 9 labels, and can have 8"),
        (
            said(member(1, 5)),
            "changed-claim: client 1 now claims 5 examples, in this run 4",
        ),
        (SimpleNamespace(has_error=lambda: False, content=RecordDict()),
         "envelope: it does not say who it is (KeyError)"),
        (SimpleNamespace(has_error=lambda: False,
                         content=hello_content({"reason": "not-allowed", "detail": "no"})),
         "not-allowed: no"),
        (SimpleNamespace(has_error=lambda: False, content=hello_content({"reason": "odd"})),
         "odd: "),
    ],
)  # fmt: skip
def test_why_a_node_is_refused_is_kept_with_it_and_told(message: Any, reason: str) -> None:
    own, told = registry(labels=2, claims={1: 4})
    own._enrolment = Enrolment({b"key 7": (0, 1)})
    own._public = {7: b"key 7"}
    own._heard = {7: [member(0)]}
    own._hear(7, message)
    assert own.refused == {7: reason} and own._heard == {}
    assert told == [f"a node was refused: {reason}"]


@pytest.mark.parametrize(("code", "again"), [(3, True), (4, True), (5, True), (2, False)])
def test_a_node_that_did_not_get_the_question_is_asked_anew(code: int, again: bool) -> None:
    own, _ = registry()
    own._when = {7: 1.0}
    own._hear(7, failed(code))
    assert (own._when == {}) is again and (own.refused == {}) is again


def test_what_a_node_may_say_is_heard_and_counts_once_it_is_taken_in() -> None:
    own, told = registry(labels=2)
    own._enrolment = Enrolment({b"key 7": (0, 1)})
    own._public = {7: b"key 7"}
    own._hear(7, said(member(0, 4, 8.0), member(1, 0, 1.0)))
    assert own._heard == {7: [member(0, 4, 8.0), member(1, 0, 1.0)]} and own.nodes == {}
    own._take_in()
    assert own.nodes == {0: 7, 1: 7} and len(told) == 1
    own._take_in()
    assert len(told) == 1  # it is there already
    own.nodes = {0: 7}
    own._take_in()
    assert own.nodes == {0: 7, 1: 7} and len(told) == 2
    own._public, own.nodes = {}, {}
    own._take_in()
    assert own.nodes == {}  # it has left


def test_a_claim_that_is_too_large_refuses_the_whole_node() -> None:
    own, _ = registry()
    own._enrolment = Enrolment(agreed={(0, 1): 6})
    own._public = {7: b"", 8: b""}
    own._heard = {7: [member(0, 4), member(1, 3)], 8: [member(2, 4)]}
    own._take_in()
    why = "client 0: it claims 7 examples, and 6 were agreed at enrolment"
    assert own.refused == {7: f"too-large-claim: {why}"} and own.nodes == {2: 8}


def test_a_key_that_is_taken_out_during_a_run_costs_its_node_its_place() -> None:
    own, _ = registry(enrolled=lambda: Enrolment({b"key 8": (2,)}))
    own._public = {7: b"key 7", 8: b"key 8"}
    own._heard = {7: [member(0)], 8: [member(2)], 9: [member(3)]}
    own.nodes, own.members = {0: 7, 2: 8}, {0: member(0), 2: member(2)}
    assert own.revoked([2, 0, 5]) == [0]
    own._cross_out()
    why = "the key of client 0 is not in server.toml; once it is, it is taken in"
    assert own.refused == {7: f"not-enrolled: {why}"} and [*own._heard] == [8, 9]
    assert own.nodes == {2: 8}
    own._enrolment = Enrolment({b"key 7": (0, 4)})
    assert own.turned_away(4) == own.refused[7] and own.turned_away(2) == ""
    assert registry()[0].turned_away(0) == ""


def test_members_travel_as_they_are() -> None:
    """A node's answer is JSON: numbers stay what they are, and a size is no text."""
    own, _ = registry(labels=9)
    one = Member(3, 4, 5.5, {"ward": 2}, "north")
    assert own._read(said(one), 7) == [one]
    text = json.dumps({"members": [{**vars(one), "size": "4"}]})
    own._hear(7, SimpleNamespace(has_error=lambda: False, content=hello_content(json.loads(text))))  # type: ignore[arg-type]
    assert own.refused[7] == "envelope: it does not say who it is (ValidationError)"


def test_who_waits_is_told_whenever_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, slept=list[float]())

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.now += 1.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(module, "PAUSE", 0.5)
    own, told = registry()
    comes = iter([[], [], [4], [], [6, 5]])
    monkeypatch.setattr(own, "look", lambda: own.nodes.update(dict.fromkeys(next(comes), 1)))
    own.wait([4, 5, 6], 3, 60.0)
    assert [text.partition(":")[2].strip() for text in told] == [
        "0 of 3 are there, clients 4, 5, 6 missing",
        "1 of 3 are there, clients 5, 6 missing",
    ]
    assert clock.slept == [0.5] * 4
