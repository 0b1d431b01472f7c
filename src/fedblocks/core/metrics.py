"""Metrics by name: how well a client's model does, from its outputs and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.errors import UserError, a_kind
from fedblocks.core.own_code import own_code, own_name, takes

BINS = 15  # of the calibration error
UNDEFINED = math.nan  # as the area under a curve where a client has one class only

Keep = Callable[[Tensor, Tensor], Tensor]  # outputs and targets of some examples -> a row for each
Measure = Callable[[Tensor, Tensor], float]  # what was kept of one client, and its targets
ONE_NUMBER = "return one number for all examples of a client, such as float(errors.mean())"


def keep_outputs(outputs: Tensor, y: Tensor) -> Tensor:
    """The outputs as they are."""
    return outputs


@dataclass(frozen=True)
class Metric:
    """A number for each client, from all its examples: `of(outputs, targets)`, in double precision.

    Classes come as outputs [labels, classes] and targets [labels]; several labels and numbers as
    [examples, outputs], with NaN for a target that is not known. `keep` says what to remember of
    the outputs of some examples where all of them would be too much.
    """

    name: str
    of: Measure
    better: Literal["higher", "lower"] = "higher"
    keep: Keep = keep_outputs

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            fix = 'write Metric("name", function)'
            raise UserError(f"a metric is called {self.name!r}, which is no name", fix)
        if self.better not in ("higher", "lower"):
            message = f'the metric "{self.name}" is better when "{self.better}"'
            raise UserError(message, 'give better="higher" or better="lower"')
        for role, function in (("of", self.of), ("keep", self.keep)):
            if not callable(function) or not takes(function, 2):
                what = own_name(function) if callable(function) else a_kind(function)
                message = f'`{role}` of the metric "{self.name}", {what}, is no function of two'
                raise UserError(message, f"write def {role}(outputs, targets): ...")

    def memory(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What is remembered of some examples: a row for each."""
        fix = "return a tensor with a row for each example, by tensor functions of torch alone"
        with own_code(f'`keep` of the metric "{self.name}"', fix):
            kept = self.keep(outputs, y)
        if not isinstance(kept, Tensor) or kept.shape[:1] != y.shape[:1]:
            message = f'`keep` of the metric "{self.name}" gave {_describe(kept)}'
            raise UserError(f"{message} of {len(y)} examples", fix)
        return kept

    def value(self, kept: Tensor, y: Tensor) -> float:
        """The number of one client, from what was remembered of its examples."""
        with own_code(f'the metric "{self.name}"', ONE_NUMBER):
            number: Any = self.of(kept, y)
        if isinstance(number, Real) or _is_one_number(number):
            return float(number if isinstance(number, Real) else number.item())
        message = f'the metric "{self.name}" gave {_describe(number)}, not a number'
        raise UserError(message, ONE_NUMBER)


def _is_one_number(value: Any) -> bool:
    """A tensor or an array of one number that is real."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    is_array = isinstance(value, np.ndarray | np.generic)
    return is_array and value.size == 1 and value.dtype.kind in "fiub"


def _describe(value: Any) -> str:
    """What a function gave, for messages."""
    shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
    text = repr(value) if value is None or isinstance(value, str) else a_kind(value)
    return f"{text[:60]}{shape}"


@dataclass(frozen=True)
class CountMetric:
    """A number that follows from what is always counted: right labels, scored labels, sum of
    losses.
    """

    name: str
    of: Callable[[float, float, float], float]
    better: Literal["higher", "lower"]


def keep_choice(outputs: Tensor, y: Tensor) -> Tensor:
    """The class that is chosen, or for each label whether it is there; NaN where outputs are."""
    if outputs.dim() > y.dim():
        is_nan = outputs.isnan().any(-1)
        return torch.where(is_nan, torch.nan, outputs.argmax(-1).to(outputs.dtype))
    return torch.where(outputs.isnan(), outputs, (outputs > 0).to(outputs.dtype))


def keep_log_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Minus the logarithm of the share of the right class."""
    right = y.clamp(min=0)[..., None]
    return -F.log_softmax(outputs.double(), -1).gather(-1, right)[..., 0]


def f1_micro(chosen: Tensor, y: Tensor) -> float:
    """F1 of all decisions together; for one label per example that is the accuracy."""
    hits, choices, truths = _decisions(chosen, y)
    return _ratio(2 * float(hits.sum()), float(choices.sum() + truths.sum()))


def f1_macro(chosen: Tensor, y: Tensor) -> float:
    """The mean of each class's F1, over the classes that occur or are chosen; of several labels,
    over all.
    """
    hits, choices, truths = _decisions(chosen, y)
    both = choices + truths
    scores = torch.where(both > 0, 2 * hits / both, 0)
    there = both > 0 if y.dim() == 1 else torch.ones_like(both, dtype=torch.bool)
    return float(scores[there].mean()) if there.any() else UNDEFINED


def _decisions(chosen: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class: right choices, choices, and how often it is true."""
    if y.dim() == 1:
        classes = int(torch.stack([chosen.long().max(), y.long().max()]).max()) + 1
        chosen = F.one_hot(chosen.long(), classes)
        y = F.one_hot(y.long(), classes).double()
    known = ~y.isnan()
    chosen, y = torch.where(known, chosen, 0), torch.where(known, y, 0)
    return (chosen * y).sum(0), chosen.sum(0), y.sum(0)


def auroc(outputs: Tensor, y: Tensor) -> float:
    """The area under the ROC curve: of class 1 if there are two, else the mean over the classes,
    each against the rest, or over the labels.
    """
    return _mean_over_labels(_area_under_roc, outputs, y)


def average_precision(outputs: Tensor, y: Tensor) -> float:
    """The mean precision over the recalls, in the mean over classes or labels as `auroc`."""
    return _mean_over_labels(_area_under_precision, outputs, y)


def _mean_over_labels(area: Measure, outputs: Tensor, y: Tensor) -> float:
    """Over those that are both there and not there; undefined if there are none."""
    if y.dim() == 1:  # of classes
        shares = F.softmax(outputs, -1)
        y = F.one_hot(y.long(), outputs.shape[-1])
        pairs = list(zip(shares.unbind(1), y.unbind(1), strict=True))
        pairs = pairs[1:] if len(pairs) == 2 else pairs
    else:
        pairs = list(zip(outputs.unbind(1), y.unbind(1), strict=True))
    known = [(scores[~truth.isnan()], truth[~truth.isnan()]) for scores, truth in pairs]
    areas = [area(scores, truth) for scores, truth in known if 0 < truth.sum() < len(truth)]
    return math.fsum(areas) / len(areas) if areas else UNDEFINED


def _area_under_roc(scores: Tensor, truth: Tensor) -> float:
    """The share of pairs of which the true one stands above, a tie being half a pair."""
    _, rank, count = torch.unique(scores, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()  # the last place of each score
    places = (last - (count - 1) / 2)[rank]  # ties share the mean of their places
    true = float(truth.sum())
    false = len(truth) - true
    return (float((places * truth).sum()) - true * (true + 1) / 2) / (true * false)


def _area_under_precision(scores: Tensor, truth: Tensor) -> float:
    """The sum of precisions, each times the recall that it adds, from the highest score on."""
    _, rank, count = torch.unique(-scores, return_inverse=True, return_counts=True)
    hits = torch.zeros(len(count), dtype=torch.double).index_add(0, rank, truth.double())
    precision = hits.cumsum(0) / count.cumsum(0)
    return float((precision * hits).sum() / hits.sum())


def calibration_error(outputs: Tensor, y: Tensor) -> float:
    """The mean distance of confidence and share of right answers over 15 bins of confidence; of
    several labels, of each label's share and how often it is there.
    """
    if y.dim() == 1:
        confidence, chosen = F.softmax(outputs, -1).max(-1)
        right = (chosen == y).double()
    else:
        known = ~y.isnan()
        confidence, right = torch.sigmoid(outputs[known]), y[known]
    if not len(right):
        return UNDEFINED
    places = ((confidence * BINS).ceil().long() - 1).clamp(min=0)  # bins (low, high]
    gaps = torch.zeros(BINS, dtype=torch.double).index_add(0, places, right - confidence)
    return float(gaps.abs().sum() / len(right))


def mae(outputs: Tensor, y: Tensor) -> float:
    """The mean absolute error, in the mean over outputs."""
    return _mean_over_outputs(outputs, y, lambda error, _: float(error.abs().mean()))


def rmse(outputs: Tensor, y: Tensor) -> float:
    """The root of the mean squared error, in the mean over outputs."""
    return _mean_over_outputs(outputs, y, lambda error, _: math.sqrt(float(error.square().mean())))


def r2(outputs: Tensor, y: Tensor) -> float:
    """The share of the variance that is explained, in the mean over outputs; undefined for one
    example.
    """

    def explained(error: Tensor, truth: Tensor) -> float:
        total = float((truth - truth.mean()).square().sum())
        rest = float(error.square().sum())
        if total > 0:
            return 1 - rest / total
        return float(rest == 0)  # a target that never changes is hit, or it is not

    return _mean_over_outputs(outputs, y, explained, least=2)


def _mean_over_outputs(outputs: Tensor, y: Tensor, of: Measure, least: int = 1) -> float:
    known = [~column.isnan() for column in y.unbind(1)]
    values = [
        of((outputs[rows, place] - y[rows, place]), y[rows, place])
        for place, rows in enumerate(known)
        if int(rows.sum()) >= least
    ]
    return math.fsum(values) / len(values) if values else UNDEFINED


def perplexity(log_losses: Tensor, y: Tensor) -> float:
    """The exponential of the mean cross-entropy of a label."""
    return math.exp(min(float(log_losses.mean()), 700.0)) if len(y) else UNDEFINED


def mean_loss(loss: float, labels: float) -> float:
    """Of a label. A loss that is no number is endless: its client is not left out of a mean."""
    if not labels:
        return UNDEFINED
    return math.inf if math.isnan(loss) else loss / labels


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# by name, for configurations; a program may add its own
METRICS: dict[str, Metric | CountMetric] = {
    metric.name: metric
    for metric in (
        CountMetric("accuracy", lambda right, labels, _: _ratio(right, labels), "higher"),
        CountMetric("loss", lambda _, labels, loss: mean_loss(loss, labels), "lower"),
        Metric("f1_macro", f1_macro, keep=keep_choice),
        Metric("f1_micro", f1_micro, keep=keep_choice),
        Metric("auroc", auroc),
        Metric("average_precision", average_precision),
        Metric("calibration_error", calibration_error, "lower"),
        Metric("mae", mae, "lower"),
        Metric("rmse", rmse, "lower"),
        Metric("r2", r2),
        Metric("perplexity", perplexity, "lower", keep=keep_log_loss),
    )
}
