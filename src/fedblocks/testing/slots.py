"""Checks 11 and 12: what uploads do to the server's slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.aggregate import aggregate
from fedblocks.core.method import Method
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines.round import Engine, Experiment
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rounds import ENGINES, Sendings, trained_groups
from fedblocks.testing.usual import full_run, usual_run

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}  # of a number: a few last digits


def unwritten_slots(example: Example) -> list[LearningProblem]:
    """A slot whose weights are all 0 keeps its value and its rule's memory, and
    disturbs no other.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment = example.experiment()
        state = full_run(example, engine).states[1]
        groups = trained_groups(experiment, state, example.cohorts()[-1], engine)
        base = _aggregate(experiment, state, groups, {})
        names = {upload.name for sent in groups.values() for upload in sent.uploads.values()}
        for name in sorted(names):
            slots = range(len(next(iter(state.server[name].values()))))
            if not any(_row_changed(base, state, name, slot) for slot in slots):
                text = f'no slot of "{name}" is ever written, {engine.name}'
                failures.append(LearningProblem(text, name))
            for slot in slots:
                after = _aggregate(experiment, state, groups, {name: slot})
                sentences = _changes(after, state, name, slot)
                if not any(_concludes(method) for method in experiment.methods.values()):
                    sentences += [f"also {text}" for text in _disturbed(after, base, name, slot)]
                where = f'slot {slot} of "{name}", which nobody writes, {engine.name}'
                failures += problems(sentences, where, name)
    return failures


def _concludes(method: Method) -> bool:
    """Whether a method does more on the server than averaging."""
    return type(method).conclude is not Method.conclude


def _aggregate(
    experiment: Experiment, state: State, groups: Mapping[str, Sendings], silent: Mapping[str, int]
) -> State:
    """The server's half of a round in which nobody writes some slots."""
    uploads = {group: _silence_all(sent.uploads, silent) for group, sent in groups.items()}
    cohorts = {group: sent.job.cohort for group, sent in groups.items()}
    return aggregate(experiment.methods, state, uploads, cohorts)


def _silence_all(uploads: Uploads, silent: Mapping[str, int]) -> Uploads:
    return {name: _silence(upload, silent.get(upload.name)) for name, upload in uploads.items()}


def _silence(upload: Upload, slot: int | None) -> Upload:
    if slot is None:
        return upload
    weights = upload.weights.clone()
    if upload.own:
        weights[upload.ids == slot] = 0
    else:
        weights[:, slot] = 0
    return replace(upload, weights=weights)


def _row(state: State, name: str, slot: int) -> dict[str, Tensor]:
    row = {k: v[slot] for k, v in state.server[name].items()}
    for block, params in state.memory.get(name, {}).items():
        row |= {f"memory {block}.{k}": v[slot] for k, v in params.items()}
    return row


def _row_changed(after: State, before: State, name: str, slot: int) -> bool:
    return bool(differences(_row(after, name, slot), _row(before, name, slot)))


def _changes(after: State, before: State, name: str, slot: int) -> list[str]:
    """What of a slot is no longer as it was, by more than rounding: a mean of equal numbers, with
    weights that sum to 1, may end in another last digit.
    """
    ours, theirs = _row(after, name, slot), _row(before, name, slot)
    near = max((ROUNDING.get(value.dtype, 0.0) for value in theirs.values()), default=0.0)
    return [f"it changed, {text}" for text in differences(ours, theirs, near)]


def _disturbed(after: State, base: State, name: str, slot: int) -> list[str]:
    """What else differs from the round in which the slot was written."""

    def rest(state: State) -> State:
        slots = {k: torch.cat([v[:slot], v[slot + 1 :]]) for k, v in state.server[name].items()}
        return replace(state, server={**state.server, name: slots}, memory={})

    return differences(state_leaves(rest(after)), state_leaves(rest(base)))


def weights(example: Example) -> list[LearningProblem]:
    """Weights are finite and not negative, and every written slot is the weighted mean
    of its uploads.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment, done = example.experiment(), usual_run(example, engine)
        for state, after, clients in zip(done.states, done.states[1:], example.cohorts()):
            groups = trained_groups(experiment, state, clients, engine)
            for group in groups.values():
                for name, upload in group.uploads.items():
                    where = f'block "{name}", round {state.round}, {engine.name}'
                    failures += problems(_wrong_weights(upload, state), where, name)
            failures += _wrong_means(experiment, state, after, groups, engine)
    return failures


def _wrong_weights(upload: Upload, state: State) -> list[str]:
    sentences = []
    if not torch.isfinite(upload.weights).all():
        sentences.append("a weight is not finite")
    if (upload.weights < 0).any():
        sentences.append(f"a weight is {upload.weights.min().item():.3g}")
    ones = replace(upload, copies={k: torch.ones_like(v) for k, v in upload.copies.items()})
    zeros = {k: torch.zeros_like(v) for k, v in state.server[upload.name].items()}
    sums, written = reduce_slots(zeros, ones)
    for key in upload.copies:
        off = (sums[key][written] - 1).abs()
        if off.numel() and off.max() > 1e-6:
            sentences.append(f"shares sum to 1 {off.max().item():+.2g}")
        if sums[key][~written].any():
            sentences.append("an unwritten slot was given something")
    return sentences


def _wrong_means(
    experiment: Experiment,
    state: State,
    after: State,
    groups: Mapping[str, Sendings],
    engine: Engine,
) -> list[LearningProblem]:
    """Plain averages, computed slot by slot and client by client, against what a round
    makes of them.
    """
    names = [upload.name for sent in groups.values() for upload in sent.uploads.values()]
    failures: list[LearningProblem] = []
    for group, sent in groups.items():
        if _concludes(experiment.methods[group]):
            continue
        for name, upload in sent.uploads.items():
            by_one_group = not upload.own and names.count(upload.name) == 1
            if by_one_group and isinstance(upload.rule, Average):
                old = state.server[upload.name]
                expected = {k: _mean(v, upload, old[k]) for k, v in upload.copies.items()}
                seen = {k: after.server[upload.name][k].double() for k in expected}
                where = f'mean of block "{name}", round {state.round}, {engine.name}'
                failures += problems(differences(seen, expected, 1e-6), where, name)
    return failures


def _mean(copies: Tensor, upload: Upload, old: Tensor) -> Tensor:
    means = []
    for slot in range(upload.weights.shape[1]):
        weights = upload.weights[:, slot].tolist()
        own = copies[:, slot] if upload.per_slot else copies
        total = sum(weights)
        if total > 0:
            terms = [w / total * copy.double() for w, copy in zip(weights, own, strict=True)]
        else:
            terms = [old[slot].double()]
        means.append(torch.stack(terms).sum(0))
    return torch.stack(means)
