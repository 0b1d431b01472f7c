"""Every metric once more, by scikit-learn; calibration by a few lines of numpy, which scikit-learn
has not. Outputs are a net's: logits of classes or labels, or numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
BINS = 15


def metrics() -> Any:
    """Those of scikit-learn, imported when they are needed: every worker reads all files of tests,
    and this takes as long as reading a hundred of them.
    """
    return import_module("sklearn.metrics")


def of_classes(name: str, outputs: Tensor, y: Tensor) -> float:
    """Of outputs [labels, classes] and labels [labels], of which IGNORE is left out."""
    scored = y != -100
    logits, labels = outputs[scored].double(), y[scored].numpy()
    shares = torch.softmax(logits, -1).numpy()
    chosen = logits.argmax(-1).numpy()
    classes = np.arange(logits.shape[-1])
    if name in ("auroc", "average_precision"):
        each = list(classes[1:] if len(classes) == 2 else classes)
        return _area(name, [shares[:, c] for c in each], [labels == c for c in each])
    if name == "perplexity":
        return float(np.exp(metrics().log_loss(labels, shares, labels=classes)))
    if name == "calibration_error":
        return _calibration(shares.max(-1), chosen == labels)
    if name == "accuracy":
        return float(metrics().accuracy_score(labels, chosen))
    kind = name.removeprefix("f1_")
    return float(metrics().f1_score(labels, chosen, average=kind, zero_division=0))


def of_labels(name: str, outputs: Tensor, y: Tensor) -> float:
    """Of outputs and labels [examples, labels], all of them known."""
    logits, truth = outputs.double().numpy(), y.numpy().astype(int)
    chosen = (logits > 0).astype(int)
    if name in ("auroc", "average_precision"):
        return _area(name, list(logits.T), list(truth.T == 1))
    if name == "calibration_error":
        shares = torch.sigmoid(outputs.double()).numpy()
        return _calibration(shares.ravel(), truth.ravel() == 1)
    if name == "accuracy":
        return float(1 - metrics().hamming_loss(truth, chosen))
    kind = name.removeprefix("f1_")
    if truth.shape[1] == 1:  # scikit-learn takes one column for two classes
        return float(metrics().f1_score(truth[:, 0], chosen[:, 0], zero_division=0))
    return float(metrics().f1_score(truth, chosen, average=kind, zero_division=0))


def of_numbers(name: str, outputs: Tensor, y: Tensor) -> float:
    """Of outputs and numbers [examples, outputs], all of them known."""
    of: dict[str, Callable[..., float]] = {
        "mae": metrics().mean_absolute_error,
        "rmse": metrics().root_mean_squared_error,
        "r2": metrics().r2_score,
    }
    undefined = import_module("sklearn.exceptions").UndefinedMetricWarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", undefined)  # one example has no R2
        return float(of[name](y.double().numpy(), outputs.double().numpy()))


def _area(name: str, scores: list[Array], truth: list[npt.NDArray[np.bool_]]) -> float:
    """The mean over those that are both there and not there."""
    of = metrics().roc_auc_score if name == "auroc" else metrics().average_precision_score
    areas = [of(t, s) for s, t in zip(scores, truth, strict=True) if 0 < t.sum() < len(t)]
    return float(np.mean(areas)) if areas else float("nan")


def _calibration(confidence: Array, right: npt.NDArray[np.bool_]) -> float:
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    inside = [place == b for b in range(BINS) if (place == b).any()]
    gaps = [abs(right[i].mean() - confidence[i].mean()) * i.mean() for i in inside]
    return float(np.sum(gaps))
