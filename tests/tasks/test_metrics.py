"""Metrics against their definitions, written out as loops."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.metrics import METRICS, Metric, keep_choice

SEEDS = range(5)


def classes(seed: int, rows: int = 60, many: int = 4) -> tuple[Tensor, Tensor]:
    """Outputs and labels; scores are rounded, so that some are the same."""
    draw = torch.Generator().manual_seed(seed)
    outputs = (torch.randn(rows, many, generator=draw, dtype=torch.double) * 2).round() / 2
    return outputs, torch.randint(0, many, (rows,), generator=draw)


def several(seed: int, rows: int = 60, many: int = 3) -> tuple[Tensor, Tensor]:
    """Outputs and several labels, of which some are not known."""
    draw = torch.Generator().manual_seed(seed)
    outputs = (torch.randn(rows, many, generator=draw, dtype=torch.double) * 2).round() / 2
    y = (torch.rand(rows, many, generator=draw) < 0.4).double()
    return outputs, torch.where(torch.rand(rows, many, generator=draw) < 0.1, torch.nan, y)


def numbers(seed: int, rows: int = 40, many: int = 2) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = 100 + 3 * torch.randn(rows, many, generator=draw, dtype=torch.double)
    return y + torch.randn(rows, many, generator=draw, dtype=torch.double), y


def measure(name: str, outputs: Tensor, y: Tensor) -> float:
    metric = METRICS[name]
    assert isinstance(metric, Metric)
    return metric.of(metric.keep(outputs, y).double(), y)


def pairs_in_order(scores: list[float], truth: list[int]) -> float:
    """The share of pairs, true and false, in which the true one stands above; a tie is half."""
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, is_a in zip(scores, truth, strict=True)
        for b, is_b in zip(scores, truth, strict=True)
        if is_a and not is_b
    ]
    return sum(wins) / len(wins)


def precision_by_recall(scores: list[float], truth: list[int]) -> float:
    """The sum over thresholds, from the highest, of precision times the recall that it adds."""
    area = before = 0.0
    for threshold in sorted({*scores}, reverse=True):
        chosen = [t for s, t in zip(scores, truth, strict=True) if s >= threshold]
        recall = sum(chosen) / sum(truth)
        area += (recall - before) * sum(chosen) / len(chosen)
        before = recall
    return area


def f1(chosen: list[int], truth: list[int]) -> float:
    hits = sum(c and t for c, t in zip(chosen, truth, strict=True))
    precision = hits / sum(chosen) if sum(chosen) else 0.0
    recall = hits / sum(truth) if sum(truth) else 0.0
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def known(outputs: Tensor, y: Tensor, place: int) -> tuple[list[float], list[int]]:
    rows = ~y[:, place].isnan()
    return outputs[rows, place].tolist(), [int(t) for t in y[rows, place]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "area"), [("auroc", pairs_in_order), ("average_precision", precision_by_recall)]
)
def test_areas_of_several_classes_are_means_of_each_class_against_the_rest(
    name: str, area: object, seed: int
) -> None:
    outputs, y = classes(seed)
    shares = torch.softmax(outputs, 1)
    each = [area(shares[:, c].tolist(), (y == c).int().tolist()) for c in range(4)]  # type: ignore[operator]
    assert measure(name, outputs, y) == pytest.approx(np.mean(each), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "area"), [("auroc", pairs_in_order), ("average_precision", precision_by_recall)]
)
def test_areas_of_two_classes_are_those_of_class_one(name: str, area: object, seed: int) -> None:
    outputs, y = classes(seed, many=2)
    shares = torch.softmax(outputs, 1)[:, 1]
    assert measure(name, outputs, y) == pytest.approx(area(shares.tolist(), y.tolist()), abs=1e-9)  # type: ignore[operator]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "area"), [("auroc", pairs_in_order), ("average_precision", precision_by_recall)]
)
def test_areas_of_several_labels_leave_out_what_is_not_known(
    name: str, area: object, seed: int
) -> None:
    outputs, y = several(seed)
    each = [area(*known(outputs, y, c)) for c in range(3)]  # type: ignore[operator]
    assert measure(name, outputs, y) == pytest.approx(np.mean(each), abs=1e-9)


def test_a_label_that_everybody_has_is_left_out_of_areas_and_alone_has_none() -> None:
    outputs, y = several(0)
    y[:, 0] = 1
    two = np.mean([pairs_in_order(*known(outputs, y, c)) for c in (1, 2)])
    assert measure("auroc", outputs, y) == pytest.approx(two, abs=1e-9)
    assert math.isnan(measure("auroc", outputs[:, :1], y[:, :1]))


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_classes_is_the_mean_over_those_that_occur(seed: int) -> None:
    outputs, y = classes(seed, rows=12, many=6)
    chosen = outputs.argmax(1)
    there = sorted({*chosen.tolist(), *y.tolist()})
    each = [f1((chosen == c).int().tolist(), (y == c).int().tolist()) for c in there]
    assert measure("f1_macro", outputs, y) == pytest.approx(np.mean(each), abs=1e-9)
    right = float((chosen == y).double().mean())
    assert measure("f1_micro", outputs, y) == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_f1_of_several_labels_leaves_out_what_is_not_known(seed: int) -> None:
    outputs, y = several(seed)
    columns = [known(keep_choice(outputs, y), y, c) for c in range(3)]
    each = [f1([int(c) for c in chosen], truth) for chosen, truth in columns]
    assert measure("f1_macro", outputs, y) == pytest.approx(np.mean(each), abs=1e-9)
    chosen, truth = ([v for column in columns for v in column[side]] for side in (0, 1))
    together = f1([int(c) for c in chosen], [int(t) for t in truth])
    assert measure("f1_micro", outputs, y) == pytest.approx(together, abs=1e-9)


def test_a_class_that_neither_occurs_nor_is_chosen_does_not_count() -> None:
    """Of classes 0, 1 and 2 nobody has or chooses 1; 0 has an F1 of 1 and 2 of 2/3, 3 of 0."""
    outputs = torch.eye(4)[[0, 2, 2]]
    assert measure("f1_macro", outputs, torch.tensor([0, 2, 3])) == pytest.approx((1 + 2 / 3) / 3)


def test_a_class_that_is_chosen_but_never_there_counts_with_an_f1_of_zero() -> None:
    """Class 0: all that is chosen is right, 2 of 3 are found, 2 * 2/3 / (1 + 2/3) = 0.8."""
    outputs = torch.eye(2)[[0, 0, 1]]
    assert measure("f1_macro", outputs, torch.tensor([0, 0, 0])) == pytest.approx(0.8 / 2)


def test_a_label_that_is_never_there_nor_chosen_has_an_f1_of_zero() -> None:
    outputs, y = torch.tensor([[-1.0, 1.0]]), torch.tensor([[0.0, 1.0]])
    assert measure("f1_macro", outputs, y) == 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_calibration_error_is_the_mean_gap_over_bins(seed: int) -> None:
    outputs, y = classes(seed, rows=200)
    confidence, chosen = torch.softmax(outputs, 1).max(1)
    error = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            gap = (chosen == y)[inside].double().mean() - confidence[inside].mean()
            error += float(gap.abs() * inside.double().mean())
    assert measure("calibration_error", outputs, y) == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_errors_of_numbers_are_means_over_outputs(seed: int) -> None:
    outputs, y = numbers(seed)
    error = (outputs - y).numpy()
    assert measure("mae", outputs, y) == pytest.approx(np.abs(error).mean(), abs=1e-9)
    rmse = np.sqrt((error**2).mean(0)).mean()
    assert measure("rmse", outputs, y) == pytest.approx(rmse, abs=1e-9)
    r2 = (1 - (error**2).sum(0) / ((y - y.mean(0)).numpy() ** 2).sum(0)).mean()
    assert measure("r2", outputs, y) == pytest.approx(r2, abs=1e-9)


def test_numbers_that_are_not_known_are_left_out() -> None:
    outputs, y = numbers(0)
    y[3:, 1] = torch.nan
    first = (outputs - y)[:, 0].abs().mean()
    second = (outputs - y)[:3, 1].abs().mean()
    assert measure("mae", outputs, y) == pytest.approx(float(first + second) / 2, abs=1e-9)


def test_r2_of_one_example_is_not_defined_and_of_a_constant_is_hit_or_miss() -> None:
    one = torch.ones(1, 1, dtype=torch.double)
    assert math.isnan(measure("r2", one, one))
    constant = torch.ones(4, 1, dtype=torch.double)
    assert measure("r2", constant, constant) == 1.0
    assert measure("r2", constant + 1, constant) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_perplexity_is_the_exponential_of_the_mean_cross_entropy(seed: int) -> None:
    outputs, y = classes(seed)
    loss = torch.nn.functional.cross_entropy(outputs, y)
    assert measure("perplexity", outputs, y) == pytest.approx(float(loss.exp()), abs=1e-9)
