"""Runs of every task: equal on all engines, judged by the main metric in its own direction."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.task_kinds import KINDS
from fedblocks.export.personal import personal
from fedblocks.runs.trackers import numbers_of
from tests.representatives import case_of

from .conftest import labels, net, numbers

ALL_OF_LABELS = [*KINDS["multi-label"].metrics, *KINDS["multi-label"].other_metrics, "loss"]


def worst_error(outputs: torch.Tensor, y: torch.Tensor) -> float:
    return float((outputs - y).abs().nan_to_num(0).max())


def own_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs - y).abs().mean(1).sqrt()


def known_or_not(task: fb.Task) -> fb.Federation:
    """Both numbers of a row are known, or none."""
    data = numbers(task)
    return replace(data, y=data.y.masked_fill(data.y.isnan().any(1, keepdim=True), torch.nan))


TASKS = {
    "numbers": (numbers, fb.Task("regression"), 2),
    "own loss and metric": (
        known_or_not,
        fb.Task("regression", own_loss, [fb.Metric("worst_error", worst_error, "lower"), "r2"]),
        2,
    ),
    "labels": (labels, fb.Task("multi-label", metrics=ALL_OF_LABELS), 3),
    "weighted labels": (
        labels,
        fb.Task("multi-label", class_weights=(1, 2, 3), label_smoothing=0.1),
        3,
    ),
}


# every task by mixtures, whose outputs are probabilities; every method with numbers
PAIRS = [
    case_of(name, method, always=method is fb.FedEM or name == "numbers")
    for name in TASKS
    for method in (fb.FedAvg, fb.FedPer, fb.FedEM, fb.FedAvgFT)
]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_engines_agree_on_every_metric_of_every_client(name: str, method: type[fb.Method]) -> None:
    """Every method on every task in `make test-rest`."""
    make, task, outputs = TASKS[name]
    runs = {
        engine: fb.run(
            method(net(outputs), lr=0.1, epochs=3, batch_size=4),
            make(task),
            2,
            engine,
            engine=engine,  # type: ignore[arg-type]
        )
        for engine in ("sequential", "vectorised", "processes")
    }
    one, *others = runs.values()
    for metric in (one.metric.name, *one.metric.others, "loss"):
        wanted = one.scores(metric)
        assert len(wanted) == 6
        for other in others:
            assert other.scores(metric) == pytest.approx(wanted, abs=1e-4)


def test_the_record_has_the_metrics_of_the_models_predictions() -> None:
    data = numbers()
    method = fb.FedPer(net(2), lr=0.1)
    run = fb.run(method, data, 3, "run")
    for client in (0, 4):
        rows = data.test[client]
        error = (personal(run, client, method, data).predict(data.x[rows]) - data.y[rows]).numpy()
        assert run.scores()[client] == pytest.approx(np.nanmean(np.abs(error), 0).mean(), abs=1e-6)
        rmse = np.sqrt(np.nanmean(error**2, 0)).mean()
        assert run.scores("rmse")[client] == pytest.approx(rmse, abs=1e-6)


def test_less_is_better_in_summaries_the_best_round_and_who_is_worse_off() -> None:
    data = numbers()
    run = fb.run(fb.FedAvg(net(2), lr=0.05), data, 6, "run")
    other = fb.run(fb.Local(net(2), lr=0.1), data, 6, "local")
    values = run.scores()
    summary = run.summary(reference=other)
    assert summary["worst"] == max(values.values())
    assert summary["bottom_decile"] == max(values.values())  # the worst of six
    worse = [values[c] > other.scores()[c] for c in values]
    assert summary["share_below_reference"] == sum(worse) / 6 and sum(worse) > 0
    curve = {row["round"]: row["validation"] for row in run.curves()}
    assert run.best is not None and curve[run.best.round] == min(curve.values()) < curve[1]


def test_another_metric_has_its_own_summary_and_curve_with_its_own_direction() -> None:
    run = fb.run(fb.FedAvg(net(2), lr=0.05), numbers(), 2, "run")
    r2 = run.summary(metric="r2")
    assert r2["worst"] == min(run.scores("r2").values())
    assert run.curves("r2")[-1]["test"] == pytest.approx(r2["mean"])
    assert run.curves("loss")[-1]["test"] == pytest.approx(np.mean([*run.scores("loss").values()]))
    with pytest.raises(fb.UserError, match='no metric "accuracy"'):
        run.accuracies()


def test_a_comparison_puts_the_lowest_error_first_and_says_better_of_less() -> None:
    data = numbers()
    good, bad = fb.FedPer(net(2), lr=0.1, epochs=5), fb.FedAvg(net(2), lr=1e-4)
    found = fb.compare(
        {"local": fb.Local(net(2), lr=0.1), "fedavg": bad, "good": good}, data, 6, "c", rounds=3
    )
    assert found.metric.name == "mae" and found.rows[-1]["name"] == "fedavg"
    means = [row["mean"] for row in found.rows]
    assert means == sorted(means)
    row = next(row for row in found.rows if row["name"] == "good")
    assert row["to_fedavg"]["mean"] < 0 and row["against_fedavg"] == "better"
    assert "mae" in str(found)
    page = found.report().read_text()
    assert "mae, mean" in page and "MAE over rounds" in page and "Loss over rounds" in page


def test_the_table_of_clients_becomes_a_csv_file_with_every_digit() -> None:
    run = fb.run(fb.FedAvg(net(2), lr=0.05), numbers(), 1, "run")
    with run.clients().to_csv("clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [str(n) for n in range(6)]
    assert [float(row["test rmse"]) for row in rows] == [*run.scores("rmse").values()]


def test_trackers_are_told_the_metric_and_the_loss_by_their_names() -> None:
    seen: list[fb.RoundDone] = []
    fb.run(fb.FedAvg(net(2), lr=0.05), numbers(), 1, "run", on_round=seen.append)
    told = numbers_of(seen[0])
    assert {
        "mae/test",
        "loss/test",
        "mae/validation",
    } <= told.keys() and "accuracy/test" not in told
    assert "test mae " in seen[0].line()


class Fragile(torch.nn.Module):
    """No number where an input is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs().sum(-1, keepdim=True) > 0, self.layer(x), torch.nan)


def test_a_model_whose_outputs_are_no_numbers_is_the_worst_and_not_left_out() -> None:
    data = numbers()
    x = data.x.clone()
    x[data.test[0][0]] = 0
    broken = fb.Federation(x, data.y, data.train, data.validation, data.test, 2, task=data.task)
    run = fb.run(fb.FedAvg(fb.Net.of(Fragile), lr=0.01), broken, 1, "run")
    assert math.isinf(run.scores()[0]) and run.summary()["clients"] == 6


def test_a_run_goes_on_with_the_same_task_only() -> None:
    method = fb.FedAvg(net(2), lr=0.05)
    fb.run(method, numbers(), 1, "run")
    with pytest.raises(fb.UserError, match=r"task\.loss was squared and is absolute"):
        fb.resume("run", method, numbers(fb.Task("regression", "absolute")))
    assert fb.resume("run", method, numbers()).rounds == 1


def test_a_saved_federation_keeps_its_task(tmp_path: Path) -> None:
    data = labels(fb.Task("multi-label", metrics=["auroc"], label_smoothing=0.1))
    data.save(tmp_path / "data.npz")
    assert fb.Federation.load(tmp_path / "data.npz").task == data.task


def test_the_usual_task_leaves_no_trace_in_configuration_and_record() -> None:
    data = numbers()
    y = data.y[:, 0].nan_to_num(0).gt(0).long()
    usual = fb.Federation(data.x, y, data.train, data.validation, data.test, 2)
    run = fb.run(fb.FedAvg(net(2)), usual, 1, "run")
    assert "task" not in run.config.resolved()
    rows = fb.load_run("run").clients()
    assert [*rows[0]] == ["client", "name", "size", "test", "validation"]
    with pytest.raises(fb.DataError, match="regression"):
        fb.Federation(data.x, data.y, data.train, data.validation, data.test, 2)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (fb.Task("regression", lambda out, y: (out - y).mean()), "one number for each example"),
        (fb.Task("regression", lambda out, y: (out - y).T), "one number for each example"),
    ],
)
def test_a_loss_of_another_shape_is_refused_before_the_first_round(
    task: fb.Task, words: str
) -> None:
    with pytest.raises(fb.UserError, match=words):
        fb.run(fb.FedAvg(net(2)), numbers(task), 1, "run")


def test_weights_that_are_too_few_are_refused_before_the_first_round() -> None:
    with pytest.raises(fb.UserError, match="2 numbers for 3 outputs"):
        fb.run(fb.FedAvg(net(3)), labels(fb.Task("multi-label", class_weights=(1, 2))), 1, "run")


def test_targets_that_are_not_known_are_noted_and_infinite_ones_refused() -> None:
    data = numbers()
    assert any("missing (NaN)" in text for text in data.warnings())
    y = data.y.clone()
    y[data.train[2][0], 1] = torch.inf
    with pytest.raises(fb.DataError, match=r'infinite: row \d+ has inf \(clients: "2"\)'):
        fb.Federation(data.x, y, *data.parts.values(), 2, data.names, task=data.task).check()
    halves = torch.full_like(labels().y, 0.5)
    with pytest.raises(fb.DataError, match="neither 0 nor 1"):
        fb.Federation(data.x, halves, *data.parts.values(), 3, task=fb.Task("multi-label")).check()


def write_csv(path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["truck,speed,load,range_km,litres"]
    for _ in range(120):
        speed, load = rng.normal(size=2)
        far = "" if rng.random() < 0.05 else f"{3 * speed - load:.4f}"
        lines.append(f"truck-{rng.integers(4)},{speed:.4f},{load:.4f},{far},{load + 1:.4f}")
    path.write_text("\n".join(lines))


CONFIG = """
rounds = 3

[data]
name = "csv"
options = { path = "trucks.csv", label = "range_km, litres", user = "truck" }
partition = { name = "by_user" }

[task]
kind = "regression"
loss = "huber"
metrics = ["rmse", "r2"]

[net]
name = "mlp"
hidden = [8]

[method]
name = "fedper"
"""


def test_a_configuration_names_task_loss_and_metrics() -> None:
    write_csv(Path("trucks.csv"))
    Path("trucks.toml").write_text(CONFIG)
    run = fb.run(fb.read_config("trucks.toml"), "run")
    assert run.metric.name == "rmse" and run.summary()["clients"] == 4
    again = fb.run(fb.read_config("run/config.toml"), "again")
    assert again.scores() == run.scores()
    assert json.loads(json.dumps(run.as_json()))["metric"] == "rmse"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"regression"', '"regresion"', "task.kind"),
        ('"huber"', '"hubert"', "task.loss"),
        ('["rmse", "r2"]', '["rmsee"]', "task.metrics"),
        ('["rmse", "r2"]', '["accuracy"]', "not for regression"),
        ('loss = "huber"', "label_smoothing = 0.1", "cross-entropies"),
        ('loss = "huber"', 'losss = "huber"', "losss"),
        ('loss = "huber"', "label_smoothing = 2", "label_smoothing"),
    ],
)
def test_a_wrong_task_in_a_configuration_is_told_with_its_place(
    old: str, new: str, words: str
) -> None:
    write_csv(Path("trucks.csv"))
    Path("trucks.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises(fb.UserError) as error:
        fb.read_config("trucks.toml")
    assert words in str(error.value) and "trucks.toml" in str(error.value)


def test_a_net_without_an_output_for_each_number_is_refused() -> None:
    with pytest.raises(fb.UserError, match=r"2 numbers need \[2, 2\]"):
        fb.run(fb.FedAvg(net(1)), numbers(), 1, "run")


def test_next_tokens_are_judged_by_perplexity_whatever_the_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 5, (60, 4), generator=draw)
    y = torch.where(torch.rand(60, 4, generator=draw) < 0.2, fb.IGNORE, (x + 1) % 5)
    task = fb.Task("next-token", label_smoothing=0.3)
    data = fb.Federation.from_users(x, y, np.arange(60) % 3, task=task)
    words = fb.Net.of(lambda: torch.nn.Sequential(torch.nn.Embedding(5, 6), torch.nn.Linear(6, 5)))
    method = fb.FedAvg(words, lr=0.5)
    runs = [fb.run(method, data, 2, e, engine=e) for e in ("sequential", "vectorised")]  # type: ignore[arg-type]
    assert runs[0].scores() == pytest.approx(runs[1].scores(), rel=1e-5)
    rows = data.test[1]
    logits = personal(runs[0], 1, method, data).predict(x[rows])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[rows].flatten())
    assert runs[0].scores()[1] == pytest.approx(float(loss.exp()), rel=1e-6)
    assert runs[0].scores("accuracy")[1] == runs[0].accuracies()[1]
