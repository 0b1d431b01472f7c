"""Tasks: what they refuse, and their losses beside torch's."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedblocks as fb
from fedblocks import Metric, Task, UserError

CLASSES = ("classification", "sequence-labelling", "next-token")


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def test_a_task_has_the_loss_and_the_metrics_of_its_kind() -> None:
    task = Task("regression")
    assert task.loss == "squared" and task.metrics == ("mae", "rmse", "r2")
    assert task.main.name == "mae" and task.main.better == "lower"
    assert Task().table() == {
        "kind": "classification",
        "loss": "cross_entropy",
        "metrics": ["accuracy"],
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "regresion"}, "regression"),
        ({"kind": "regression", "loss": "square"}, "squared"),
        ({"kind": "regression", "loss": "cross_entropy"}, "not for regression"),
        ({"kind": "regression", "metrics": ["accuracy"]}, "not for regression"),
        ({"kind": "multi-label", "metrics": ["auroq"]}, "auroc"),
        ({"metrics": ["accuracy", "accuracy"]}, "twice"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"class_weights": [1, -1]}, "class_weights"),
        ({"kind": "regression", "label_smoothing": 0.1}, "cross-entropies"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(options: dict, words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError) as error:
        Task(**options)
    assert words in str(error.value)


@pytest.mark.parametrize("weights", [(), (0.5, 1.0, 2.0, 0.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_cross_entropy_is_torchs_with_weights_and_smoothed_labels(
    weights: tuple[float, ...], smoothing: float
) -> None:
    task = Task(class_weights=weights, label_smoothing=smoothing)
    logits, y = drawn(6, 5, 4), torch.tensor([[0, 1, 2, 3, -100]] * 6)
    total, count = task.summed_losses(logits, y)
    wanted = F.cross_entropy(
        logits.flatten(0, 1),
        y.flatten(),
        weight=torch.tensor(weights, dtype=torch.double) if weights else None,
        label_smoothing=smoothing,
        reduction="none",
        ignore_index=-100,
    )
    torch.testing.assert_close(total, wanted.view(6, 5).sum(1))
    assert count.tolist() == [4.0] * 6


@pytest.mark.parametrize("weights", [(), (0.5, 3.0)])
def test_the_loss_of_several_labels_is_torchs_and_leaves_out_what_is_not_known(
    weights: tuple[float, ...],
) -> None:
    logits, y = drawn(3, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.nan, 1.0]]).double()
    total, count = Task("multi-label", class_weights=weights).summed_losses(logits, y)
    each = F.binary_cross_entropy_with_logits(
        logits,
        y.nan_to_num(0),
        pos_weight=torch.tensor(weights).double() if weights else None,
        reduction="none",
    )
    each[2, 0] = 0
    torch.testing.assert_close(total, each.sum(1))
    assert count.tolist() == [2.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("name", "wanted"), [("squared", F.mse_loss), ("absolute", F.l1_loss), ("huber", F.huber_loss)]
)
def test_the_losses_of_numbers_are_torchs(name: str, wanted: object) -> None:
    outputs, y = 2 * drawn(5, 2), drawn(5, 2).flip(0)
    total, count = Task("regression", loss=name).summed_losses(outputs, y)
    assert float(total.sum() / count.sum()) == pytest.approx(float(wanted(outputs, y)))  # type: ignore[operator]


def test_a_target_that_is_not_known_has_no_gradient() -> None:
    outputs = drawn(2, 2).requires_grad_()
    y = torch.tensor([[1.0, math.nan], [0.0, 2.0]]).double()
    Task("regression").summed_losses(outputs, y)[0].sum().backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None and outputs.grad.isfinite().all()
    assert outputs.grad[0, 1] == 0 and (outputs.grad != 0).sum() == 3


def test_an_own_loss_gives_a_number_for_each_target_or_for_each_example() -> None:
    outputs, y = drawn(4, 3), torch.zeros(4, 3).double()
    y[0, 0], y[1] = math.nan, math.nan
    by_target = Task("regression", loss=lambda out, y: (out - y).abs())
    total, count = by_target.summed_losses(outputs, y)
    assert count.tolist() == [2.0, 0.0, 3.0, 3.0] and total[1] == 0
    by_example = Task("regression", loss=lambda out, y: (out - y).abs().sum(1))
    total, count = by_example.summed_losses(outputs, y)
    # of row 2, all three targets are known: its loss stands for each of them
    assert count.tolist() == [2.0, 0.0, 3.0, 3.0] and total[1] == 0
    assert float(total[2]) == pytest.approx(3 * float(outputs[2].abs().sum()))
    # of row 0 a part is not known, and 0 in its place would be wrong
    assert total[0].isnan()


@pytest.mark.parametrize("kind", CLASSES)
def test_predictions_of_classes_are_the_most_likely_ones(kind: str) -> None:
    outputs = drawn(3, 2, 4)
    assert Task(kind).predict(outputs).equal(outputs.argmax(-1))


def test_predictions_of_several_labels_are_ones_and_zeros_and_of_numbers_the_outputs() -> None:
    outputs = torch.tensor([[0.1, -0.1]])
    assert Task("multi-label").predict(outputs).tolist() == [[1, 0]]
    assert Task("regression").predict(outputs).equal(outputs)


def test_the_mixture_of_models_is_that_of_what_they_say() -> None:
    outputs, shares = drawn(2, 5, 3), torch.tensor([0.3, 0.7]).double()
    mixed = Task().mix(outputs, shares.log())
    chances = (torch.softmax(outputs, -1) * shares.view(2, 1, 1)).sum(0)
    torch.testing.assert_close(mixed.softmax(-1), chances)
    both = Task("multi-label").mix(outputs, shares.log())
    chances = (outputs.sigmoid() * shares.view(2, 1, 1)).sum(0)
    torch.testing.assert_close(both.sigmoid(), chances)
    numbers = Task("regression").mix(outputs, shares.log())
    torch.testing.assert_close(numbers, 0.3 * outputs[0] + 0.7 * outputs[1])


def test_an_own_metric_may_be_the_main_one() -> None:
    worst = Metric("worst_error", lambda out, y: float((out - y).abs().max()), "lower")
    task = Task("regression", metrics=[worst, "mae"])
    assert task.main is worst and task.table()["metrics"] == ["worst_error", "mae"]
    assert task.values((0.0, 4.0, 1.0, 7.0, 0.5)) == {"worst_error": 7.0, "mae": 0.5}


def test_a_kind_of_task_may_be_given_by_its_name() -> None:
    x, y, users = np.zeros((8, 2), "float32"), np.arange(8.0), np.arange(8) // 4
    named = fb.Federation.from_users(x, y, users, task="regression")
    assert named.task == fb.Task("regression")
    assert named.with_task("regression").task == named.task
    with pytest.raises(UserError, match='there is no task "regresion"'):
        fb.Federation.from_users(x, y, users, task="regresion")
    with pytest.raises(UserError, match="the task is of type int"):
        fb.Federation.from_users(x, y, users, task=3)  # type: ignore[arg-type]


def test_a_metric_says_which_way_is_better_in_words_that_are_known() -> None:
    with pytest.raises(UserError, match='the metric "hits" is better when "up"'):
        Metric("hits", lambda outputs, targets: 0.0, better="up")  # type: ignore[arg-type]
