"""A model whose outputs are no numbers is wrong everywhere, and the run says where NaN began."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.metrics import METRICS, Metric
from fedblocks.core.task import Task
from fedblocks.core.uploads import Uploads
from fedblocks.data import Parts
from fedblocks.engines.scoring import score_outputs
from fedblocks.runs.curves import curves_of
from fedblocks.runs.storage.record import ClientMetric, RoundRecord
from fedblocks.runs.storage.store import RunStore

NAN = float("nan")


class Dividing(fb.FedAvg):
    """Its server divides by nothing."""

    def conclude(
        self, server: fb.Blocks, before: fb.Blocks, uploads: Uploads, cohort: fb.Cohort
    ) -> fb.Blocks:
        return {n: {k: v * 0 / 0 for k, v in own.items()} for n, own in server.items()}


def points() -> fb.Federation:
    x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
    return fb.Federation.from_users(x, np.arange(80) % 3, np.arange(80) % 4)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_outputs_of_nan_have_accuracy_0(engine: str, tmp_path: Path) -> None:
    """Class 0, the place of the first NaN, is a third of all labels."""
    method = Dividing(fb.Net.of(lambda: nn.Linear(4, 3)), lr=0.01)
    with pytest.warns(UserWarning, match="conclude gives NaN"):
        result = fb.run(method, points(), rounds=1, out=tmp_path / "run", engine=engine)  # type: ignore[arg-type]
    assert set(result.accuracies().values()) == {0.0}


def test_one_output_of_nan_makes_its_example_wrong() -> None:
    outputs = torch.tensor([[NAN, 0.0], [5.0, 1.0], [0.0, NAN]])
    right, labels, *_ = score_outputs(Task(), outputs, torch.tensor([0, 0, 1]))
    assert (right, labels) == (1.0, 3.0)


class Overflowing(nn.Module):
    """Its outputs for very large inputs are no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        return h - h**3 / 100


def some_overflow() -> fb.Federation:
    """Ten clients, of which three have a row of very large numbers among those they are tested
    on.
    """
    x = np.random.default_rng(0).normal(size=(600, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    parts = []
    for client in range(10):
        own, labels = x[client::10], y[client::10]
        if client < 3:
            own[[40, 50]] *= 1e19
        cut = lambda a, b, own=own, labels=labels: (own[a:b], labels[a:b])
        parts.append(Parts(train=cut(0, 40), validation=cut(40, 50), test=cut(50, 60)))
    return fb.Federation.from_parts(parts)


@pytest.mark.parametrize("main", ["loss", "accuracy"])
def test_a_loss_of_nan_is_endless_and_its_client_is_not_left_out(main: str, tmp_path: Path) -> None:
    data = some_overflow().with_task(Task(metrics=[main]))
    method = fb.FedAvg(fb.Net.of(Overflowing), lr=0.1)
    seen: list[fb.RoundDone] = []
    result = fb.run(method, data, rounds=2, out=tmp_path / "run", on_round=seen.append)
    losses = result.scores("loss")
    assert {client for client, loss in losses.items() if loss == np.inf} == {0, 1, 2}
    assert len(losses) == 10
    summary = result.summary(metric="loss")
    assert (summary["mean"], summary["worst"], summary["clients"]) == (np.inf, np.inf, 10)
    assert summary["loss"] == result.summary()["loss"] == np.inf
    assert {row["test"] for row in result.curves("loss")} == {np.inf}
    assert {done.losses["test"] for done in seen} == {np.inf}
    if main == "loss":
        assert result.curves()[-1]["test"] == np.inf
        assert fb.leaderboard({"a": result})[0]["mean"] == np.inf


def test_a_loss_of_nan_in_an_older_record_is_endless_too(tmp_path: Path) -> None:
    """Which has NULL for it, also beside labels."""
    with closing(RunStore.create(tmp_path / "run.sqlite")) as store:
        row = ClientMetric("test", "personal", 0, 1.0, 4.0, NAN, {"loss": None})
        none = ClientMetric("test", "personal", 1, 0.0, 0.0, NAN)
        other = ClientMetric("test", "personal", 2, 1.0, 4.0, 0.5)
        store.record_round(RoundRecord(1, 1.0, 3, [row, none, other]))
        assert store.scores(1, "test", "personal", "loss") == {0: np.inf, 2: 0.5}
        assert curves_of(store, "loss") == [{"round": 1, "test": np.inf}]
        store.record_round(RoundRecord(2, 1.0, 2, [row, none]))  # in which nobody's is recorded
        assert store.scores(2, "test", "personal", "loss") == {}
        assert curves_of(store, "loss")[1] == {"round": 2, "test": None}


def test_a_label_of_nan_is_wrong_where_it_is_not_there() -> None:
    outputs = torch.tensor([[NAN, -1.0], [2.0, NAN]])
    right, labels, *_ = score_outputs(Task("multi-label"), outputs, torch.zeros(2, 2))
    assert (right, labels) == (1.0, 4.0)


@pytest.mark.parametrize("name", ["f1_macro", "f1_micro"])
def test_f1_of_nan_is_as_bad_as_can_be(name: str) -> None:
    outputs = torch.tensor([[NAN, 0.0], [5.0, 1.0]])
    *_, value = score_outputs(Task(metrics=[name]), outputs, torch.tensor([0, 0]))
    assert value == -np.inf
    metric = METRICS[name]
    assert isinstance(metric, Metric)
    assert metric.memory(outputs[1:], torch.tensor([0])).tolist() == [0.0]


def test_a_server_that_concludes_with_nan_is_named(tmp_path: Path) -> None:
    method = Dividing(fb.Net.of(lambda: nn.Linear(4, 3)), lr=0.01)
    with pytest.warns(UserWarning) as seen:
        result = fb.run(method, points(), rounds=2, out=tmp_path / "run")
    texts = [str(one.message) for one in seen]
    assert 'Dividing.conclude gives NaN in block "model" in round 1: correct it there' in texts
    assert not [text for text in texts if "learning rate" in text]
    assert result.refused().advice.startswith("Dividing.conclude gives NaN")
