"""The kinds of targets, with the losses and metrics that are usual for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskKind:
    """A kind of target, with the losses and metrics that are usual for it."""

    says: str
    of_classes: bool  # targets are numbers of classes; else one number for each output
    losses: tuple[str, ...]  # the first is the default
    metrics: tuple[str, ...]  # the defaults, the main one first
    other_metrics: tuple[str, ...]
    steps: bool | None = None  # whether an example has a label for each step; None: as it likes


_OF_CLASSES = ("f1_macro", "f1_micro", "auroc", "average_precision", "calibration_error")
_ENTROPY = ("cross_entropy",)
KINDS = {
    "classification": TaskKind(
        "one class for each example", True, _ENTROPY, ("accuracy",), (*_OF_CLASSES, "perplexity")
    ),
    "sequence-labelling": TaskKind(
        "a class for each step of an example",
        True,
        _ENTROPY,
        ("accuracy", "f1_macro"),
        (*_OF_CLASSES, "perplexity"),
        steps=True,
    ),
    "next-token": TaskKind(
        "the token that follows each step",
        True,
        _ENTROPY,
        ("perplexity", "accuracy"),
        _OF_CLASSES,
        steps=True,
    ),
    "multi-label": TaskKind(
        "several labels for each example, each there or not",
        False,
        ("binary_cross_entropy",),
        ("f1_micro", "f1_macro", "average_precision"),
        ("accuracy", "auroc", "calibration_error"),
    ),
    "regression": TaskKind(
        "one or more numbers for each example",
        False,
        ("squared", "absolute", "huber"),
        ("mae", "rmse", "r2"),
        (),
    ),
}
