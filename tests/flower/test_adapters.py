"""Adapters on a network: messages hold factors and heads that are shared, and never the base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.compare import differences, report_leaves, state_leaves
from fedblocks.testing.rounds import run

from .federations import everybody, leaves, played

FULL = 24 * 8 * (256 + 256) * 4  # layers x rank x (in + out) x bytes of a number


@pytest.mark.parametrize("name", ADAPTERS)
def test_messages_give_what_the_sequential_engine_gives(name: str, tmp_path: Path) -> None:
    example = ADAPTERS[name]()
    simulated = run(example.experiment(), Sequential(), example.cohorts(), score="test")
    server, sides = everybody(example.experiment(), tmp_path)
    progress, reports = played(server, sides, example.cohorts(), Ask(score="test"))
    assert differences(leaves(sides, progress), state_leaves(simulated.last), 1e-6) == []
    for ours, theirs in zip(reports, simulated.reports, strict=True):
        assert differences(report_leaves(ours), report_leaves(theirs)) == []


class Wide(nn.Module):
    """24 layers of 256 to 256."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (0, 250))
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x[:, :4]


@pytest.mark.parametrize(
    ("kind", "size"), [(fb.FedAvgLoRA, FULL), (fb.FFALoRA, FULL // 2), (fb.FedSALoRA, FULL // 2)]
)
def test_the_arrays_of_two_clients_are_the_ledgers(kind, size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = fb.small_federation(sizes=(4, 3), dtype=torch.float32)
    experiment = Experiment.of(kind(fb.lora(Wide(), rank=8), batch_size=10), data)
    server, sides = everybody(experiment, tmp_path)
    answer, down, up = answers_of(sides), [], []

    def count(client, message):
        reply = answer(client, message)
        down.append(sum(array.nbytes for array in message.arrays.values()))
        up.append(sum(array.nbytes for array in reply.arrays.values()))
        return reply

    open_round = OpenRound(server, server.start(), [0, 1], Ask())
    exchange(open_round, count)
    closed = open_round.close(minimum=2)
    assert closed.abandoned == "" and closed.report.refusals == []
    assert down == [size, size]
    weights = 8 * len(server.specs["all"])  # a double for each block
    assert up == [size + weights, size + weights]
    assert sum(v.nbytes for v in experiment.methods["all"].net.base.values()) > 6_000_000


def test_a_client_with_another_base_is_told_so(tmp_path: Path) -> None:
    def side(seed: int) -> Experiment:
        torch.manual_seed(seed)
        data = fb.small_federation(sizes=(4, 3), dtype=torch.float32)
        return Experiment.of(fb.FedSALoRA(fb.lora(Wide(), rank=2), batch_size=10), data)

    server, sides = everybody(side(0), tmp_path)
    _, strangers = everybody(side(1), tmp_path / "others")
    open_round = OpenRound(server, server.start(), [0, 1], Ask())
    exchange(open_round, answers_of({0: sides[0], 1: strangers[1]}))
    (refusal,) = open_round.close(minimum=1).report.refusals
    assert (refusal.client, refusal.reason) == (1, "frozen-mismatch")
    assert 'the frozen block "base" has the hash' in refusal.detail


def test_a_client_with_another_scale_is_told_so(tmp_path: Path) -> None:
    def side(alpha: float) -> Experiment:
        torch.manual_seed(0)
        data = fb.small_federation(sizes=(4, 3), dtype=torch.float32)
        net = fb.lora(Wide(), rank=2, alpha=alpha)
        return Experiment.of(fb.FedSALoRA(net, batch_size=10), data)

    server, sides = everybody(side(4.0), tmp_path)
    _, strangers = everybody(side(6.0), tmp_path / "others")
    open_round = OpenRound(server, server.start(), [0, 1], Ask())
    exchange(open_round, answers_of({0: sides[0], 1: strangers[1]}))
    (refusal,) = open_round.close(minimum=1).report.refusals
    assert (refusal.client, refusal.reason) == (1, "frozen-mismatch")
    assert "the adapters have scale 3.0 here and scale 2.0 on the server" in refusal.detail
