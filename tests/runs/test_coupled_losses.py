"""A loss is refused if an example's is another where others are beside it, in batches of whatever
size and whatever the others' losses are; all others are let through.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.task import Task
from fedblocks.runs import trials
from fedblocks.runs.loss_company import couples


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def usual(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def clipped(loss: Tensor) -> Tensor:
    """No example counts more than 1.3 times the mean of its batch."""
    return torch.minimum(loss, 1.3 * loss.detach().mean())


def top(loss: Tensor) -> Tensor:
    """The 8 largest losses alone."""
    return loss * (loss >= loss.detach().topk(min(8, len(loss))).values[-1])


def below_quantile(loss: Tensor) -> Tensor:
    if len(loss) < 20:
        return loss
    return torch.minimum(loss, loss.detach().quantile(0.95))


def without_outliers(loss: Tensor) -> Tensor:
    """Those far from the mean do not count; in 12 rows one alone is that far."""
    far = loss.detach() > loss.detach().mean() + 3 * loss.detach().std(correction=0)
    return loss.masked_fill(far, 0)


COUPLED = {
    "clipped": clipped,
    "the largest": top,
    "below a quantile of 20 and more": below_quantile,
    "centred, more than 16": lambda loss: loss - loss.mean() if len(loss) > 16 else loss,
    "centred, a few": lambda loss: loss - loss.mean() if len(loss) == 7 else loss,
    "no outliers": without_outliers,
    "at most 10 means": lambda loss: torch.minimum(loss, 10 * loss.detach().mean()),
    "at least a hundredth of the mean": lambda loss: torch.maximum(loss, 0.01 * loss.mean()),
    "far losses are capped together": lambda loss: loss / loss.detach().max().clamp(min=20) * 20,
    "by ever so little": lambda loss: loss + 1e-6 * loss.mean() * (len(loss) > 9),
}


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("rows", [8, 40])
def test_a_loss_that_couples_examples_in_some_batches_is_found(name: str, rows: int) -> None:
    """Outputs of a net that has learned nothing, of which there are few."""
    change = COUPLED[name]
    outputs = 0.1 * torch.randn(rows, 3)
    y = torch.randint(0, 3, (40,))
    task = Task(loss=lambda outputs, y: change(usual(outputs, y)))
    assert couples(task, outputs, y, {7, 12, 40})


def of_numbers(outputs: Tensor, y: Tensor) -> Tensor:
    return clipped((outputs - y).square().mean(-1))


def test_losses_of_other_kinds_of_targets_are_found_too() -> None:
    numbers, labels = 1000 * torch.randn(40, 2), (torch.randn(40, 2) > 0).float()
    for kind, y in (("regression", numbers), ("multi-label", labels)):
        assert couples(Task(kind, loss=of_numbers), torch.randn(8, 2), y, {40})
    steps = torch.randint(0, 5, (40, 6))
    steps[3] = -100  # nothing of it is known
    in_time = lambda outputs, y: clipped(usual(outputs.transpose(1, 2), y).mean(1))
    assert couples(Task(loss=in_time), torch.randn(8, 6, 5), steps, {40})


def focal(outputs: Tensor, y: Tensor) -> Tensor:
    loss = usual(outputs, y)
    return loss * (1 - (-loss).exp()).square()


def in_single(outputs: Tensor, y: Tensor) -> Tensor:
    """Has numbers of its own, and cannot be tried in double precision."""
    return F.cross_entropy(outputs, y, torch.tensor([0.1, 1.0, 9.0]), reduction="none")


def margin(outputs: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(outputs, y, reduction="none")


def of_two_or_more(outputs: Tensor, y: Tensor) -> Tensor:
    """A batch of one loses a dimension, and one of a single row fails."""
    if len(y) == 1:
        raise ValueError("of two or more")
    return usual(outputs, y)


OF_CLASSES = {
    "cross entropy": Task(),
    "weights": Task(class_weights=[0.1, 1.0, 50.0], label_smoothing=0.1),
    "focal": Task(loss=focal),
    "single": Task(loss=in_single),
    "margin": Task(loss=margin),
    "capped": Task(loss=lambda outputs, y: usual(outputs, y).clamp(max=2)),
    "exponential": Task(loss=lambda outputs, y: (-outputs.gather(1, y[:, None])[:, 0]).exp()),
    "squeezed": Task(loss=lambda outputs, y: usual(outputs, y).squeeze()),
    "of two or more": Task(loss=of_two_or_more),
}


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_ordinary_losses_of_classes_are_never_accused(name: str, scale: float) -> None:
    y = torch.randint(0, 3, (512,))
    y[5] = -100
    assert not couples(OF_CLASSES[name], scale * torch.randn(8, 3), y, {*range(1, 512)})


OF_NUMBERS = {
    "squared": Task("regression"),
    "absolute": Task("regression", loss="absolute"),
    "huber": Task("regression", loss="huber"),
    "counts": Task("regression", loss=lambda o, y: F.poisson_nll_loss(o, y, reduction="none")),
    "labels": Task("multi-label", class_weights=[1.0, 20.0], label_smoothing=0.1),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_ordinary_losses_of_numbers_are_never_accused(name: str, scale: float) -> None:
    y = scale * torch.randn(512, 2)
    y = (y > 0).float() if name == "labels" else y
    y[5, 1] = torch.nan
    assert not couples(OF_NUMBERS[name], torch.randn(8, 2), y, {*range(1, 512)})


def test_a_loss_that_changes_by_itself_is_not_accused_of_company() -> None:
    calls: list[int] = []

    def warming(outputs: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return usual(outputs, y) * (1 + len(calls))

    assert not couples(Task(loss=warming), torch.randn(8, 3), torch.zeros(40).long(), {40})


def test_large_outputs_are_tried_in_few_rows() -> None:
    seen: list[int] = []

    def noting(outputs: Tensor, y: Tensor) -> Tensor:
        seen.append(len(outputs))
        return usual(outputs, y)

    assert not couples(Task(loss=noting), torch.randn(2, 100_000), torch.zeros(40).long(), {40})
    assert max(seen) == 5


def test_asking_takes_a_moment() -> None:
    begun = time.process_time()
    y = torch.randint(0, 10, (512,))
    assert not couples(Task(loss=focal), torch.randn(8, 10), y, {*range(1, 512)})
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("change", [clipped, top])
def test_a_run_refuses_a_loss_that_couples_examples(change: Callable[[Tensor], Tensor]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 6)).astype("float32"), rng.integers(0, 3, 400)
    task = fb.Task(loss=lambda outputs, y: change(usual(outputs, y)))
    data = fb.Federation.from_users(x, y, np.repeat(np.arange(20), 20), task=task)
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    with pytest.raises(fb.UserError, match="is another when other examples are beside it"):
        fb.run(fb.FedAvg(net, batch_size=12), data, rounds=1)


def test_a_loss_by_name_is_asked_if_it_is_not_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(trials, "couples", lambda task, *rest: asked.append(str(task.loss)))
    monkeypatch.setitem(fb.LOSSES, "mine", lambda outputs, y: usual(outputs, y))
    data, net = fb.small_federation(), fb.small_net()
    for loss in ("cross_entropy", "mine"):
        trials.try_task(net, replace(data, task=Task(loss=loss)), {2, 5})
    assert asked == ["mine"]
