"""Nothing but an exact set of requests of enrolled clients gets through, whatever is sent."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

import httpx

from fedblocks.flower.gateway.gateway import Gateway
from fedblocks.flower.gateway.limits import MIB, Limits
from fedblocks.flower.gateway.members import Members
from fedblocks.flower.gateway.requests import ROUTES
from fedblocks.flower.keys.client_keys import public_key

from .doors import GOOD, Door, Seen, request
from .fuzzing import Outcome, fuzz, fuzz_in_memory

LINES = {f"POST {route.decode()} HTTP/1.1" for route in ROUTES}
PASSED = {
    "host",
    "content-length",
    "content-type",
    "connection",
    "accept",
    "accept-encoding",
    "user-agent",
}
PASSED |= {"flwr-public-key", "flwr-timestamp", "flwr-signature"}
RESULTS = Path(__file__).parents[2] / "results" / "fuzz-gateway.json"


def wrong(seen: list[Seen], door: Door) -> list[Seen]:
    """What should not have come through."""
    key = b64encode(public_key(door.server / "clients" / "one.pub")).decode()
    return [
        one
        for one in seen
        if one.line not in LINES
        or not one.headers.keys() <= PASSED
        or one.headers.get("flwr-public-key") != key
    ]


def fuzzed(door: Door, seed: int, requests: int, seconds: float) -> Outcome:
    good = request(GOOD, {**door.signed(), b"Connection": b"close"})
    assert door.ask(good).startswith(b"HTTP/1.1 200 ")
    before = door.peak()
    outcome = fuzz(door, seed, requests, seconds)
    assert wrong(door.recorder.seen, door) == []
    assert outcome.answers[b"200"] + 1 >= len(door.recorder.seen) - outcome.answers[b"silence"]
    assert (
        outcome.answers[b"404"] > outcome.requests / 4
        and outcome.answers[b"200"] > outcome.requests / 10
    )
    good = request(GOOD, {**door.signed(), b"Connection": b"close"})
    assert door.ask(good).startswith(b"HTTP/1.1 200 ")  # it still serves
    assert door.peak() - before < 40 * MIB
    return outcome


def test_ten_thousand_wrong_requests_do_not_open_the_door(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    with Door(tmp_path / "f", secured=False, mode="keys").open() as door:
        on_sockets = fuzzed(door, 1, 1_000, 120.0)
        in_memory, passed = asyncio.run(fuzzed_in_memory(door, 9_000, 160.0))
    assert passed.wrong == [] and in_memory.answers[b"200"] == passed.total > 900
    total = on_sockets.requests + in_memory.requests
    assert total >= 10_000
    record_property("figure", f"{total} of {total} requests")


def test_the_same_requests_open_a_door_with_a_rule_by_prefix(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="prefix").open() as unsafe:
        fuzz(unsafe, 1, 1_000, 60.0)
        assert [
            one.line
            for one in wrong(unsafe.recorder.seen, unsafe)
            if one.line.startswith("POST /v1/control/")
        ]


# a million in all; parts are sessions of their own, so that what was done counts if one is stopped
ON_SOCKETS, PARTS, PART = 50_000, 10, 95_000
HOUR = 3600.0


@pytest.mark.soak
@pytest.mark.timeout(HOUR)
def test_wrong_requests_on_many_connections_do_not_open_the_door(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="keys").open() as door:
        outcome = fuzzed(door, 2, ON_SOCKETS, HOUR)
        keep("on sockets", outcome, Passed(len(door.recorder.seen)))
    assert outcome.requests >= ON_SOCKETS


@pytest.mark.soak
@pytest.mark.timeout(HOUR)
@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_requests_in_memory_do_not_open_the_door(part: int, tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="keys").open() as door:
        outcome, passed = asyncio.run(fuzzed_in_memory(door, PART, HOUR, seed=10 + part))
    keep(f"in memory, part {part}", outcome, passed)
    assert passed.wrong == [] and outcome.answers[b"200"] == passed.total
    assert outcome.requests >= PART


@dataclass
class Passed:
    """What came through: how many requests, and those that should not have."""

    total: int = 0
    wrong: list[Seen] = field(default_factory=list)


async def fuzzed_in_memory(
    door: Door, requests: int, seconds: float, seed: int = 3
) -> tuple[Outcome, Passed]:
    passed = Passed()

    async def answer(request: httpx.Request) -> httpx.Response:
        line = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"
        passed.total += 1
        passed.wrong += wrong([Seen(line, dict(request.headers), await request.aread())], door)
        return httpx.Response(200, headers={"content-length": "4"}, content=good())

    async def good() -> AsyncIterator[bytes]:
        yield b"good"

    link = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://superlink")
    gateway = Gateway(Members(door.server).check, ROUTES, link, Limits())
    return await fuzz_in_memory(gateway, door, seed, requests, seconds), passed


def keep(name: str, outcome: Outcome, passed: Passed) -> None:
    """Note what came of a session, beside the others."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    known[name] = {
        "requests": outcome.requests,
        "answers": {status.decode(): n for status, n in sorted(outcome.answers.items())},
        "reached the SuperLink": passed.total,
        "not allowed": len(passed.wrong),
    }
    RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
