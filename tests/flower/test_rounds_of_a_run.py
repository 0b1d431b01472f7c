"""The rounds of a run: who is waited for, which attempt it is, and when it is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.flower.server import app
from fedblocks.flower.server.app import Link, RoundRules, run_rounds


class Registry:
    """Stands in for the registry: what was asked of it, in order."""

    def __init__(self, here: list[int]) -> None:
        self.grid, self.spec, self.nodes = None, "a spec", dict.fromkeys(here, 7)
        self.done: list[Any] = []

    def look(self) -> None:
        self.done.append("look")

    def wait(self, *what: Any) -> None:
        self.done.append(what)

    def fix_claims(self, clients: Any) -> None:
        self.done.append(("fixed", clients))

    def revoked(self, clients: Any) -> list[int]:
        return []


def progress(done: int) -> Any:
    return SimpleNamespace(state=SimpleNamespace(round=done))


def closed(done: int, abandoned: str = "") -> Any:
    refusals = [Refusal(c, "shape", "odd") for c in range(4)]
    report = SimpleNamespace(refusals=refusals)
    return SimpleNamespace(progress=progress(done), abandoned=abandoned, report=report)


def go(
    ends: list[Any], rules: RoundRules, here: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Registry, list[Any], list[Any]]:
    registry, chosen, played = Registry(here), list[Any](), list[Any]()
    monkeypatch.setattr(app, "OpenRound", lambda *what: what)
    left = iter(ends)

    def play(link: Link, open_round: Any, *more: Any) -> Any:
        assert link.spec == "a spec" and link.nodes is registry.nodes
        played.append((open_round[1].state.round, *open_round[2:], *more))
        return next(left)

    monkeypatch.setattr(app, "play_round", play)

    def choose(before: Any, attempt: int) -> Any:
        chosen.append((before.state.round, attempt))
        return [0, 1, 2], "ask"

    told: list[Any] = []
    anything: Any = registry
    side: Any = "side"
    try:
        last: Any = run_rounds(anything, side, rules, choose, progress(0), told.append)
    except UserError as error:
        last = error
    assert told == ends[: len(told)] and len(told) == len(played)
    return last, registry, chosen, played


def test_rounds_are_played_until_all_are_done_and_each_begins_with_its_first_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = [closed(0, "few"), closed(1), closed(1, "few"), closed(1, "few"), closed(2)]
    rules = RoundRules(rounds=2, minimum=2, seconds=9.0, goal=3, patience=4.0)
    last, registry, chosen, played = go(ends, rules, [0, 1, 5], monkeypatch)
    assert last is ends[-1].progress
    assert chosen == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert played == [(done, [0, 1, 2], "ask", 2, 9.0, 3) for done, _ in chosen]
    # two of those asked are there, and two are needed
    assert registry.done == ["look", ("fixed", [0, 1, 2])] * 5


@pytest.mark.parametrize(
    ("minimum", "here", "least"), [(2, [0, 5, 6], 2), (9, [0, 1], 3), (9, [0, 1, 2], None)]
)
def test_as_many_are_waited_for_as_are_needed_and_asked(
    minimum: int, here: list[int], least: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RoundRules(rounds=1, minimum=minimum, seconds=9.0, patience=4.0)
    _, registry, _, _ = go([closed(1)], rules, here, monkeypatch)
    waited = [] if least is None else [([0, 1, 2], least, 4.0)]
    assert registry.done == ["look", *waited, ("fixed", [0, 1, 2])]


@pytest.mark.parametrize(("attempts", "often"), [(1, "1 time"), (2, "2 times")])
def test_a_run_is_given_up_after_so_many_attempts_with_three_reasons(
    attempts: int, often: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RoundRules(rounds=9, minimum=2, seconds=9.0, attempts=attempts)
    ends = [closed(4, "too few")] * attempts
    error, _, _, _ = go(ends, rules, [0, 1], monkeypatch)
    reasons = "; ".join(f"client {c}: shape, odd" for c in range(3))
    assert isinstance(error, UserError)
    assert error.message == f"round 5 was abandoned {often}: too few ({reasons})"
    assert error.fix.startswith("see why clients were refused, or lower the minimum")


def test_a_round_has_three_attempts_and_a_minute_for_clients_unless_the_job_says_else() -> None:
    rules = RoundRules(rounds=1, minimum=1, seconds=1.0)
    assert (rules.goal, rules.attempts, rules.patience) == (None, 3, 60.0)
