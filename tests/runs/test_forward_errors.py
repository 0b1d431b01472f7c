"""An error inside a net's forward pass is told with the net, the line and what it was given."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check.check import EXAMPLES as CHECKED
from fedblocks.runs.trials import EXAMPLES as TRIED

WORDS, STEPS, ROWS, OUTSIDE = 8, 4, 40, 99
ENGINES = ["sequential", "vectorised"] + ["processes"] * (sys.platform == "linux")
SAYS = r"the net Tagger failed: IndexError: .*\(test_forward_errors\.py, line \d+\); it was given "


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.embed(x).mean(1))
        return logits


class Divider(Tagger):
    """Divides by zero in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 / int(not self.training))


class AlwaysDivider(Tagger):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 // 0)


class LateDivider(Tagger):
    """Divides by zero where a word is outside the vocabulary."""

    def forward(self, x: Tensor) -> Tensor:
        known = x < WORDS
        return super().forward(x * known) * (1 / int(known.all()))


class Reader(Tagger):
    """No other test has it: nets that were checked once are not checked again."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(clients: int = 2, **outside: list[int]) -> fb.Federation:
    """Random words; `train=[1]` gives rows of that part of client 1 a word that is none, but for
    those that are looked at before the first round.
    """
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, WORDS, (ROWS * clients, STEPS)))
    data = fb.Federation.from_users(x, x[:, 0] % 2, np.arange(ROWS * clients) % clients)
    for part, own in outside.items():
        for client in own:
            rows = data.parts[part][client][TRIED if part == "train" else 0 :]
            data.x[torch.as_tensor(rows), 1] = OUTSIDE
    data.x[:CHECKED] %= WORDS
    return data


def method(module: Any = Tagger) -> fb.FedAvg:
    return fb.FedAvg(fb.Net.of(module), lr=0.1, batch_size=2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_word_outside_the_vocabulary_of_all_clients_ends_a_run_with_the_range(
    engine: Any, part: str
) -> None:
    with pytest.raises(fb.UserError, match=rf"{SAYS}whole numbers from \d to {OUTSIDE}") as error:
        fb.run(method(), words(**{part: [0, 1]}), rounds=1, engine=engine)
    assert "below the size of the embedding" in error.value.fix


@pytest.mark.parametrize("engine", [one for one in ENGINES if one != "vectorised"])
def test_a_client_with_such_a_word_is_absent_and_its_record_says_why(engine: Any) -> None:
    # its first steps repeat what was written down for client 0, where no net is called
    fb.run(method(), words(train=[1]), rounds=1, out="run", engine=engine)
    ((client, why),) = _refusals(Path("run"))
    assert client == 1 and re.match(rf"{SAYS}whole numbers from \d to {OUTSIDE}", why)


def _refusals(folder: Path) -> list[tuple[int, str]]:
    with sqlite3.connect(folder / "run.sqlite") as record:
        return record.execute("SELECT client, detail FROM refusals").fetchall()


@pytest.mark.parametrize("module", [Divider, AlwaysDivider, LateDivider])
def test_any_other_error_is_told_with_its_line(module: type[nn.Module]) -> None:
    line = r"division.* by zero \(test_forward_errors\.py, line \d+\)"
    with pytest.raises(fb.UserError, match=line):
        fb.run(method(module), words(train=[0, 1]), rounds=1, engine="sequential")


@pytest.mark.parametrize(("row", "module"), [(0, Tagger), (CHECKED - 1, Reader)])
def test_words_that_are_corrected_are_taken(row: int, module: type[nn.Module]) -> None:
    data = words()
    data.x[row, 0] = -3
    with pytest.raises(fb.UserError, match=r"whole numbers from -3 to \d") as error:
        fb.run(method(module), data, rounds=1)
    assert "below the size of the embedding" in error.value.fix
    data.x[row, 0] = 0
    fb.run(method(module), data, rounds=1)


@pytest.mark.parametrize("format", ["safetensors", "pt2", "onnx"])
def test_a_prediction_for_a_word_outside_the_vocabulary_is_refused_with_the_range(
    format: Any,
) -> None:
    own, data = method(), words()
    run = fb.run(own, data, rounds=1, out="run")
    model = fb.export_model("run", 0, format, f"m.{format}", own, data)
    np.savez("x.npz", x=np.full((3, STEPS), OUTSIDE))
    range_of = f"whole numbers from {OUTSIDE} to {OUTSIDE}"
    with pytest.raises(fb.UserError, match=range_of):
        fb.predict(model, "x.npz", own if format == "safetensors" else None, trust=True)
    with pytest.raises(fb.UserError, match=SAYS + range_of):
        fb.personal(run, 0, own, data).predict(np.full((3, STEPS), OUTSIDE))
