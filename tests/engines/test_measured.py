"""Metrics that need outputs: every client by itself, whatever stands beside it in stacks, chunks
and padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.losses import IGNORE
from fedblocks.core.metrics import Metric
from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines import scoring
from fedblocks.engines.round import Engine, Experiment, evaluate
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS

WORDS, STEPS = 6, 3
SIZES = (7, 0, 2, 5)  # rows to be tried on: chunks of four, one client without any
MARKS = {"oov": [4, 6], "eos": 1}
ENGINES = [Sequential(), Vectorised(chunk=3)]
METRIC_NAMES = ["perplexity", "f1_macro", "accuracy"]


def federation(task: Task, y: Tensor, x: Tensor, about: Mapping[str, Any]) -> Federation:
    ends = np.cumsum(SIZES)
    test = Rows.of([np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)])
    train = Rows.of([np.array([int(end) - 1]) for end in ends])
    none = Rows.of([np.zeros(0, dtype=np.int64)] * len(SIZES))
    return Federation(x, y, train, none, test, WORDS, task=task, about=dict(about))


def texts(task: Task, about: Mapping[str, Any]) -> Federation:
    draw = torch.Generator().manual_seed(3)
    x = torch.randint(0, WORDS, (sum(SIZES), STEPS), generator=draw)
    y = torch.randint(0, WORDS, (sum(SIZES), STEPS), generator=draw)
    y[:, 2] = torch.where(torch.arange(len(y)) % 3 == 0, IGNORE, y[:, 2])
    return federation(task, y, x, about)


def outputs_and_scores(data: Federation, engine: Engine) -> tuple[Any, dict[str, Any]]:
    """What the net that all clients have says of each client's rows, and how they are scored."""
    net = Net.of(lambda: nn.Embedding(WORDS, WORDS), dtype=torch.float64)
    experiment = Experiment.of(METHODS["fedavg"](net), data)
    state = experiment.start()
    model = {name: value[0] for name, value in state.server["model"].items()}
    outputs = [net(model, data.x[torch.as_tensor(rows)]) for rows in data.test]
    return outputs, evaluate(experiment, state, range(len(SIZES)), engine)


def expected(task: Task, outputs: Tensor, y: Tensor) -> tuple[float, ...]:
    """Right labels, scored labels, sum of losses, and each metric of the scored labels alone."""
    known = y != IGNORE
    logits, labels = outputs[known], y[known]
    losses = nn.functional.cross_entropy(logits, labels, reduction="sum")
    counts = ((logits.argmax(-1) == labels).sum(), known.sum(), losses)
    if not len(labels):
        return (*map(float, counts), *[math.nan] * len(task.measured))
    values = [metric.value(metric.memory(logits, labels), labels) for metric in task.measured]
    return (*map(float, counts), *values)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("about", [{}, {"vocabulary": MARKS}], ids=["labels", "words"])
def test_every_client_is_measured_by_itself_in_every_way_to_count(
    engine: Engine, about: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All labels; without words 4 and 5, which are out of the vocabulary; and without 1, an end."""
    monkeypatch.setattr(scoring, "CHUNK", 4)
    task = Task("sequence-labelling", metrics=METRIC_NAMES)
    data = texts(task, about)
    outputs, scores = outputs_and_scores(data, engine)
    ways = {"": [], "_without_oov": [4, 5], "_without_oov_and_eos": [4, 5, 1]}
    for way, missing in ways.items() if about else [("", [])]:
        for client, rows in enumerate(data.test):
            y = data.y[torch.as_tensor(rows)]
            y = torch.where(torch.isin(y, torch.tensor([99, *missing])), IGNORE, y)
            wanted = expected(task, outputs[client], y)
            assert len(wanted) == 5
            said = scores[f"personal{way}"][client]
            assert said == pytest.approx(wanted, nan_ok=True), (way, client)
    assert {view for view in scores if view.startswith("personal")} == {
        f"personal{way}" for way in (ways if about else [""])
    }


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_error_of_a_metric_names_the_client_whose_examples_it_was_given(engine: Engine) -> None:
    def of(outputs: Tensor, y: Tensor) -> float:
        if len(y) == 5:
            raise UserError("five are too many", "take four")
        return float(len(y))

    task = Task("classification", metrics=[Metric("count", of)])
    data = replace(texts(task, {}), y=torch.arange(sum(SIZES)) % WORDS)
    data = replace(data, x=data.x[:, 0])
    with pytest.raises(UserError, match="for client 3") as error:
        outputs_and_scores(data, engine)
    assert "five are too many" in error.value.message
