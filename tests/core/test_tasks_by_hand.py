"""What a task makes of outputs and targets, worked out by hand; batches are not square, so that no
axis can be taken for another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.losses import IGNORE, absolute, huber, squared
from fedblocks.core.metrics import METRICS, CountMetric, Metric, calibration_error, keep_choice
from fedblocks.core.task import Task, as_task

NAN = float("nan")


def double(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.double)


def test_numbers_miss_by_their_distance() -> None:
    outputs, y = double([3.0, -1.0, 0.5], [0.0, 0.0, 0.0]), double([1.0, 1.0, 1.0], [0.0, 2.0, 1.0])
    assert absolute(outputs, y).tolist() == [[2.0, 2.0, 0.5], [0.0, 2.0, 1.0]]
    assert squared(outputs, y).tolist() == [[4.0, 4.0, 0.25], [0.0, 4.0, 1.0]]
    # half the square below 1; from 1 on the distance less a half
    assert huber(outputs, y).tolist() == [[1.5, 1.5, 0.125], [0.0, 1.5, 0.5]]


def test_losses_are_added_up_over_the_targets_that_are_known() -> None:
    outputs, y = double([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), double([0.0, NAN, 1.0], [NAN, NAN, NAN])
    total, counts = Task("regression", loss="absolute").summed_losses(outputs, y)
    assert total.tolist() == [3.0, 0.0] and counts.tolist() == [2.0, 0.0]
    mean = Task("regression", loss="absolute").example_losses(outputs, y)
    assert mean.tolist() == [1.5, 0.0]


def test_one_loss_for_an_example_stands_for_each_of_its_targets_if_all_are_known() -> None:
    task = Task("regression", loss=lambda outputs, y: (outputs - y).abs().amax(1))
    outputs = double([1.0, 5.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    y = double([0.0, 0.0, 0.0], [NAN, NAN, NAN], [0.0, NAN, 0.0])
    total, counts = task.summed_losses(outputs, y)
    assert total[:2].tolist() == [15.0, 0.0] and math.isnan(total[2])
    assert counts.tolist() == [3.0, 0.0, 2.0]


def test_a_smoothed_or_weighted_loss_leaves_out_labels_that_are_not_scored() -> None:
    """Outputs of 0 for four classes: every share is 1/4, and each loss log 4 times its weight."""
    task = Task(class_weights=(1.0, 2.0, 1.0, 1.0))
    flat = task.summed_losses(torch.zeros(3, 4).double(), torch.tensor([0, 1, IGNORE]))
    assert flat[0].tolist() == pytest.approx([math.log(4), 2 * math.log(4), 0.0])
    assert flat[1].tolist() == [1.0, 1.0, 0.0]
    steps = torch.tensor([[0, 1, 2], [IGNORE, 1, IGNORE]])
    total, counts = task.summed_losses(torch.zeros(2, 3, 4).double(), steps)
    assert total.tolist() == pytest.approx([4 * math.log(4), 2 * math.log(4)])
    assert counts.tolist() == [3.0, 1.0]


def test_right_answers_are_counted_by_example() -> None:
    outputs = double([0.0, 2.0, 1.0], [NAN, 2.0, 1.0], [3.0, 0.0, 0.0])
    right = Task().right_answers(outputs, torch.tensor([1, 1, 1]))
    assert right.tolist() == [True, False, False]
    steps = outputs.repeat(2, 1, 1)  # [2 examples, 3 steps, 3 classes]: 1, nothing, 0
    y = torch.tensor([[1, 1, 0], [IGNORE, 1, 1]])
    assert Task().right_answers(steps, y).tolist() == [2, 0]
    numbers = Task("regression").right_answers(double([1.0, 2.0]), double([1.0, 2.0]))
    assert numbers.tolist() == [0.0]


def test_a_label_is_there_above_0_and_counts_where_it_is_known() -> None:
    task = Task("multi-label")
    outputs = double([1.0, 0.0, -1.0, NAN, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    y = double([1.0, 0.0, 1.0, 0.0, NAN], [0.5, 0.6, 0.0, 1.0, 1.0])
    # the first: right, right (0 is not above 0), wrong, no answer, not known; 0.5 is no label
    assert task.right_answers(outputs, y).tolist() == [2, 3]
    assert task.predict(outputs).tolist() == [[1, 0, 0, 0, 1], [1] * 5]
    assert task.predict(outputs).dtype == torch.int64


def test_a_prediction_is_a_class_or_the_number_itself() -> None:
    outputs = double([0.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    assert Task().predict(outputs).tolist() == [1, 0]
    assert Task("regression").predict(outputs) is outputs


SHARES = double(*[0.25, 0.75]).log()


def test_a_mixture_of_models_is_one_of_what_they_say() -> None:
    """Two models, one example: shares of (1/2, 1/2) and (1/4, 3/4) among two classes are
    0.3125 = 0.25 / 2 + 0.75 / 4 and 0.6875 together.
    """
    outputs = torch.stack([double([0.0, 0.0]), double([0.0, math.log(3)])])  # [models, batch, 2]
    mixed = Task().mix(outputs, SHARES)
    assert mixed.exp().flatten().tolist() == pytest.approx([0.3125, 0.6875])
    numbers = Task("regression").mix(torch.stack([double([4.0]), double([8.0])]), SHARES)
    assert numbers.tolist() == [[pytest.approx(7.0)]]
    # labels: chances of 1/2 and 3/4 are 0.6875 together, of which these are the log odds
    labels = Task("multi-label").mix(outputs[..., 1:], SHARES)
    assert torch.sigmoid(labels).tolist() == [[pytest.approx(0.6875)]]


def test_targets_become_numbers_that_a_layer_can_read() -> None:
    coded = Task().encode(torch.tensor([[2, IGNORE]]), 3, torch.float32)
    assert coded.tolist() == [[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]] and coded.dtype == torch.float32
    numbers = Task("regression").encode(double([1.5, NAN]), 2, torch.float32)
    assert numbers.tolist() == [[1.5, 0.0]] and numbers.dtype == torch.float32
    assert Task().output_shape(torch.zeros(5, 7), 3) == [7, 3]
    assert Task("regression").output_shape(torch.zeros(5, 2), 3) == [2]


def test_a_task_is_recorded_with_what_it_changes() -> None:
    assert Task().table() == {
        "kind": "classification", "loss": "cross_entropy", "metrics": ["accuracy"],
    }  # fmt: skip
    changed = Task(class_weights=(1, 2), label_smoothing=0.5).table()
    assert (changed["class_weights"], changed["label_smoothing"]) == ([1.0, 2.0], 0.5)
    assert Task().counts_alone and not Task(metrics=("accuracy", "auroc")).counts_alone
    assert as_task("regression") == Task("regression")


def test_every_metric_has_its_number_by_name() -> None:
    task = Task(metrics=("loss", "auroc", "accuracy", "f1_macro"))
    assert [metric.name for metric in task.measured] == ["auroc", "f1_macro"]
    values = task.values([3.0, 4.0, 2.0, 0.25, 0.125])  # right, labels, loss; measured in turn
    assert values == {"loss": 0.5, "auroc": 0.25, "accuracy": 0.75, "f1_macro": 0.125}
    assert task.values([0.0, 0.0, 0.0, NAN, NAN])["accuracy"] == 0.0


def test_choices_are_kept_and_no_choice_is_made_of_nan() -> None:
    outputs = double([0.0, 2.0, 1.0], [NAN, 2.0, 1.0])
    chosen = keep_choice(outputs, torch.tensor([0, 0]))
    assert chosen[0].item() == 1.0 and math.isnan(chosen[1])
    labels = keep_choice(double([0.0, 1e-9, NAN]), double([0.0, 1.0, 1.0]))
    assert labels[0, :2].tolist() == [0.0, 1.0] and math.isnan(labels[0, 2])


def test_confidence_and_right_answers_differ_by_bin() -> None:
    """Two examples of confidence 3/4 in one bin, of which one is right: 1 - 2 x 3/4 is half a right
    answer too few. One of confidence 1 in the last bin is right. That is 1/2 of three examples.
    """
    outputs = double([math.log(3), 0.0], [0.0, math.log(3)], [1000.0, 0.0])
    error = calibration_error(outputs, torch.tensor([0, 0, 0]))
    assert error == pytest.approx(0.5 / 3)
    assert math.isnan(calibration_error(outputs[:0], torch.tensor([], dtype=torch.long)))


@pytest.mark.parametrize(
    "number",
    [1, 1.0, True, np.float32(1), np.array([1]), np.array(True), torch.tensor([1]), np.int8(1)],
    ids=range(8),
)
def test_a_metric_may_give_any_real_number(number: Any) -> None:
    value = Metric("own", lambda outputs, y: number).value(torch.zeros(1), torch.zeros(1))
    assert value == 1.0 and type(value) is float


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "gave None, not a number"),
        ("high", "gave 'high', not a number"),
        ([1.0], "gave a list, not a number"),
        (torch.zeros(2), r"gave a Tensor of shape \[2\], not"),
        (torch.zeros(1, dtype=torch.complex64), r"gave a Tensor of shape \[1\]"),
        (np.zeros(3), r"gave an ndarray of shape \[3\]"),
        (np.array(["a"]), r"gave an ndarray of shape \[1\]"),
        (np.array(1j), r"gave an ndarray of shape \[\]"),
        (np.zeros(0), r"gave an ndarray of shape \[0\]"),
        ("x" * 90, "gave '" + "x" * 59 + ", not"),
    ],
    ids=range(10),
)
def test_what_is_no_number_is_told_with_its_shape(given: Any, said: str) -> None:
    metric = Metric("own", lambda outputs, y: given)
    with pytest.raises(UserError, match=f'the metric "own" {said}'):
        metric.value(torch.zeros(1), torch.zeros(1))


def test_what_is_kept_has_a_row_for_each_example() -> None:
    y = torch.zeros(2)
    rows = Metric("own", lambda o, y: 0.0, keep=lambda outputs, y: 2 * outputs)
    assert rows.memory(torch.ones(2, 3), y).tolist() == [[2.0] * 3] * 2
    for wrong in (lambda o, y: o[:1], lambda o, y: 1.0, lambda o, y: o.sum()):
        with pytest.raises(UserError, match=r"`keep` of the metric .own. gave .* of 2 examples"):
            Metric("own", lambda o, y: 0.0, keep=wrong).memory(torch.ones(2, 3), y)


NO_METRICS = [
    ({"name": ""}, "a metric is called '', which is no name"),
    ({"name": 3}, "a metric is called 3, which is no name"),
    ({"better": "more"}, 'the metric "own" is better when "more"'),
    ({"of": 3}, '`of` of the metric "own", an int, is no function of two'),
    ({"of": lambda outputs: 0.0}, '`of` of the metric "own", <lambda>, is no function of two'),
    ({"keep": lambda outputs: 0.0}, '`keep` of the metric "own", <lambda>, is no function of'),
]


@pytest.mark.parametrize(("change", "said"), NO_METRICS, ids=range(len(NO_METRICS)))
def test_a_metric_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"name": "own", "of": lambda outputs, y: 0.0}
    for better in ("higher", "lower"):
        assert Metric(**{**right, "better": better}).better == better
    with pytest.raises(UserError) as refused:
        Metric(**{**right, **change})
    assert said in refused.value.message


def mean_error(outputs: Tensor, y: Tensor) -> float:
    return 0.0


def test_what_is_no_metric_is_refused_with_how_to_make_one() -> None:
    for wrong, said, name in (
        (
            mean_error,
            "metrics: the function mean_error is not a metric",
            '"mean_error", mean_error',
        ),
        (lambda o, y: 0.0, "metrics: the function <lambda> is not a metric", '"name", function'),
        (3, "metrics: an int is not a metric", '"function", function'),
    ):
        with pytest.raises(UserError) as refused:
            Task(metrics=[wrong])  # type: ignore[list-item]
        assert said in refused.value.message and f"fb.Metric({name})" in refused.value.fix
    own = CountMetric("hits", lambda right, labels, loss: right, "higher")
    assert Task(metrics=[own]).main is own


def test_a_name_that_stands_for_no_metric_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "mean", mean_error)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r'METRICS."mean".: the function mean_error is not a metric'
    ):
        Task(metrics="mean")  # type: ignore[arg-type]


def test_every_metric_has_its_direction_and_what_it_remembers() -> None:
    kept = {
        name: (metric.better, getattr(getattr(metric, "keep", None), "__name__", "counts"))
        for name, metric in METRICS.items()
    }
    outputs, choice = "keep_outputs", "keep_choice"
    assert kept == {
        "accuracy": ("higher", "counts"), "loss": ("lower", "counts"),
        "f1_macro": ("higher", choice), "f1_micro": ("higher", choice),
        "auroc": ("higher", outputs), "average_precision": ("higher", outputs),
        "calibration_error": ("lower", outputs), "mae": ("lower", outputs),
        "rmse": ("lower", outputs), "r2": ("higher", outputs),
        "perplexity": ("lower", "keep_log_loss"),
    }  # fmt: skip


def test_areas_are_a_mean_over_labels() -> None:
    """The first label is ranked right, 1; of the second's two pairs one is, 1/2."""
    outputs = double([1.0, 2.0], [0.0, 1.0], [0.0, 3.0])
    y = double([1.0, 1.0], [0.0, 0.0], [0.0, 0.0])
    assert METRICS["auroc"].of(outputs, y) == pytest.approx((1 + 0.5) / 2)  # type: ignore[call-arg,arg-type]
    assert METRICS["average_precision"].of(outputs, y) == pytest.approx((1 + 0.5) / 2)  # type: ignore[call-arg,arg-type]
