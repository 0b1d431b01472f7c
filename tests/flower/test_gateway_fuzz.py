"""Nothing but an exact set of requests of enrolled clients gets through, whatever is sent."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.flower.gateway import ROUTES
from fedblocks.flower.limits import MIB

from .doors import GOOD, Door, Seen, request
from .fuzzing import Outcome, fuzz

LINES = {f"POST {route.decode()} HTTP/1.1" for route in ROUTES}
PASSED = {"host", "content-length", "content-type", "connection", "accept", "accept-encoding", "user-agent"}
PASSED |= {"flwr-public-key", "flwr-timestamp", "flwr-signature"}
RESULTS = Path(__file__).parents[2] / "results" / "fuzz-gateway.json"


def wrong(seen: list[Seen], door: Door) -> list[Seen]:
    """What should not have come through."""
    key = door.signed()[b"flwr-public-key"].decode()
    return [
        one for one in seen
        if one.line not in LINES or not one.headers.keys() <= PASSED or one.headers.get("flwr-public-key") != key
    ]  # fmt: skip


def fuzzed(door: Door, seed: int, requests: int, seconds: float) -> Outcome:
    good = request(GOOD, {**door.signed(), b"Connection": b"close"})
    assert door.ask(good).startswith(b"HTTP/1.1 200 ")
    before = door.peak()
    outcome = fuzz(door, seed, requests, seconds)
    assert wrong(door.recorder.seen, door) == []
    assert outcome.answers[b"200"] + 1 >= len(door.recorder.seen) - outcome.answers[b"silence"]
    assert outcome.answers[b"404"] > outcome.requests / 4 and outcome.answers[b"200"] > outcome.requests / 10
    good = request(GOOD, {**door.signed(), b"Connection": b"close"})
    assert door.ask(good).startswith(b"HTTP/1.1 200 ")  # it still serves
    assert door.peak() - before < 40 * MIB
    return outcome


def test_ten_thousand_wrong_requests_do_not_open_the_door(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="keys").open() as door:
        outcome = fuzzed(door, 1, 10_000, 120.0)
        assert outcome.requests >= 10_000


def test_the_same_requests_open_a_door_with_a_rule_by_prefix(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="prefix").open() as unsafe:
        fuzz(unsafe, 1, 1_000, 60.0)
        assert [one.line for one in wrong(unsafe.recorder.seen, unsafe) if one.line.startswith("POST /v1/control/")]


SECONDS = 300.0  # that the long test takes at most


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_wrong_requests_or_as_many_as_time_allows_do_not_open_the_door(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="keys").open() as door:
        began = time.monotonic()
        outcome = fuzzed(door, 2, 1_000_000, SECONDS)
        found = {
            "requests": outcome.requests,
            "seconds": round(time.monotonic() - began),
            "answers": {name.decode(): number for name, number in sorted(outcome.answers.items())},
            "reached the SuperLink": len(door.recorder.seen),
            "of these not allowed": 0,
        }
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
