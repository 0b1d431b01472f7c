"""Checks 13, 14 and 16: clients learn, from each other, and every option does something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fedblocks.core.blocks import Federated
from fedblocks.core.introspection import Option, options_of
from fedblocks.core.optimizers import SGD
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import Leaves, differences, judged
from fedblocks.testing.example import Example
from fedblocks.testing.federations import with_other_data_elsewhere
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rounds import run
from fedblocks.testing.usual import full_run

FELT = 1e-6  # a loss that changes by less than this share has not changed
ROUNDS = 25  # in which training must help
# nothing to keep without
NEEDS: dict[str, dict[str, Any]] = {"keep_optimizer": {"optimizer": SGD(momentum=0.5)}}
TRAFFIC = "traffic"
FALL = 0.9  # of the loss at the start


def learn_from_each_other(example: Example) -> list[LearningProblem]:
    """Other people's data change my predictions exactly if something is shared."""
    blocks = [block for method in example.methods().values() for block in method.blocks().values()]
    shares = any(isinstance(block, Federated) for block in blocks)
    sentences: list[str] = []
    done = full_run(example, Sequential())
    for client in example.everybody[:2]:
        state = done.states[example.rounds]
        usual = judged(done.experiment, state, Sequential(), [client])
        other = with_other_data_elsewhere(example.federation, client)
        scores = _scores_of(example, other, client)
        if shares and not differences(scores, usual, FELT):
            what = f"other data elsewhere change nothing for client {client}"
            sentences.append(f"{what}, yet blocks are shared")
        if not shares:
            message = "nothing is shared, yet other data elsewhere change"
            sentences += [f"{message} {text}" for text in differences(scores, usual)]
    return problems(sentences)


def _scores_of(example: Example, federation: Federation, client: int) -> Leaves:
    """How the models of one client do, after everybody has taken part in all rounds."""
    experiment = example.experiment(federation)
    state = run(experiment, Sequential(), [example.everybody] * example.rounds).last
    return judged(experiment, state, Sequential(), [client])


def no_dead_knobs(example: Example) -> list[LearningProblem]:
    """Every numeric option, sizes of pools included, changes how the models do."""
    usual = list(_outcomes(example, {}))
    return [
        LearningProblem(f"{name} = {_brief(value)} {reason}", name)
        for name, value in _knobs(example).items()
        if (reason := _deadness(example, name, value, usual))
    ]


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _deadness(example: Example, name: str, value: Any, usual: Sequence[Leaves]) -> str:
    partner = NEEDS.get(name)
    before = _outcomes(example, partner) if partner else usual
    try:
        after = _outcomes(example, {**(partner or {}), name: value})
        # a switch may save traffic and nothing else; a number may not
        is_felt = any(
            differences(_felt(ours, value), _felt(theirs, value), FELT)
            for ours, theirs in zip(after, before)
        )
    except Exception as error:
        return f"cannot be run ({type(error).__name__}: {error}); name another value in `others`"
    now = next(iter(example.methods().values())).options()[name]
    return "" if is_felt else f"gives the same models as {name} = {now}"


def _felt(outcome: Leaves, value: Any) -> Leaves:
    counts = isinstance(value, bool)
    return {place: v for place, v in outcome.items() if counts or place != TRAFFIC}


def _outcomes(example: Example, changes: Mapping[str, Any]) -> Iterator[Leaves]:
    """How the models do with some options changed (losses, which every change moves), and
    traffic: piece by piece, so that who sees a difference need not go on.
    """
    experiment, totals = example.experiment(**changes), []
    state = experiment.start()
    for clients in example.cohorts():
        state, report = run_round(experiment, state, clients, Vectorised())
        ways = report.bytes_down, report.bytes_up
        totals += [sum(sum(row.values()) for row in way.values()) for way in ways]
        for joining in (False, True):
            scores = judged(experiment, state, Vectorised(), kinds=[joining])
            losses = {place: counts[2] for place, counts in scores.items()}
            yield {**losses, TRAFFIC: torch.tensor(totals)}


def _knobs(example: Example) -> dict[str, Any]:
    """Another value for every option that can have one."""
    method = next(iter(example.methods().values()))
    unknown = example.others.keys() - method.options().keys()
    if unknown:
        raise ValueError(f"{example.name} has no option {', '.join(sorted(unknown))}")
    own = {name for group in example.groups.values() for name in group}
    known = options_of(type(method))
    common = {name: value for name, value in method.options().items() if name not in own}
    guessed = {name: other_value(value, known[name]) for name, value in common.items()}
    knobs = {name: value for name, value in guessed.items() if value is not None}
    return {**knobs, **example.others}


def other_value(value: Any, option: Option) -> Any:
    """Another value of the same kind; None for an option that is no number."""
    kind = str(option.kind)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and "float" not in kind:
        return value - 1 if option.wrong(value + 1) else value + 1
    if isinstance(value, int | float):
        larger = value * 1.5 if value else 0.1
        return value / 2 if option.wrong(larger) else larger
    if isinstance(value, SGD):
        return SGD(momentum=0.5 if value.momentum == 0 else 0.0)
    if callable(value):
        return lambda round: 1.5 * value(round)
    if value is None and "float" in kind:
        return 0.037
    return 3 if value is None and "int" in kind else None


def training_helps(example: Example, fall: float = FALL) -> list[LearningProblem]:
    """The personal loss on the test data falls."""
    experiment = example.experiment()
    engine = Vectorised()
    state = experiment.start()
    start = lowest = _loss(example, experiment, state)
    for number in range(1, ROUNDS + 1):
        state, _ = run_round(experiment, state, example.everybody, engine)
        if number % 5 == 0:
            lowest = min(lowest, _loss(example, experiment, state))
        if lowest < fall * start:
            return []
    best = f"at best {lowest:.4g} in {ROUNDS} rounds"
    return [LearningProblem(f"the personal loss was {start:.4g} at the start and {best}")]


def _loss(example: Example, experiment: Experiment, state: State) -> float:
    scores = evaluate(experiment, state, example.everybody, Vectorised())["personal"].values()
    return sum(own[2] for own in scores) / sum(own[1] for own in scores)
