"""Who is taken in, who is refused, and how long the others are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.flower.server import registry as module
from fedblocks.flower.server.naming import name_clients
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.wire.admission import Member


def registry(**changes: Any) -> tuple[Registry, list[str]]:
    told: list[str] = []
    grid: Any = SimpleNamespace(get_nodes=lambda: [], push_messages=lambda _: [])
    return Registry(grid, tell=told.append, **changes), told


def member(client: int, size: int = 4, limit: float = 4.0) -> Member:
    return Member(client, size, limit, {})


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([3], "client 3"),
        ([1, 2], "clients 1, 2"),
        ([0, 1, 2, 3, 4], "clients 0, 1, 2, 3, 4"),
        ([0, 1, 2, 3, 4, 5, 6], "clients 0, 1, 2, 3, 4 and 2 more"),
    ],
)
def test_clients_are_named_in_a_few_words(clients: list[int], words: str) -> None:
    assert name_clients(clients) == words


@pytest.mark.parametrize(
    ("size", "limit", "labels", "reason"),
    [
        (4, 8.0, 2, ""), (4, 8.1, 2, "too-large-claim"), (0, 1.0, 2, ""),
        (0, 1.1, 2, "too-large-claim"), (5, 1.0, 2, "changed-claim"),
    ],
)  # fmt: skip
def test_a_claim_is_of_the_examples_of_this_run_and_of_a_label_for_each(
    size: int, limit: float, labels: int, reason: str
) -> None:
    own, _ = registry(labels=labels, claims={7: 4, 8: 0})
    client = 8 if size == 0 else 7
    assert own._wrong_claim([member(client, size, limit)]).partition(":")[0] == reason


def test_a_node_is_told_of_once_for_each_kind_of_reason_and_loses_its_clients() -> None:
    own, told = registry()
    own.nodes, own.members = {1: 10, 2: 20}, {1: member(1), 2: member(2)}
    for reason in ("wrong-key: first", "wrong-key: second", "envelope: third"):
        own._refuse(10, reason)
    assert told == [
        "a node was refused: wrong-key: first",
        "a node was refused: envelope: third",
    ]
    assert (
        own.nodes == {2: 20}
        and own.members.keys() == {2}
        and own.refused == {10: "envelope: third"}
    )


def test_a_node_enters_with_its_clients_unless_one_is_there_already() -> None:
    own, told = registry()
    own._heard = {10: [member(1), member(2)], 20: [member(2)]}
    own.refused = {10: "envelope: before"}
    own._enter(10, own._heard[10])
    assert own.nodes == {1: 10, 2: 10} and own.refused == {}
    assert told == ["clients 1, 2 are there, with 8 training examples"]
    own._enter(20, own._heard[20])
    assert (
        own.nodes[2] == 10
        and 20 not in own._heard
        and own.refused == {20: "duplicate: client 2 is there already"}
    )
    own._enter(10, [member(1)])  # again
    assert told[-1] == "client 1 is there, with 4 training examples"


def test_a_node_that_left_is_crossed_out_and_may_be_greeted_again() -> None:
    own, told = registry()
    own.nodes, own._when, own._since = {1: 10, 2: 20}, {10: 0.0, 20: 0.0}, {10: "9", 20: "9"}
    own.grid.get_nodes = lambda: [online(20, "9")]  # type: ignore[method-assign]
    own._read_nodes()
    own._cross_out()
    assert own.nodes == {2: 20} and own._when == {20: 0.0} and told == ["client 1 has left"]


def online(node: int, since: str) -> Any:
    return SimpleNamespace(node_id=node, public_key=b"", last_activated_at=since)


def test_a_client_that_was_killed_over_the_first_question_is_asked_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower has counted it as online all the while."""
    monkeypatch.setattr(module, "LOOK", -1.0)
    monkeypatch.setattr(module, "hello_message", lambda node, *_: node)
    own, _ = registry()
    asked: list[int] = []

    def push(nodes: list[int]) -> list[str]:
        asked.extend(nodes)
        return [f"question {len(asked)}"]

    own.grid.push_messages = push  # type: ignore[method-assign,assignment]
    own._inbox = SimpleNamespace(pull=lambda _: [])  # type: ignore[assignment]
    for since, times in (("9:00", 1), ("9:00", 1), ("9:01", 2), ("9:01", 2)):
        own.grid.get_nodes = lambda since=since: [online(10, since)]  # type: ignore[misc,method-assign]
        own.look()
        assert asked == [10] * times
    assert own._asked == {"question 2": 10}


def test_claims_are_fixed_once_and_for_those_who_are_there() -> None:
    own, _ = registry(claims={1: 9})
    own.nodes, own.members = {1: 10, 2: 20}, {1: member(1), 2: member(2, 6)}
    own.fix_claims([1, 2, 3])
    assert own.claims == {1: 9, 2: 6}


class Clock:
    """A time that passes only while somebody sleeps."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, False)])
def test_enough_clients_go_on_when_the_time_is_over(
    least: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    own, told = registry()
    own.nodes = {4: 40}
    monkeypatch.setattr(own, "look", lambda: None)
    own.refused = {50: "envelope: odd"}
    if goes_on:
        own.wait([4, 5], least, 3.0)
        assert told[-1].startswith("going on without client 5, not there after 3 s")
    else:
        with pytest.raises(UserError, match=r"1 of 2 clients connected after 3 s, at least 2"):
            own.wait([4, 5], least, 3.0)
    assert told[0] == "waiting for clients: 1 of 2 are there, client 5 missing"
    assert 103.0 < clock.now < 105.0 and sum("waiting" in text for text in told) == 1


def test_nobody_is_waited_for_where_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    own, told = registry()
    looks: list[int] = []
    monkeypatch.setattr(own, "look", lambda: (looks.append(1), own.nodes.update({4: 1, 5: 1})))
    own.wait([4, 5], 2, 0.0)
    assert told == [] and len(looks) == 1
