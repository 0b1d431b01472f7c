"""Checks 1 to 4, 6 and 15: the result of a round depends on nothing that it should not
depend on.
"""

from __future__ import annotations

import torch

from fedblocks.core.blocks import PerClient, Pool, ServerOnly, server_name
from fedblocks.core.state import State
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import (
    Leaves,
    close,
    copy_leaves,
    differences,
    judged,
    report_leaves,
    state_leaves,
)
from fedblocks.testing.example import Example
from fedblocks.testing.federations import with_junk_first
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rigged import Rigged, pad_with, recast
from fedblocks.testing.rounds import ENGINES, KeptRun, Run, run
from fedblocks.testing.storage import from_bytes, to_bytes
from fedblocks.testing.usual import usual_run


def engines_agree(example: Example) -> list[LearningProblem]:
    """States, bytes, refusals and scores are the same in every engine and for every chunk size."""
    expected = _usual_outcome(example, Sequential())
    tolerance = close(example.experiment())
    others = {
        chunk: _outcome(example, example.experiment(), Vectorised(chunk=chunk)) for chunk in (1, 4)
    }
    others[Vectorised().chunk] = _usual_outcome(example, Vectorised())
    failures: list[LearningProblem] = []
    for chunk, other in others.items():
        sentences = differences(other, expected, tolerance)
        failures += problems(sentences, f"vectorised (chunk={chunk}) against sequential")
    return failures


def _usual_outcome(example: Example, engine: Engine) -> Leaves:
    done = usual_run(example, engine)
    return _everything(done, done.scores)


def _outcome(example: Example, experiment: Experiment, engine: Engine) -> Leaves:
    done = run(experiment, engine, example.cohorts(), score="test")
    return _everything(done, judged(experiment, done.last, engine))


def _everything(done: Run, scores: Leaves) -> Leaves:
    leaves = {**state_leaves(done.last), **scores}
    for number, report in enumerate(done.reports):
        own = report_leaves(report)
        own["refusals"] = torch.tensor([refusal.client for refusal in report.refusals])
        leaves |= {f"round {number}, {place}": value for place, value in own.items()}
    return leaves


def resume(example: Example) -> list[LearningProblem]:
    """Stopping after every round, through bytes and with new objects, changes no bit."""
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        straight = usual_run(example, engine)
        state = example.experiment().start()
        for clients in example.cohorts():
            experiment = example.experiment()
            state = from_bytes(*to_bytes(run_round(experiment, state, clients, engine)[0]))
        sentences = differences(state_leaves(state), state_leaves(straight.last))
        scores = judged(example.experiment(), state, engine)
        sentences += differences(scores, straight.scores)
        failures += problems(sentences, f"resumed against uninterrupted, {engine.name}")
    return failures


def client_order(example: Example) -> list[LearningProblem]:
    """Neither the order in which clients are named matters, nor which number each of them has, nor
    that some are in a group of their own.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        expected = usual_run(example, engine)
        another = [[*clients[1:], clients[0]] for clients in example.cohorts()]
        shuffled = run(example.experiment(), engine, another)
        sentences = differences(state_leaves(shuffled.last), state_leaves(expected.last))
        failures += problems(sentences, f"clients named in another order, {engine.name}")
        sentences = _renumber(example, engine, expected)
        failures += problems(sentences, f"clients renumbered, {engine.name}")
    return failures + _regroup(example)


def _regroup(example: Example) -> list[LearningProblem]:
    """Every second client in another group with the same method: nothing else."""
    twins = {f"{group}, again": method for group, method in example.methods().items()}
    methods = {**example.methods(), **twins}
    members = example.members or [*example.groups] * example.federation.clients
    groups = [f"{own}, again" if place % 2 else own for place, own in enumerate(members)]
    experiment = Experiment(methods, example.federation, example.seed, groups)
    state = run(experiment, Sequential(), example.cohorts()).last
    expected = usual_run(example, Sequential())
    sentences = differences(
        state_leaves(state), state_leaves(expected.last), close(example.experiment())
    )
    return problems(sentences, "clients of one method in two groups")


def _renumber(example: Example, engine: Engine, expected: KeptRun) -> list[str]:
    """The same clients under other numbers, each with the batches and the noise that it had."""
    origins = example.everybody[::-1]
    number = {origin: new for new, origin in enumerate(origins)}
    experiment = example.experiment(example.federation.subset(origins), origins)
    rigged = Rigged(engine, recast(dict(enumerate(origins))))
    cohorts = [[number[c] for c in clients] for clients in example.cohorts()]
    state = run(experiment, rigged, cohorts).last
    ours = {
        **_known(experiment, state, number),
        **_reorder(judged(experiment, state, rigged), number),
    }
    same = {c: c for c in origins}
    theirs = {**_known(expected.experiment, expected.last, same), **expected.scores}
    return differences(ours, theirs, close(experiment))


def _known(experiment: Experiment, state: State, number: dict[int, int]) -> Leaves:
    """What can be compared under new numbers: a pool's slots may be numbered by its
    clients, so only scores tell.
    """
    server = dict(state.server)
    for method in experiment.methods.values():
        for name, block in method.blocks().items():
            if isinstance(block, Pool | ServerOnly):
                server.pop(server_name(name, block), None)
            if isinstance(block, PerClient):
                rows = torch.tensor([number[c] for c in range(len(number))])
                slots = state.server[server_name(name, block)]
                server[server_name(name, block)] = {k: v[rows] for k, v in slots.items()}
    old = {new: origin for origin, new in number.items()}
    private = {old[client]: blocks for client, blocks in state.private.items()}
    return state_leaves(State(state.round, server, {}, private))


def _reorder(scores: Leaves, number: dict[int, int]) -> Leaves:
    """Scores under the numbers that the clients had."""
    old = {f"client {new}:": f"client {origin}:" for origin, new in number.items()}
    return {
        place.replace(label, old[label]): v
        for place, v in scores.items()
        for label in old
        if label in place
    }


def input_unchanged(example: Example) -> list[LearningProblem]:
    """Rounds and evaluations leave every state that they were given, and the data, as they were."""
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment = example.experiment()
        data = {"inputs": experiment.data.x.clone(), "labels": experiment.data.y.clone()}
        state = experiment.start()
        kept: list[tuple[State, Leaves]] = []
        for clients in example.cohorts():
            kept.append((state, copy_leaves(state)))
            judged(experiment, state, engine)
            state, _ = run_round(experiment, state, clients, engine)
        for number, (before, copies) in enumerate(kept):
            what = f"the state that went into round {number} was changed, {engine.name}"
            failures += problems(differences(state_leaves(before), copies), what)
        sentences = differences({"inputs": experiment.data.x, "labels": experiment.data.y}, data)
        failures += problems(sentences, f"the data were changed, {engine.name}")
    return failures


def padding(example: Example) -> list[LearningProblem]:
    """What stands in padded rows reaches nothing: 0 or 1000, the first label or the last."""
    expected = _usual_outcome(example, Sequential())
    results = []
    for value, label in ((0.0, 0), (1e3, example.federation.classes - 1)):
        experiment = example.experiment(with_junk_first(example.federation, value, label))
        engine = Rigged(Vectorised(), pad_with(value, label))
        results.append(_outcome(example, experiment, engine))
    zeros, thousands = results
    failures = problems(differences(thousands, zeros), "1000 instead of 0 in padded rows")
    sentences = differences(zeros, expected, close(example.experiment()))
    return failures + problems(sentences, "padded, in one stack, against one by one")


def evaluation_changes_nothing(example: Example) -> list[LearningProblem]:
    """Evaluating twice gives the same, and training goes on as if nobody had looked."""
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment = example.experiment()
        state = experiment.start()
        cohorts = example.cohorts()[:2]
        for clients in cohorts:
            first = judged(experiment, state, engine)
            second = judged(experiment, state, engine)
            failures += problems(
                differences(second, first), f"the second evaluation, {engine.name}"
            )
            state, _ = run_round(experiment, state, clients, engine)
        unseen = usual_run(example, engine).states[len(cohorts)]
        sentences = differences(state_leaves(state), state_leaves(unseen))
        failures += problems(sentences, f"with evaluations between rounds, {engine.name}")
    return failures
