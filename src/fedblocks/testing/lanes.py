"""Check 21: runs that are done together, as lanes of one stack, end as each alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from fedblocks.core.errors import UserError
from fedblocks.core.introspection import options_of
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD
from fedblocks.data.federation import Federation
from fedblocks.engines import speculation
from fedblocks.engines.close_round import Report
from fedblocks.engines.lanes import Lanes, why_not
from fedblocks.engines.lanes.numbers import is_number, number_options
from fedblocks.engines.round import Engine, Evaluation, Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import Leaves, close, differences, report_leaves, state_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.federations import with_broken_inputs
from fedblocks.testing.learning import other_value
from fedblocks.testing.problems import LearningProblem, problems

Cohorts = Sequence[Sequence[int]]  # one for each round


@dataclass(frozen=True, eq=False)
class LaneCase:
    """A run among others, and what is special about it."""

    says: str
    experiment: Experiment
    cohorts: Cohorts


def lanes_agree(example: Example) -> list[LearningProblem]:
    """Runs with other seeds, numbers, cohorts and data, some of which fail, end in one stack
    as they end alone. Runs that cannot be lanes, and are refused as such, have nothing to keep.
    """
    lanes, engine = lane_cases(example), Vectorised()
    if why_not([lane.experiment for lane in lanes]) is not None:
        return []
    together = _run_together(lanes, engine)
    failures: list[LearningProblem] = []
    for lane, leaves in zip(lanes, together, strict=True):
        alone = _run_alone(lane, engine)
        sentences = differences(leaves, alone, close(lane.experiment))
        failures += problems(sentences, f"the lane {lane.says}, beside others against alone")
    return failures


def lane_cases(example: Example) -> list[LaneCase]:
    """Runs of the example, one with another value of each of its numbers, and one with all of
    these; inputs that are no real numbers cannot be broken.
    """
    plain, cohorts = with_all_numbers(example), (example.cohorts() * 2)[:2]
    later = cohorts[::-1]
    other = replace(plain, seed=plain.seed + 1)
    free = [name for name, reason in number_reasons(plain).items() if reason is None]
    others = {name: _change_numbers(plain, [name]) for name in free}
    broken, one = plain.data, cohorts[0][0]
    if plain.data.x.is_floating_point():
        for client in example.everybody:
            broken = with_broken_inputs(broken, client)
    return [
        LaneCase("as it is", plain, cohorts),
        LaneCase("that diverges", replace(plain, data=broken), later),
        *(LaneCase(f"with another {name}", own, cohorts) for name, own in others.items()),
        LaneCase(
            "with all numbers changed",
            _change_numbers(other, free),
            [example.everybody] * len(cohorts),
        ),
        LaneCase("with a refused client", replace(plain, data=_break_one(plain, one)), cohorts),
        # not the last round, in which all servers are in the stack
        LaneCase("that skips a round", other, [[], *later[1:]]),
    ]


def _break_one(experiment: Experiment, client: int) -> Federation:
    data = experiment.data
    return with_broken_inputs(data, client) if data.x.is_floating_point() else data


def number_reasons(experiment: Experiment) -> dict[str, str | None]:
    """Every number of a method, and why lanes cannot differ in it; nothing if they can."""
    method = next(iter(experiment.methods.values()))
    names = [name for name in number_options(type(method)) if is_number(getattr(method, name))]
    names += ["optimizer"] if method.optimizer == _OPTIMIZERS[0] else []
    return {name: why_not([experiment, _change_numbers(experiment, [name])]) for name in names}


# lanes have momentum on or off together, so that one beside plain SGD shows nothing
_OPTIMIZERS = SGD(momentum=0.5, weight_decay=0.01), SGD(momentum=0.8, weight_decay=0.02)


def with_all_numbers(example: Example) -> Experiment:
    """The example with a value for every number that may be left out, as far as it can have
    one beside the others.
    """
    method = next(iter(example.methods().values()))
    known = options_of(type(method))
    left_out = [name for name in number_options(type(method)) if getattr(method, name) is None]
    values = {name: other_value(None, known[name]) for name in left_out}
    values |= {"optimizer": _OPTIMIZERS[0]}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        with suppress(UserError):  # does not go with the others
            example.experiment(**changes, **{name: value})
            changes[name] = value
    return example.experiment(**changes)


def _change_numbers(experiment: Experiment, names: Sequence[str]) -> Experiment:
    methods = {group: _changed(method, names) for group, method in experiment.methods.items()}
    return replace(experiment, methods=methods)


def _changed(method: Method, names: Sequence[str]) -> Method:
    known = options_of(type(method))
    values: dict[str, Any] = {
        name: _OPTIMIZERS[1]
        if name == "optimizer"
        else other_value(getattr(method, name), known[name])
        for name in names
    }
    return replace(method, **values)


def _run_together(lanes: Sequence[LaneCase], engine: Engine) -> list[Leaves]:
    """All lanes as one stack, their servers too, as on a GPU."""
    together = Lanes([lane.experiment for lane in lanes])
    states = [lane.experiment.start() for lane in lanes]
    reports: list[list[Report]] = [[] for _ in lanes]
    with patch.object(speculation, "pays_on", lambda device: True):
        for cohorts in zip(*(lane.cohorts for lane in lanes), strict=True):
            ends = together.run_round(states, cohorts, engine, "test")
            states = [state for state, _ in ends]
            for own, (_, report) in zip(reports, ends, strict=True):
                own.append(report)
    everybody = [range(lane.experiment.data.clients) for lane in lanes]
    evaluations = [
        together.evaluate_parts(states, everybody, engine, ["test"], joining)
        for joining in (False, True)
    ]
    ends_of = zip(states, reports, zip(*evaluations, strict=True), strict=True)
    return [
        {**state_leaves(state), **_outcome_leaves(own, by_joining)}
        for state, own, by_joining in ends_of
    ]


def _run_alone(lane: LaneCase, engine: Engine) -> Leaves:
    state, reports = lane.experiment.start(), []
    for clients in lane.cohorts:
        state, report = run_round(lane.experiment, state, clients, engine, "test")
        reports.append(report)
    everybody = range(lane.experiment.data.clients)
    evaluations = [
        evaluate_parts(lane.experiment, state, everybody, engine, ["test"], joining)
        for joining in (False, True)
    ]
    return {**state_leaves(state), **_outcome_leaves(reports, evaluations)}


def _outcome_leaves(reports: Sequence[Report], evaluations: Sequence[Evaluation]) -> Leaves:
    """What rounds and evaluations say, with what is not finite named instead of compared."""
    leaves: Leaves = {}
    for number, report in enumerate(reports):
        leaves |= {f"round {number}, {k}": v for k, v in report_leaves(report).items()}
        refused = [refusal.client for refusal in report.refusals]
        leaves[f"round {number}, refusals"] = torch.tensor(refused)
    for kind, evaluation in zip(("", " of a joining client"), evaluations, strict=True):
        leaves |= {
            f'view "{view}"{kind}, client {client}: correct, scored, loss': torch.tensor(counts)
            for view, scores in evaluation.scores["test"].items()
            for client, counts in scores.items()
        }
    finite = {f"{place}: finite": torch.isfinite(value) for place, value in leaves.items()}
    return finite | {place: torch.nan_to_num(value) for place, value in leaves.items()}
