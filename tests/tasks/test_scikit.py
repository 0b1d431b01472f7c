"""Metrics of any outputs and targets are scikit-learn's, to 1e-9: ties, classes that are absent,
clients with one class, one example, labels that are not scored.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedblocks import IGNORE, Task
from fedblocks.core.task_kinds import KINDS
from fedblocks.engines.scoring import score_outputs

from .scikit import of_classes, of_labels, of_numbers

CLASSES = ("classification", "sequence-labelling", "next-token")
# few values, so that scores tie; some so large that shares are almost 0 and 1
LOGITS = st.sampled_from([-15.0, -2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0, 15.0])
NUMBERS = st.floats(-100, 100, width=32)
Outputs = tuple[Tensor, Tensor]


def metrics_of(kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*KINDS[kind].metrics, *KINDS[kind].other_metrics)))


@st.composite
def classes(draw: st.DrawFn) -> Outputs:
    """Outputs [examples, steps, classes], or without steps, and labels, some of them IGNORE."""
    many = draw(st.integers(2, 5))
    shape = draw(st.sampled_from([(7,), (1,), (3, 4), (12, 2)]))
    count = math.prod(shape)
    logits = draw(st.lists(LOGITS, min_size=count * many, max_size=count * many))
    top = draw(st.integers(0, many - 1))  # the classes above are absent; 0: one class alone
    label = st.one_of(st.just(IGNORE), st.integers(0, top))
    y = torch.tensor(draw(st.lists(label, min_size=count, max_size=count)))
    y[0] = max(int(y[0]), 0)  # something is scored
    return torch.tensor(logits).view(*shape, many), y.view(shape)


@st.composite
def labels(draw: st.DrawFn) -> Outputs:
    """Outputs and labels [examples, labels]."""
    rows, many = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    logits = draw(st.lists(LOGITS, min_size=rows * many, max_size=rows * many))
    there = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=rows * many, max_size=rows * many))
    return torch.tensor(logits).view(rows, many), torch.tensor(there).view(rows, many)


@st.composite
def numbers(draw: st.DrawFn) -> Outputs:
    """Outputs and numbers [examples, outputs]."""
    rows, many = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    values = st.lists(NUMBERS, min_size=rows * many, max_size=rows * many)
    outputs, y = (torch.tensor(draw(values)).view(rows, many) for _ in range(2))
    return outputs, torch.where(torch.tensor(draw(st.booleans())), outputs.round(), y)


def ours(kind: str, outputs: Tensor, y: Tensor) -> dict[str, float]:
    task = Task(kind, metrics=metrics_of(kind))
    return task.values(score_outputs(task, outputs, y))


@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=60, deadline=None)
@given(drawn=classes())
def test_metrics_of_classes_are_those_of_scikit_learn(kind: str, drawn: Outputs) -> None:
    outputs, y = drawn
    for name, value in ours(kind, outputs, y).items():
        wanted = of_classes(name, outputs.flatten(0, -2), y.flatten())
        assert value == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), name


@settings(max_examples=80, deadline=None)
@given(drawn=labels())
def test_metrics_of_several_labels_are_those_of_scikit_learn(drawn: Outputs) -> None:
    for name, value in ours("multi-label", *drawn).items():
        assert value == pytest.approx(of_labels(name, *drawn), abs=1e-9, nan_ok=True), name


@settings(max_examples=80, deadline=None)
@given(drawn=numbers())
def test_metrics_of_numbers_are_those_of_scikit_learn(drawn: Outputs) -> None:
    for name, value in ours("regression", *drawn).items():
        wanted = of_numbers(name, *drawn)
        assert value == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), name


@settings(max_examples=50, deadline=None)
@given(drawn=numbers(), seed=st.integers(0, 1000))
def test_targets_that_are_not_known_are_left_out_of_each_output(drawn: Outputs, seed: int) -> None:
    """Each output by itself, over its known targets, and then the mean over outputs."""
    outputs, y = drawn
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    y = torch.where(hidden, torch.nan, y)
    for name, value in ours("regression", outputs, y).items():
        least = 2 if name == "r2" else 1
        each = [
            of_numbers(name, outputs[~own, column, None], y[~own, column, None])
            for column, own in enumerate(hidden.unbind(1))
            if int((~own).sum()) >= least
        ]
        wanted = sum(each) / len(each) if each else math.nan
        assert value == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), name
