"""What is read off a run: functions from a finished run and a part of the data to numbers or
curves.

Every measure returns `value`, the number that stands in the table; a figure's measure adds lists.
Values to choose from are compared by `value` on the validation part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fedblocks.engines.close_round import Report
from fedblocks.engines.round import run_round
from fedblocks.recipes.papers.flow_measures import late_validation_accuracy, word_accuracy
from fedblocks.recipes.papers.modfl_measures import side_accuracy, side_curve
from fedblocks.recipes.suite.numbers import client_counts
from fedblocks.runs.build import prepare
from fedblocks.runs.grids.lanes import fits, score_together
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import hardware
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Part
from fedblocks.runs.storage.states import state_of
from fedblocks.runs.storage.store import RunStore

Numbers: TypeAlias = dict[str, Any]  # plain values
FLOAT = 4  # bytes of a parameter


def mean_accuracy(run: RunResult, part: Part, view: str = "personal") -> Numbers:
    """Percent, the mean over clients in the last evaluation; every client counts the same."""
    return {"value": 100 * (run.summary(part, view)["mean"] or 0.0)}


def pooled_accuracy(
    run: RunResult, part: Part, clients: Sequence[int] | None = None, view: str = "personal"
) -> Numbers:
    """Percent of the examples of some clients (default: all) in the last evaluation;
    every example counts the same.
    """
    with RunFolder.open(run.folder) as folder:
        rows = folder.store.metrics(part, view, _evaluations(folder.store, part, view)[-1])
    own = [row for row in rows if clients is None or row["client"] in clients]
    correct = sum(row["correct"] for row in own)
    examples = sum(row["examples"] for row in own)
    return {"value": 100 * correct / max(examples, 1)}


def fine_tuned_accuracy(run: RunResult, part: Part) -> Numbers:
    """Percent, the mean over all clients after one more local training from what the run ended
    with; nothing is kept.

    It is the local training of the method itself, so clients that a round leaves out are fine-tuned
    like the others.
    """
    prepared = prepare(run.config)
    with hardware(run.config):
        state = state_of(
            checkpoint.load(run.folder / "checkpoints"), prepared.experiment.data.device
        )
        _, report = run_round(prepared.experiment, state, prepared.clients, prepared.engine, part)
    return _mean_of_local(report)


def fine_tuned_accuracies(runs: Sequence[RunResult], part: Part) -> list[Numbers]:
    """The same of several runs that can be lanes of one."""
    prepared = [prepare(run.config) for run in runs]
    device = prepared[0].experiment.data.device
    with hardware(runs[0].config):
        states = [state_of(checkpoint.load(run.folder / "checkpoints"), device) for run in runs]
        reports = score_together(prepared, states, part)
    return [_mean_of_local(report) for report in reports]


def _mean_of_local(report: Report) -> Numbers:
    shares = [correct / labels for correct, labels, _ in report.counts["local"].values() if labels]
    return {"value": 100 * math.fsum(shares) / len(shares)}


def accuracy_curve(run: RunResult, part: Part, view: str = "personal") -> Numbers:
    """Percent, the mean over clients, in every evaluation; with the parameters sent until then,
    both ways.

    `parameters_without_router` leaves out what a router costs, for methods that have a block of
    that name.
    """
    with RunFolder.open(run.folder) as folder:
        rounds = _evaluations(folder.store, part, view)
        means = [folder.store.summary(number, part, view)["mean"] or 0.0 for number in rounds]
        sent = [_parameters(folder.store, number) for number in rounds]
    return {
        "value": 100 * means[-1],
        "rounds": rounds,
        "accuracy": [100 * mean for mean in means],
        "parameters": [both for both, _ in sent],
        "parameters_without_router": [rest for _, rest in sent],
    }


def branch_weights(run: RunResult, part: Part, mates: int = 2) -> Numbers:
    """Who uses which branch of pFedMB: alpha of every client by round, and how many groups have a
    branch of their own.

    Clients 0..mates-1 have the same data, and so on. A group has a branch of its own if that branch
    is the largest of every member and of nobody else; `value` is the percentage of such groups.
    Clients that have not trained by a round have None in place of weights, and count in no group.
    """
    with RunFolder.open(run.folder) as folder:
        rows = folder.store.rows(
            "SELECT round, client, numbers FROM snapshots WHERE name = 'alpha' ORDER BY 1, 2"
        )
        last = _evaluations(folder.store, part, "personal")[-1]
        accuracy = folder.store.summary(last, part, "personal")["mean"]
    branches = run.config.method.table["branches"]
    softmax = run.config.method.table["alpha_param"] == "softmax"
    # round -> client -> the weights of its first layer
    alphas: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        weights = _weights(row["numbers"], branches, softmax)
        alphas.setdefault(row["round"], {})[row["client"]] = weights
    clients = range(max(client for by_client in alphas.values() for client in by_client) + 1)
    return {
        "value": _share_with_own_branch(alphas[max(alphas)], mates),
        "rounds": list(alphas),
        "alpha": [[by_client.get(client) for client in clients] for by_client in alphas.values()],
        "accuracy": 100 * (accuracy or 0.0),
        "mean_largest_alpha": [
            math.fsum(max(weights) for weights in by_client.values()) / len(by_client)
            for by_client in alphas.values()
        ],
    }


def _share_with_own_branch(weights: Mapping[int, Sequence[float]], mates: int) -> float:
    """Percent of the groups whose members all prefer one branch that no other group prefers."""
    groups: dict[int, set[int]] = {}  # group -> the preferred branches of its members
    for client, own in weights.items():
        groups.setdefault(client // mates, set()).add(own.index(max(own)))
    preferred = list(groups.values())
    has_own = [len(group) == 1 and preferred.count(group) == 1 for group in preferred]
    return 100 * sum(has_own) / len(has_own)


def configured(run: RunResult, part: Part, key: str) -> Numbers:
    """A value of the configuration itself, such as the number of branches that was
    chosen on validation data.
    """
    value: Any = run.config.resolved()
    for name in key.split("."):
        value = value[name]
    return {"value": value}


MEASURES: dict[str, Callable[..., Numbers]] = {
    "mean_accuracy": mean_accuracy,
    "pooled_accuracy": pooled_accuracy,
    "fine_tuned_accuracy": fine_tuned_accuracy,
    "accuracy_curve": accuracy_curve,
    "branch_weights": branch_weights,
    "configured": configured,
    "side_accuracy": side_accuracy,
    "side_curve": side_curve,
    "word_accuracy": word_accuracy,
    "late_validation_accuracy": late_validation_accuracy,
    "client_counts": client_counts,
}


def measure(run: RunResult, table: dict[str, Any], part: Part = "test") -> Numbers:
    """The numbers that a table such as {name = "mean_accuracy", view = "shared"} asks for."""
    options = {key: value for key, value in table.items() if key != "name"}
    numbers: Numbers = round_numbers(MEASURES[table["name"]](run, part, **options))
    return numbers


def measure_together(
    runs: Sequence[RunResult], table: dict[str, Any], part: Part
) -> list[Numbers] | None:
    """The same of several runs at once, where that is faster and possible."""
    if table != {"name": "fine_tuned_accuracy"} or not fits([prepare(run.config) for run in runs]):
        return None
    return [round_numbers(numbers) for numbers in fine_tuned_accuracies(runs, part)]


def round_numbers(value: Any, digits: int = 4) -> Any:
    """Plain values with no more digits than anybody will read."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: round_numbers(one, digits) for key, one in value.items()}
    return [round_numbers(one, digits) for one in value] if isinstance(value, list) else value


def _evaluations(store: RunStore, part: Part, view: str) -> list[int]:
    rows = store.rows(
        "SELECT round FROM means WHERE part = ? AND view = ? ORDER BY round", part, view
    )
    return [row["round"] for row in rows]


def _parameters(store: RunStore, last: int) -> tuple[int, int]:
    """Parameters that travelled until a round: all, and those of other blocks than the router."""
    query = (
        "SELECT SUM(bytes) AS all_, SUM(bytes * (block <> 'router')) AS rest FROM traffic "
        "WHERE round <= ?"
    )
    row = store.rows(query, last)[0]
    return (row["all_"] or 0) // FLOAT, (row["rest"] or 0) // FLOAT


def _weights(text: str, branches: int, softmax: bool) -> list[float]:
    first: list[float] = json.loads(text)[:branches]
    if not softmax:
        return first
    powers = [math.exp(number - max(first)) for number in first]
    return [power / math.fsum(powers) for power in powers]
