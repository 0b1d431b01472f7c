"""Federations whose rounds are played by messages, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Experiment
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.local import answers_of, exchange, sides_of
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask, Progress, ServerSide
from fedblocks.testing.compare import Leaves, state_leaves

RUN = "run-1"


def played(
    server: ServerSide,
    sides: dict[int, ClientSide],
    cohorts: Sequence[Sequence[int]],
    ask: Ask | None = None,
) -> tuple[Progress, list[Report]]:
    """Some rounds, every message through encode and decode."""
    progress, reports = server.start(), []
    for clients in cohorts:
        open_round = OpenRound(server, progress, clients, ask)
        exchange(open_round, answers_of(sides))
        closed = open_round.close(minimum=len(clients))
        assert closed.abandoned == "", closed.report.refusals
        assert closed.ignored == []
        progress = closed.progress
        reports.append(closed.report)
    return progress, reports


def everybody(experiment: Experiment, folder: Path) -> tuple[ServerSide, dict[int, ClientSide]]:
    return sides_of(experiment, range(experiment.data.clients), RUN, folder)


def personal(sides: dict[int, ClientSide], progress: Progress) -> Leaves:
    """What clients keep on their disks, as a state would show it."""
    leaves: Leaves = {}
    for client, rounds in progress.kept.items():
        side = sides[client]
        blocks = side.store.load(rounds, side.plan) if side.method.stateful else {}
        leaves |= {
            f'client {client} block "{b}", tensor "{k}"': v
            for b, p in blocks.items()
            for k, v in p.items()
        }
    return leaves


def leaves(sides: dict[int, ClientSide], progress: Progress) -> Leaves:
    return {**state_leaves(progress.state), **personal(sides, progress)}
