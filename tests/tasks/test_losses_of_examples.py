"""A loss that returns one number for each example, where an example has several targets."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb

pytestmark = pytest.mark.usefixtures("own_place")
STEPS, USERS = 5, 4


def by_step(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.reshape(targets.shape)


def by_sequence(outputs: Tensor, targets: Tensor) -> Tensor:
    return by_step(outputs, targets).mean(-1)


def by_label(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def by_row(outputs: Tensor, targets: Tensor) -> Tensor:
    return by_label(outputs, targets).mean(-1)


def sequences(loss: object, unknown: int = 0) -> fb.Federation:
    """Tags of words; of so many rows, the last ones, the last tag is not known."""
    words = np.random.default_rng(0).integers(0, 6, (80, STEPS))
    tags = (words + 1) % 3
    tags[len(tags) - unknown :, -1] = fb.IGNORE
    task = fb.Task("sequence-labelling", loss=loss, metrics=["accuracy", "loss"])  # type: ignore[arg-type]
    return fb.Federation.from_users(words, tags, np.arange(80) % USERS, task=task)


def several_labels(loss: object, unknown: int = 0) -> fb.Federation:
    x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
    y = (x[:, :3] > 0).astype("float32")
    y[len(y) - unknown :, 0] = np.nan
    task = fb.Task("multi-label", loss=loss, metrics=["accuracy", "loss"])  # type: ignore[arg-type]
    return fb.Federation.from_users(x, y, np.arange(80) % USERS, task=task)


TAGGER = fb.Net.of(lambda: nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 3)))
LABELLER = fb.Net.of(lambda: nn.Linear(4, 3))
CASES = [(sequences, TAGGER, by_sequence, by_step), (several_labels, LABELLER, by_row, by_label)]


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("data", "net", "own", "of_targets"), CASES)
def test_it_trains_and_scores_as_the_same_loss_of_each_target(
    data: object, net: fb.Net, own: object, of_targets: object, engine: str
) -> None:
    method = fb.FedAvg(net, lr=0.5)
    options = {"rounds": 3, "engine": engine}
    runs = [fb.run(method, data(loss), **options) for loss in (own, of_targets)]  # type: ignore[operator]
    for metric in ("accuracy", "loss"):
        ours, theirs = (run.scores(metric) for run in runs)
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert max(runs[0].scores("accuracy").values()) <= 1


@pytest.mark.parametrize(("data", "net", "own", "of_targets"), CASES)
def test_it_is_refused_where_a_part_of_an_examples_targets_is_not_known(
    data: object, net: fb.Net, own: object, of_targets: object
) -> None:
    method = fb.FedAvg(net, lr=0.5)
    with pytest.raises(fb.UserError, match=r"2 examples .* only a part") as error:
        fb.run(method, data(own, unknown=2), rounds=1)  # type: ignore[operator]
    assert "one loss for each target" in error.value.fix
    fb.run(method, data(of_targets, unknown=2), rounds=1)  # type: ignore[operator]


def test_examples_of_which_nothing_is_known_are_left_out() -> None:
    runs = []
    for loss in (by_row, by_label):
        data = several_labels(loss)
        for rows in (data.train[0][:3], data.test[1][:1]):
            data.y[torch.as_tensor(rows)] = torch.nan
        runs.append(fb.run(fb.FedAvg(LABELLER, lr=0.5), data, rounds=2))
    for metric in ("accuracy", "loss"):
        ours, theirs = (run.scores(metric) for run in runs)
        assert ours == pytest.approx(theirs, abs=1e-5)
