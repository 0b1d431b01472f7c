"""Check 22: a method trains numbers and several labels as it trains classes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.testing import learning, repeatability
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem

MISSING = 11  # one target in so many is not known
FALL = 0.95  # of the loss at the start: a mean over targets, which makes steps smaller
ROUNDS = 2  # the second begins with what the first has left
SECOND = 13  # one label in so many is there besides that of the class


def other_tasks(example: Example) -> list[LearningProblem]:
    """Engines agree, padding has no effect and training helps where targets are numbers, or
    several labels; for nets with one answer for each example.
    """
    if example.federation.y.dim() > 1 or not example.federation.task.of_classes:
        return []
    failures: list[LearningProblem] = []
    for name, federation in federations(example.federation).items():
        own = replace(example, federation=federation, rounds=ROUNDS)
        # the rounds of `padding` are done by both engines
        for find in (repeatability.padding, partial(learning.training_helps, fall=FALL)):
            failures += [LearningProblem(f"{name}: {text}", name) for text, _ in find(own)]
    return failures


def federations(classes: Federation) -> dict[str, Federation]:
    """The same clients and inputs with as many numbers, or labels, as there were classes."""
    chances = torch.nn.functional.one_hot(classes.y, classes.classes)  # [rows, classes]
    wave = torch.sin(torch.arange(chances.numel())).view(chances.shape)
    numbers = chances.to(classes.x.dtype) + 0.1 * wave.to(classes.x.dtype)
    places = torch.arange(numbers.numel()).view(numbers.shape)
    second = (places % SECOND == 0).to(classes.x.dtype)
    labels = torch.maximum(chances.to(classes.x.dtype), second)
    unknown = places % MISSING == 0
    return {
        "numbers": _with(classes, torch.where(unknown, torch.nan, numbers), Task("regression")),
        "labels": _with(
            classes,
            torch.where(unknown, torch.nan, labels),
            Task("multi-label", metrics=("f1_micro", "accuracy")),
        ),
    }


def _with(classes: Federation, y: torch.Tensor, task: Task) -> Federation:
    return replace(classes, y=y, task=task)
