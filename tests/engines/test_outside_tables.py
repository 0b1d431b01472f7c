"""A token outside its embedding fails for its client, on every engine, and reads nobody else's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines import whole_numbers
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.layers import embedding

WORDS, STEPS, ROWS, CLIENTS, BAD = 6, 4, 12, 3, 1


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, 4))
        self.out = nn.Linear(4, 2)

    def rows(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.table)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rows(x).sum(1))
        return logits


class LowTable(Table):
    def rows(self, x: Tensor) -> Tensor:
        return torch.embedding(self.table, x)


class OneHot(Table):
    def rows(self, x: Tensor) -> Tensor:
        return F.one_hot(x, WORDS).float() @ self.table


class OwnEmbedding(nn.Embedding):
    """A class of somebody's own."""


def embeds(layer: type[nn.Embedding], **settings: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(layer(WORDS, 4, **settings), nn.Flatten(), nn.Linear(STEPS * 4, 2))


NETS: dict[str, Callable[[], nn.Module]] = {
    "embedding": embeds(nn.Embedding),
    "padding": embeds(nn.Embedding, padding_idx=0),
    "own-class": embeds(OwnEmbedding),
    "functional": Table,
    "torch.embedding": LowTable,
    "one-hot": OneHot,
}


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(part: str = "train", word: int = WORDS, turn: int = 0) -> fb.Federation:
    """One client has a word in a part of its data that is none; `turn` changes the labels of the
    client behind it.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (CLIENTS * ROWS, STEPS))
    users = np.repeat(np.arange(CLIENTS), ROWS)
    y = np.where(users == BAD + 1, (x[:, 0] + turn) % 2, x[:, 0] % 2)
    data = fb.Federation.from_users(x, y, users, split=(0.5, 0.25, 0.25))
    data.x[torch.as_tensor(data.parts[part][BAD][-1:]), 1] = word
    return data


def result(net: Callable[[], nn.Module], data: fb.Federation, engine: str) -> fb.RunResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = fb.Local(fb.Net.of(net), lr=0.3, epochs=2)
        return fb.run(method, data, rounds=1, engine=engine)


@pytest.mark.parametrize("word", [WORDS, -1])
@pytest.mark.parametrize("net", NETS)
def test_a_token_outside_its_table_ends_alike_on_both_engines(net: str, word: int) -> None:
    ends = {
        engine: result(NETS[net], words(word=word), engine)
        for engine in ("sequential", "vectorised")
    }
    for end in ends.values():
        assert end.refused().clients == (BAD,)
        assert f"whole numbers from {min(word, 0)} to" in end.refused().reason
    one, other = ends.values()
    assert one.refused() == other.refused()
    assert one.accuracies() == other.accuracies()


@dataclass(frozen=True, eq=False)
class Biased(fb.Method):
    """A net for all, and each client's own bias of a word, which no net reads."""

    def blocks(self) -> dict[str, fb.Block]:
        bias = fb.Private(fb.Value(torch.zeros(WORDS - 1, 2)))
        return {"model": fb.Shared(self.net.whole), "bias": bias}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x) + F.embedding(x, blocks["bias"]["value"]).mean(1)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model", "bias"),), self.epochs)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_table_of_an_own_method_is_not_read_past_its_end(engine: str) -> None:
    data = words(word=WORDS - 1)  # a word of the net, and none of the method's table
    others = data.x != WORDS - 1
    others[torch.as_tensor(data.train[BAD][-1:]), 1] = True
    data.x.copy_(torch.where(others, data.x, 0))
    end = fb.run(Biased(fb.Net.of(NETS["embedding"])), data, rounds=1, engine=engine)
    assert end.refused().clients == (BAD,)
    assert "index out of range" in end.refused().reason


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_token_outside_its_table_in_another_part_is_told_alike(part: str) -> None:
    ends = [result(NETS["embedding"], words(part), name) for name in ("sequential", "vectorised")]
    assert [end.refused().unscored for end in ends] == [(BAD,), (BAD,)]
    assert [end.refused().updates for end in ends] == [0, 0]


def one_round(data: fb.Federation) -> tuple[Any, Any, Any]:
    """State, report and scores of a round of a stack."""
    experiment = Experiment.of(fb.Local(fb.Net.of(NETS["functional"]), lr=0.3), data)
    state, report = run_round(experiment, experiment.start(), range(CLIENTS), Vectorised())
    return state, report, evaluate(experiment, state, range(CLIENTS), Vectorised())


@pytest.fixture()
def without_raising(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where nothing can be raised."""
    monkeypatch.setattr(embedding, "_can_raise", lambda _: False)
    monkeypatch.setattr(whole_numbers, "_cannot_raise", lambda _: True)


@pytest.mark.usefixtures("without_raising")
def test_where_nothing_can_be_raised_only_that_client_is_refused_and_told_why() -> None:
    state, report, _ = one_round(words())
    assert [one.client for one in report.refusals] == [BAD]
    assert "whole numbers from 0 to 6, and a number outside" in report.refusals[0].detail
    assert sorted(state.private) == [0, 2]
    good, _, _ = one_round(words(word=0))
    for client in (0, 2):
        ends = [one.private[client]["model"]["table"] for one in (state, good)]
        assert torch.equal(*ends)


@pytest.mark.usefixtures("without_raising")
def test_where_nothing_can_be_raised_the_score_of_that_client_alone_is_no_number() -> None:
    _, report, scores = one_round(words("test"))
    assert report.refusals == []
    losses = {client: own[2] for client, own in scores["personal"].items()}
    assert [client for client, loss in losses.items() if np.isnan(loss)] == [BAD]
