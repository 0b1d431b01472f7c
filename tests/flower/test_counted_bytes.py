"""Bytes count as sent down once their client has answered: what nobody got costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.messages import ApologyHeader, header_of, reply, wire
from fedblocks.testing import EXAMPLES

from .federations import everybody

GONE = 2
COHORT = [0, 1, GONE, 3]


def start(name: str, folder: Path) -> tuple[OpenRound, OpenRound, dict[int, object]]:
    """A round that all have answered, and the same round before anybody has."""
    server, sides = everybody(EXAMPLES[name]().experiment(), folder)
    done = OpenRound(server, server.start(), COHORT)
    exchange(done, answers_of(sides))
    return done, OpenRound(server, server.start(), COHORT), dict(sides)


def of_client(asked: OpenRound, client: int) -> dict[str, int]:
    sent = {name: by.get(client, 0) for name, by in asked.report.bytes_down.items()}
    return {name: number for name, number in sent.items() if number}


@pytest.mark.parametrize("reason", ["unreachable", "no-answer"])
def test_what_is_sent_to_a_client_that_is_gone_is_not_counted(reason: str, tmp_path: Path) -> None:
    done, asked, _ = start("fedavg", tmp_path)
    asked.refuse(GONE, reason, "its node has left")
    assert of_client(asked, GONE) == {} and of_client(done, GONE)


def test_what_is_sent_to_a_client_that_is_silent_until_the_end_is_not_counted(
    tmp_path: Path,
) -> None:
    done, asked, sides = start("fedavg", tmp_path)
    answer = answers_of(sides)  # type: ignore[arg-type]
    for client in (0, 1, 3):
        asked.receive(client, answer(client, asked.downloads[client]))
    closed = asked.close()
    assert [(r.client, r.reason) for r in closed.report.refusals] == [(GONE, "no-answer")]
    assert of_client(asked, GONE) == {} and of_client(asked, 0) == of_client(done, 0)


def test_a_refused_answer_shows_that_its_client_was_reached(tmp_path: Path) -> None:
    done, asked, _ = start("fedavg", tmp_path)
    apology = ApologyHeader(
        **reply(header_of(asked.downloads[GONE])), reason="client-error", detail="it failed"
    )
    asked.receive(GONE, wire(apology))
    asked.refuse(3, "too-large", "far too many bytes")
    assert of_client(asked, GONE) == of_client(done, GONE)
    assert of_client(asked, 3) == of_client(done, 3)


def test_slots_that_a_client_asked_for_and_did_not_answer_are_not_counted(tmp_path: Path) -> None:
    done, asked, sides = start("fedmn", tmp_path)
    answer = answers_of(sides)  # type: ignore[arg-type]
    assert asked.receive(GONE, answer(GONE, asked.downloads[GONE])) is not None
    first = of_client(asked, GONE)
    asked.close()
    assert of_client(asked, GONE) == first and first.items() < of_client(done, GONE).items()
