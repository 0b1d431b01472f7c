"""A method's function that changes a block in place, or a phase whose `begin` or `project` returns
what no step can use, is refused before the first round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb


@dataclass(frozen=True, eq=False)
class Halved(fb.Method):
    """A body for all, a head for each; functions of a subclass may halve blocks in place."""

    def blocks(self) -> dict[str, fb.Block]:
        return {"body": fb.Shared(self.net.body), "head": fb.Private(self.net.head)}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("head"),), self.epochs)]


def halve(block: fb.Params) -> None:
    with torch.no_grad():
        for value in block.values():
            value.mul_(0.5)


class InPrepare(Halved):
    def prepare(self, blocks: fb.Blocks, client: fb.Client) -> fb.Blocks:
        halve(blocks["head"])
        return blocks


class InFinish(Halved):
    def finish(self, blocks: fb.Blocks, start: fb.Blocks, client: fb.Client) -> fb.Blocks:
        halve(start["head"])
        return blocks


class InWrites(Halved):
    def writes(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        halve(blocks["head"])
        return {"body": client.size.reshape(1)}


class InPortrait(Halved):
    def portrait(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        halve(blocks["head"])
        return {}


class InPredict(Halved):
    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        halve(blocks["head"])
        return super().predict(blocks, x)


class InView(Halved):
    def other(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        halve(blocks["head"])
        return super().predict(blocks, x)

    def views(self) -> dict[str, Any]:
        return {"personal": self.predict, "other": self.other}


class InLoss(Halved):
    def loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        halve(blocks["body"])
        return super().loss(blocks, batch)


class InBegin(Halved):
    def begin(self, blocks: fb.Blocks) -> fb.Blocks:
        halve(blocks["head"])
        return blocks

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("head"),), self.epochs, begin=self.begin)]


WRITERS: dict[type[Halved], str] = {
    InPrepare: "InPrepare.prepare",
    InFinish: "InFinish.finish",
    InWrites: "InWrites.writes",
    InPortrait: "InPortrait.portrait",
    InPredict: "InPredict.predict",
    InView: 'InView.view "other"',
    InLoss: "InLoss.loss",
    InBegin: "`begin` of phase 1 of InBegin.phases",
}


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(method: type[Halved]) -> str:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    data = fb.Federation.from_users(x, (x[:, 0] > 0).astype(int), np.arange(80) % 4)
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    with pytest.raises(fb.UserError) as error:
        fb.run(method(net), data, rounds=1)
    return error.value.message.removeprefix("fedblocks.run: method: ")


@pytest.mark.parametrize("method", WRITERS)
def test_a_function_that_writes_into_a_block_that_it_is_given_is_refused(
    method: type[Halved],
) -> None:
    said = refusal(method)
    assert said.startswith(f"{WRITERS[method]} writes into ")
    assert f'of block "{"body" if method is InLoss else "head"}"' in said


def mapped(change: Callable[[Tensor], Tensor]) -> Callable[[fb.Blocks], fb.Blocks]:
    return lambda blocks: {
        name: {key: change(value) for key, value in block.items()} for name, block in blocks.items()
    }


# a function, and what is said of it
RETURNS: dict[str, tuple[Callable[[fb.Blocks], Any], str]] = {
    "nothing": (lambda blocks: None, "returns None, not a dictionary of blocks"),
    "too few": (lambda blocks: {}, 'leaves out block "head"'),
    "no tensors": (lambda blocks: {"head": {"2.bias": 0.0}}, "returns a float"),
    "flat": (
        mapped(torch.flatten),
        'returns block "head" with a "2.weight" of shape [8], not [2, 4]',
    ),
    "broadcast": (mapped(lambda v: v.mean(-1, keepdim=True)), "of shape [2, 1], not [2, 4]"),
    "random": (mapped(lambda v: v + torch.rand_like(v)), "gives another result for the same input"),
    "more": (lambda blocks: {**blocks, "heads": blocks["head"]}, 'returns a new block "heads"'),
}


@pytest.mark.parametrize("place", ["begin", "project"])
@pytest.mark.parametrize("returned", RETURNS)
def test_what_begin_and_project_return_is_looked_at(place: str, returned: str) -> None:
    function, said = RETURNS[returned]

    class Wrong(Halved):
        def phases(self) -> list[fb.Phase]:
            if place == "begin":
                return [fb.Phase((self.step("head"),), self.epochs, begin=function)]
            return [fb.Phase((self.step("head", project=function),), self.epochs)]

    message = refusal(Wrong)
    assert said in message
    where = (
        "a function in Wrong" if returned == "random" else f"`{place}` of phase 1 of Wrong.phases"
    )
    assert message.startswith(where)


def test_begin_that_changes_a_block_which_its_phase_does_not_train_is_refused() -> None:
    class Beside(Halved):
        def phases(self) -> list[fb.Phase]:
            zero = mapped(torch.zeros_like)
            return [fb.Phase((self.step("head"),), self.epochs, begin=zero)]

    assert 'returns a new block "body", which is not trained there' in refusal(Beside)


def test_a_block_that_finish_adds_is_refused() -> None:
    class Adds(Halved):
        def finish(self, blocks: fb.Blocks, start: fb.Blocks, client: fb.Client) -> fb.Blocks:
            return {**blocks, "old": start["head"]}

    assert refusal(Adds) == 'Adds.finish returns block "old", which the method does not have'


def test_a_prediction_relative_to_the_first_row_is_refused() -> None:
    class Relative(Halved):
        def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
            logits = super().predict(blocks, x)
            return logits - logits[:1]

    assert "of an example is another when others are beside it" in refusal(Relative)
