"""A method that trains nothing of a block, by mistake, runs with a warning that names the block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs import idle_blocks
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS
from tests.runs.tempered import Tempered


class Endless(Tempered):
    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model", "temperature"),), 0)]


class Undone(Tempered):
    def finish(self, blocks: fb.Blocks, start: fb.Blocks, client: fb.Client) -> fb.Blocks:
        return start


class Unnamed(Tempered):
    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model"),), self.epochs)]


class UnnamedModel(Tempered):
    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("temperature", loss=self.own_loss),), self.epochs)]


class Weightless(Tempered):
    def writes(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        return {"model": torch.zeros(1)}


class Cut(nn.Module):
    """Its body is given no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)).detach())


def warnings_of(method: fb.Method, out: Path, rounds: int = 3) -> list[str]:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    data = fb.Federation.from_users(x, (x[:, 0] > 0).astype(int), np.arange(80) % 4)
    result = fb.run(method, data, rounds=rounds, out=out)
    return [note["text"] for note in result.notes if "at the start" in note["text"]]


def net() -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


BOTH = ("model", "temperature")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "blocks", "why"),
    [
        (Tempered, (), ""),
        (Endless, BOTH, "its phases have no steps (epochs = 0)"),
        (Undone, BOTH, "a finish that undoes it"),
        (Unnamed, ("temperature",), "no phase trains it"),
        (UnnamedModel, ("model",), "no phase trains it"),
        (Weightless, ("model",), "a writes that gives no weight to the slots that are trained"),
    ],
)
def test_each_block_that_stays_as_it_was_is_named_once_with_a_reason(
    kind: type[fb.Method], blocks: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    texts = warnings_of(kind(net(), batch_size=8), tmp_path / "run")
    names = [f'{kind.__name__}: block "{block}" is after 2 rounds as it was' for block in blocks]
    assert len(texts) == len(names)
    assert all(text.startswith(n) and why in text for text, n in zip(texts, names, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_a_body_without_a_gradient_is_named_under_a_method_of_the_library(tmp_path: Path) -> None:
    method = fb.FedPer(fb.Net.of(Cut, head="head"), batch_size=8)
    (text,) = warnings_of(method, tmp_path / "run")
    assert text.startswith('FedPer: block "body"') and "detach()" in text


@pytest.mark.parametrize("name", [*EXAMPLES, *ADAPTERS])
def test_no_method_of_the_library_has_an_idle_block(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_blocks, "is_own", lambda method: True)
    example = (EXAMPLES | ADAPTERS)[name]()
    experiment, everybody = example.experiment(), list(example.everybody)
    state, report = experiment.start(), Report([], {}, {}, [], {})
    for _ in range(2):
        state, report = run_round(experiment, state, everybody, Vectorised())
    assert idle_blocks.notes_of_idle_blocks(experiment, state, report) == []


@pytest.mark.filterwarnings("ignore")
def test_one_step_a_round_of_everybody_is_enough_to_name_a_block(tmp_path: Path) -> None:
    (text,) = warnings_of(fb.FedPer(fb.Net.of(Cut, head="head"), batch_size=64), tmp_path / "run")
    assert text.startswith('FedPer: block "body"')


@pytest.mark.parametrize("name", [*EXAMPLES, *ADAPTERS])
def test_no_method_of_the_library_has_an_idle_block_after_two_steps(name: str) -> None:
    """From B = 0 the first of them leaves A as it is, and the second does not."""
    example = (EXAMPLES | ADAPTERS)[name]()
    experiment, everybody = example.experiment(batch_size=64, epochs=1), list(example.everybody)
    state, report = experiment.start(), Report([], {}, {}, [], {})
    for _ in range(2):
        state, report = run_round(experiment, state, everybody, Vectorised())
    assert idle_blocks.notes_of_idle_blocks(experiment, state, report) == []


def test_factors_of_clients_that_took_one_step_each_are_not_named() -> None:
    example = ADAPTERS["fedsa_lora"]()
    experiment = example.experiment(batch_size=64, epochs=1)
    state, report = experiment.start(), Report([], {}, {}, [], {})
    for clients in ([0, 1], [2, 3]):
        state, report = run_round(experiment, state, clients, Vectorised())
    assert torch.equal(
        state.server["lora.A"]["0.lora_A"], experiment.start().server["lora.A"]["0.lora_A"]
    )
    assert idle_blocks.notes_of_idle_blocks(experiment, state, report) == []
