"""Checks 5, 9, 10, 17 and 20: clients that are absent, empty, broken, new, or there twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedblocks.core.blocks import Pool, Shared, server_name
from fedblocks.core.state import State
from fedblocks.engines.job import Job, Trained
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import Leaves, close, differences, judged, state_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.federations import (
    with_broken_inputs,
    with_rows_doubled,
    without_training_rows,
)
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rigged import Remembering, Rigged, recast
from fedblocks.testing.rounds import ENGINES, run
from fedblocks.testing.usual import full_run, usual_run

Tamper = Callable[[Job, Trained], Trained]


def absent_clients(example: Example) -> list[LearningProblem]:
    """Who does not take part keeps its private blocks to the last bit, and is given none."""
    failures: list[LearningProblem] = []
    if example.cohort >= example.federation.clients:
        failures.append(LearningProblem("nobody is ever absent in this example"))
    for engine in ENGINES:
        second = full_run(example, engine).states[1]
        later = run(example.experiment(), engine, example.cohorts(), second)
        for states in (usual_run(example, engine).states, later.states):
            for before, after, clients in zip(states, states[1:], example.cohorts()):
                away = [c for c in example.everybody if c not in clients]
                sentences = differences(_private(after, away), _private(before, away))
                failures += problems(sentences, f"absent from round {before.round}, {engine.name}")
    return failures


def _private(state: State, clients: list[int]) -> Leaves:
    own = {c: blocks for c, blocks in state.private.items() if c in clients}
    return state_leaves(State(0, {}, {}, own))


def empty_client(example: Example) -> list[LearningProblem]:
    """A client without training data changes nothing for the others, and can be evaluated."""
    origins = [example.everybody[0], *example.everybody]
    federation = without_training_rows(example.federation.subset(origins), 0)
    cohorts = [[c + 1 for c in clients] for clients in example.cohorts()]
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment = example.experiment(federation, origins)
        absent = run(experiment, engine, cohorts)
        with_it = [[0, *clients] for clients in cohorts]
        there = run(example.experiment(federation, origins), engine, with_it)
        refused = [f"{r.detail} ({r.reason})" for report in there.reports for r in report.refusals]
        sentences = [f"somebody was refused: {text}" for text in refused]
        ours, theirs = _of_others(there.last, 0), _of_others(absent.last, 0)
        sentences += differences(ours, theirs, close(experiment))
        others = list(range(1, federation.clients))
        scores = judged(experiment, there.last, engine, others)
        expected = judged(experiment, absent.last, engine, others)
        sentences += differences(scores, expected, close(experiment))
        own = judged(experiment, there.last, engine, [0])
        broken = [place for place, value in own.items() if not torch.isfinite(value).all()]
        sentences += [f"{place}: not finite" for place in broken]
        failures += problems(sentences, f"with an empty client, {engine.name}")
    return failures


def _of_others(state: State, client: int) -> Leaves:
    """A state without what one client keeps for itself."""
    others = {c: blocks for c, blocks in state.private.items() if c != client}
    return state_leaves(replace(state, private=others))


def broken_client(example: Example) -> list[LearningProblem]:
    """A client that sends NaN, an infinity or a bad weight is refused, and as good as absent."""
    failures: list[LearningProblem] = []
    first = example.everybody[0]
    experiment = example.experiment(with_broken_inputs(example.federation, first))
    for engine in ENGINES:
        sentences = _as_if_absent(experiment, engine, first, _without(experiment, engine, first))
        failures += problems(sentences, f"client {first} trains on NaN, {engine.name}")
    whole = example.experiment()
    # what is done to the results differs, not the training
    engine = Remembering(Vectorised())
    absent = _without(whole, engine, first)
    for sends, tamper in _tampers(whole, first).items():
        sentences = _as_if_absent(whole, Rigged(engine, after=tamper), first, absent)
        failures += problems(sentences, f"client {first} sends {sends}")
    return failures


def _without(experiment: Experiment, engine: Engine, client: int) -> Leaves:
    """A round of everybody else, and another."""
    others = [c for c in range(experiment.data.clients) if c != client]
    return state_leaves(run(experiment, engine, [others] * 2).last)


def _as_if_absent(experiment: Experiment, engine: Engine, client: int, absent: Leaves) -> list[str]:
    there = run(experiment, engine, [list(range(experiment.data.clients))] * 2)
    sentences = differences(state_leaves(there.last), absent, close(experiment))
    for number, report in enumerate(there.reports):
        refused = {refusal.client for refusal in report.refusals}
        if refused != {client}:
            sentences.append(f"round {number} refused clients {sorted(refused)}, not [{client}]")
    return sentences


def _tampers(experiment: Experiment, client: int) -> dict[str, Tamper]:
    """A way to break each thing that the client sends or keeps."""
    nan, infinity = float("nan"), float("inf")
    group = next(iter(experiment.members([client])))
    out = Sequential().train(experiment.training_job(group, [client], experiment.start()))
    tampers: dict[str, Tamper] = {}
    for name, block in out.blocks.items():
        last = list(block)[-1:]  # an infinity in one tensor of a block is enough
        breaks = [*((key, nan) for key in block), *((key, infinity) for key in last)]
        for key, value in breaks:
            what = f'{value} in block "{name}", tensor "{key}"'
            tampers[what] = _break_block(client, name, key, value)
    for name in out.weights:
        for value in (nan, infinity, -1.0):
            tampers[f'a weight {value} for block "{name}"'] = _break_weight(client, name, value)
    return tampers


def _break_block(client: int, name: str, key: str, value: float) -> Tamper:
    def tamper(job: Job, out: Trained) -> Trained:
        if client not in job.ids:
            return out
        broken = out.blocks[name][key].clone(memory_format=torch.contiguous_format)
        broken[job.ids.index(client)].view(-1)[-1:] = value
        return replace(out, blocks={**out.blocks, name: {**out.blocks[name], key: broken}})

    return tamper


def _break_weight(client: int, name: str, value: float) -> Tamper:
    def tamper(job: Job, out: Trained) -> Trained:
        if client not in job.ids:
            return out
        broken = out.weights[name].clone()
        broken[job.ids.index(client)] = value
        return replace(out, weights={**out.weights, name: broken})

    return tamper


def statelessness(example: Example) -> list[LearningProblem]:
    """Clients keep exactly what is private: without it, a client seen before is like
    one never seen.
    """
    failures: list[LearningProblem] = []
    stateful = any(method.stateful for method in example.methods().values())
    for engine in ENGINES:
        done = full_run(example, engine)
        used = done.states[2]
        forgotten = replace(used, private={})
        sentences: list[str] = []
        if used.private and not stateful:
            sentences.append("clients keep something, yet no block is private")
        remembered = _next(done.experiment, used, engine, example)
        fresh = _next(example.experiment(), forgotten, engine, example)
        changed = differences(remembered, fresh)
        if stateful and not changed:
            sentences.append("private blocks change nothing: what clients keep is never used")
        if not stateful:
            seen = "a client seen before against one never seen"
            sentences += [f"{seen}: {text}" for text in changed]
        joining = differences(_joining(remembered), _joining(fresh))
        sentences += [f"a client joins with what it kept: {text}" for text in joining]
        failures += problems(sentences, engine.name)
    return failures


def _next(experiment: Experiment, state: State, engine: Engine, example: Example) -> Leaves:
    """The next round and the scores after it, without what clients keep."""
    after, _ = run_round(experiment, state, example.everybody, engine)
    scores = judged(experiment, state, engine)
    return {**state_leaves(replace(after, private={})), **scores}


def _joining(leaves: Leaves) -> Leaves:
    return {place: value for place, value in leaves.items() if "joining" in place}


def client_twice(example: Example) -> list[LearningProblem]:
    """Two clients with the same data and luck are one client with twice the data,
    trained on whole batches.
    """
    last = example.everybody[-1]
    origins = [*example.everybody, last]
    federation = example.federation.subset(origins)
    sizes = federation.train.sizes
    if sizes[last] % 2:
        text = f"client {last} needs an even number of examples, so that its halves double"
        return [LearningProblem(text)]
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        changes = {"batch_size": int(2 * sizes.max())}
        twins = example.experiment(federation, origins, **changes)
        rigged = Rigged(engine, recast({last + 1: last}))
        both = run(twins, rigged, [[*example.everybody, last + 1]] * 2).last
        double = example.experiment(with_rows_doubled(federation, last), origins, **changes)
        one = run(double, engine, [example.everybody] * 2).last
        sentences = differences(_shared(twins, both), _shared(double, one), close(twins))
        scores = judged(twins, both, rigged, example.everybody)
        expected = judged(double, one, engine, example.everybody)
        sentences += differences(scores, expected, close(twins))
        failures += problems(sentences, f"twice against double weight, {engine.name}")
    return failures


def _shared(experiment: Experiment, state: State) -> Leaves:
    """What the clients share: a client's own slots are not compared."""
    layouts = [method.blocks() for method in experiment.methods.values()]
    blocks = [(name, block) for layout in layouts for name, block in layout.items()]
    names = {server_name(name, b) for name, b in blocks if isinstance(b, Shared | Pool)}
    server = {name: slots for name, slots in state.server.items() if name in names}
    return state_leaves(State(state.round, server, {}, {}))
