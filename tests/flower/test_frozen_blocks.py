"""Frozen blocks never travel: clients have them on their own disks, and say so by their hash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedblocks as fb
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask
from fedblocks.flower.wire.messages import Wire
from fedblocks.testing.compare import differences, report_leaves, state_leaves
from fedblocks.testing.rounds import run

from .federations import everybody, leaves, played

COHORTS = [[0, 1, 2], [1, 3, 5]]


@dataclass(frozen=True, eq=False)
class PrivateHead(fb.Method):
    """A body that nobody trains, a shared middle, a head of one's own."""

    def blocks(self):
        first, middle, last = (self.net.layers[path] for path in ("0", "2", "4"))
        return {"body": fb.Frozen(first), "middle": fb.Shared(middle), "head": fb.Private(last)}

    def predict(self, blocks, x):
        return self.net(fb.join(*(blocks[name] for name in ("body", "middle", "head"))), x)

    def phases(self):
        return [fb.Phase((self.step("middle", "head"),), self.epochs)]


def experiment(seed: int = 0) -> Experiment:
    layers = (nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))
    net = fb.Net.of(nn.Sequential(*layers), dtype=torch.float64)
    return Experiment.of(PrivateHead(net, batch_size=4), fb.small_federation(), seed)


def test_messages_give_what_the_sequential_engine_gives(tmp_path: Path) -> None:
    simulated = run(experiment(), Sequential(), COHORTS, score="test")
    server, sides = everybody(experiment(), tmp_path)
    progress, reports = played(server, sides, COHORTS, Ask(score="test"))
    assert differences(leaves(sides, progress), state_leaves(simulated.last), 1e-6) == []
    for ours, theirs in zip(reports, simulated.reports, strict=True):
        assert differences(report_leaves(ours), report_leaves(theirs)) == []
        assert set(ours.bytes_down) == {"middle"}


def test_a_frozen_block_is_in_no_message(tmp_path: Path) -> None:
    server, sides = everybody(experiment(), tmp_path)
    seen = []

    answer = answers_of(sides)

    def heard(client, message):
        replies = answer(client, message)
        seen.extend([message, replies])
        return replies

    open_round = OpenRound(server, server.start(), [0, 1, 2], Ask())
    exchange(open_round, heard)
    assert open_round.close(minimum=3).abandoned == ""
    names = {name for message in seen for name in message.arrays}
    assert len(seen) == 6
    assert names and all("middle" in name for name in names)


def test_a_client_with_another_frozen_block_is_told_which(tmp_path: Path) -> None:
    server, sides = everybody(experiment(), tmp_path)
    stranger = sides[1]
    sides[1] = replace(stranger, experiment=replace(stranger.experiment, seed=9))
    open_round = OpenRound(server, server.start(), [0, 1, 2], Ask())
    exchange(open_round, answers_of(sides))
    refusals = {r.client: r for r in open_round.close(minimum=2).report.refusals}
    assert refusals.keys() == {1}
    assert refusals[1].reason == "frozen-mismatch"
    assert 'the frozen block "body" has the hash' in refusals[1].detail


def test_the_score_of_a_model_that_is_refused_is_not_on_record(tmp_path: Path) -> None:
    server, sides = everybody(experiment(), tmp_path)
    answer = answers_of(sides)

    def spoiled(client: int, message: Wire) -> Wire:
        reply = answer(client, message)
        if client == 1:
            for name in [name for name in reply.arrays if name.startswith("blocks/")]:
                reply.arrays[name] = np.full_like(reply.arrays[name], np.nan)
        return reply

    open_round = OpenRound(server, server.start(), [0, 1, 2], Ask(score="test"))
    exchange(open_round, spoiled)
    report = open_round.close(minimum=2).report
    assert [(refusal.client, refusal.reason) for refusal in report.refusals] == [(1, "not-finite")]
    assert report.counts["local"].keys() == {0, 2}
