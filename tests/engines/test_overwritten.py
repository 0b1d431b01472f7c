"""A module that writes to its own parameters in its forward pass changes what a client trains, and
nothing that it is lent: evaluations and blocks that rest leave the state as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check.passes import overwritten
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods import METHODS

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 6)).astype("float32"), RNG.integers(0, 3, 80)
DATA = fb.Federation.from_users(X, Y, np.repeat(np.arange(4), 20))


class Shrinking(nn.Module):
    """Both layers shrink whenever they are used, in evaluations, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.body, self.head):
            layer.weight.data.mul_(0.9)
        return self.head(torch.tanh(self.body(x)))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, max_norm=0.1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def test_the_tensors_that_a_pass_writes_to_are_found() -> None:
    net = fb.Net.of(Shrinking)
    start = net.init(0)
    assert overwritten(net, start, torch.from_numpy(X[:2])) == {"body.weight", "head.weight"}
    assert torch.equal(start["head.weight"], net.init(0)["head.weight"])
    words = fb.Net.of(Normed)
    assert overwritten(words, words.init(0), torch.zeros(2, 3).long()) == {"words.weight"}
    still = fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    assert overwritten(still, still.init(0), torch.from_numpy(X[:2])) == set()


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto"])
def test_how_often_a_run_is_evaluated_changes_nothing(name: str) -> None:
    ends = []
    for every in (1, 3):
        method = METHODS[name](fb.Net.of(Shrinking), lr=0.5, batch_size=7)
        run = fb.run(method, DATA, rounds=3, evaluation={"every": every}, engine="sequential")
        ends.append(run.state())
    for block, tensors in ends[0].server.items():
        for key, value in tensors.items():
            assert torch.equal(value, ends[1].server[block][key]), f"{block} {key}"


def experiment_of(method: fb.Method) -> Experiment:
    method.net.overwritten |= {"body.weight", "head.weight"}
    return Experiment.of(method, DATA)


def test_an_evaluation_leaves_the_state_as_it_is() -> None:
    experiment = experiment_of(fb.FedAvg(fb.Net.of(Shrinking), lr=0.1))
    state = experiment.start()
    before = {name: value.clone() for name, value in state.server["model"].items()}
    scores = [evaluate(experiment, state, [0, 1], Sequential()) for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(torch.equal(value, state.server["model"][name]) for name, value in before.items())


@dataclass(frozen=True, eq=False)
class Resting(fb.Method):
    """The head is shared and never trained."""

    def blocks(self) -> dict[str, fb.Block]:
        return {"body": fb.Shared(self.net.body), "head": fb.Shared(self.net.head)}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("body"),), self.epochs)]


def test_a_block_that_rests_is_not_written_to_by_a_step() -> None:
    experiment = experiment_of(Resting(fb.Net.of(Shrinking), lr=0.1))
    state = experiment.start()
    head = state.server["head"]["head.weight"].clone()
    after, _ = run_round(experiment, state, [0, 1, 2, 3], Sequential())
    assert torch.equal(head, state.server["head"]["head.weight"])
    assert torch.equal(head, after.server["head"]["head.weight"])
    assert not torch.equal(after.server["body"]["body.weight"], state.server["body"]["body.weight"])
