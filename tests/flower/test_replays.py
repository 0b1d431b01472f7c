"""Answers that are stale or lost free their place or are asked for again; the round
does not wait for its deadline.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

import httpx
from flwr.app import Error, Message

from fedblocks.engines.sequential import Sequential
from fedblocks.flower.server import app
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask
from fedblocks.flower.wire.records import HEADERS
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.rounds import run

from .federations import leaves
from .local_grid import LocalGrid
from .test_apps import BAD, Federated, asked, node_of, without

DEADLINE = 120.0  # seconds; whatever waits for it fails these tests, on a busy machine too
SHORT = 3.0  # seconds, of rounds that are to wait for it


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "RETRY", 0.05)


class Replaying:
    """A client that sends its first upload again in the place of later ones, as often
    as it is told to.
    """

    def __init__(self, times: float) -> None:
        self.times, self.first = times, ""

    def __call__(self, node: int, answer: Message) -> Message:
        if node != node_of(BAD) or answer.metadata.message_type != "train":
            return answer
        headers = answer.content[HEADERS]
        if json.loads(str(headers[str(BAD)]))["kind"] == "upload":
            if not self.first:
                self.first = str(headers[str(BAD)])
            elif self.times:
                self.times -= 1
                headers[str(BAD)] = self.first
        return answer


@pytest.mark.parametrize("name", ["fedper", "fedmn"])  # fedmn: two messages a round
def test_a_client_that_replays_once_is_asked_again_and_its_update_is_used(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    federation = Federated(example, tmp_path, Replaying(times=1))
    began = time.monotonic()
    progress = federation.go(Ask(), seconds=DEADLINE)
    assert time.monotonic() - began < DEADLINE / 2
    assert [(r.client, r.reason) for closed in federation.rounds for r in closed.ignored] == [
        (BAD, "stale")
    ]
    assert [closed.report.refusals for closed in federation.rounds] == [[]] * example.rounds
    simulated = run(example.experiment(), Sequential(), example.cohorts()).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


def test_a_client_that_only_replays_is_refused_long_before_the_deadline(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, Replaying(times=float("inf")))
    began = time.monotonic()
    progress = federation.go(Ask(), seconds=DEADLINE)
    assert time.monotonic() - began < DEADLINE / 2
    first = asked(example)
    refused = [
        [(r.client, r.reason) for r in closed.report.refusals] for closed in federation.rounds
    ]
    cohorts = enumerate(example.cohorts())
    assert refused == [
        [(BAD, "stale")] if BAD in clients and r > first else [] for r, clients in cohorts
    ]
    assert sum(map(len, refused)) > 0
    used = [*example.cohorts()[: first + 1], *without(BAD, example)[first + 1 :]]
    simulated = run(example.experiment(), Sequential(), used).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


def test_without_the_second_question_a_replay_holds_the_round_until_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenRound, "ask_again", lambda self, client: None)
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, Replaying(times=1))
    began = time.monotonic()
    federation.go(Ask(), seconds=SHORT)
    assert time.monotonic() - began >= SHORT
    assert [r.reason for closed in federation.rounds for r in closed.report.refusals] == [
        "no-answer"
    ]


class Slow(LocalGrid):
    """A grid on which one client's first answer comes when it has been asked a second time."""

    held: tuple[str, Message] | None = None

    def _deliver(self, message: Message) -> str:
        number = super()._deliver(message)
        if (
            message.metadata.dst_node_id == node_of(BAD)
            and message.metadata.message_type == "train"
        ):
            if self.held is None:
                self.held = (number, self.answers.pop(number))
            else:
                self.answers[self.held[0]] = self.held[1]
        return number


def test_the_late_answer_of_a_slow_client_does_not_count_against_it(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path)
    federation.grid.__class__ = Slow
    federation.go(
        Ask(), seconds=SHORT, rounds=asked(example) + 1, minimum=len(example.cohorts()[0])
    )
    abandoned, done = federation.rounds[-2:]
    assert [(r.client, r.reason) for r in abandoned.report.refusals] == [
        (BAD, "no-answer")
    ] and abandoned.abandoned
    assert done.abandoned == "" and done.report.refusals == [] and done.ignored == []


class Losing:
    """An answer of one client is lost on its way, as often as it is told to be."""

    def __init__(self, code: int, times: float) -> None:
        self.code, self.times = code, times

    def __call__(self, node: int, answer: Message) -> Message:
        if node != node_of(BAD) or answer.metadata.message_type != "train" or not self.times:
            return answer
        self.times -= 1
        lost = Message(Error(self.code, "Reply message objects are unavailable."), reply_to=answer)
        lost.metadata.__dict__["_reply_to_message_id"] = answer.metadata.reply_to_message_id
        return lost


@pytest.mark.parametrize("name", ["fedper", "fedmn"])
@pytest.mark.parametrize("code", [3, 4])
def test_an_upload_that_was_lost_on_its_way_is_asked_for_again(
    name: str, code: int, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    federation = Federated(example, tmp_path, Losing(code, times=2))
    progress = federation.go(Ask(), seconds=DEADLINE)
    assert [closed.report.refusals + closed.ignored for closed in federation.rounds] == [
        []
    ] * example.rounds
    simulated = run(example.experiment(), Sequential(), example.cohorts()).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


def test_without_a_second_sending_a_lost_upload_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LOST", set())
    federation = Federated(EXAMPLES["fedper"](), tmp_path, Losing(3, times=1))
    federation.go(Ask(), seconds=DEADLINE)
    refusals = [
        (r.client, r.reason) for closed in federation.rounds for r in closed.report.refusals
    ]
    assert refusals == [(BAD, "no-answer")]


def test_a_node_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, Losing(5, times=float("inf")))
    began = time.monotonic()
    federation.go(Ask(), seconds=DEADLINE)
    assert time.monotonic() - began < DEADLINE / 2
    assert {r.reason for closed in federation.rounds for r in closed.report.refusals} == {
        "no-answer"
    }


class Busy(LocalGrid):
    """A SuperLink whose database is locked now and then: it fails, and forgets what it
    was about to hand out.
    """

    calls = 0

    def _fails(self) -> None:
        self.__class__.calls += 1
        if self.calls % 3 == 0:
            request = httpx.Request("POST", "http://127.0.0.1/")
            raise httpx.HTTPStatusError(
                "database is locked", request=request, response=httpx.Response(500)
            )

    def push_messages(self, messages: Any) -> list[str]:
        self._fails()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> list[Message]:
        self._fails()
        return super().pull_messages(message_ids)


def test_a_superlink_that_fails_now_and_then_costs_no_update(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path)
    federation.grid.__class__ = Busy
    progress = federation.go(Ask(), seconds=DEADLINE)
    assert [closed.report.refusals for closed in federation.rounds] == [[]] * example.rounds
    simulated = run(example.experiment(), Sequential(), example.cohorts()).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []
