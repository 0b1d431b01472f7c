"""Runs that several checks look at, done once for each example."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.engines.round import Engine
from fedblocks.testing.compare import copy_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.rounds import KeptRun, run


def usual_run(example: Example, engine: Engine) -> KeptRun:
    """The rounds of the example as it is, whose trained models are tried on the test data."""
    return _kept_run(example, engine, "usual", example.cohorts())


def full_run(example: Example, engine: Engine) -> KeptRun:
    """Rounds in which everybody takes part: as many as the example has, and two at least."""
    return _kept_run(example, engine, "full", [example.everybody] * max(2, example.rounds))


def _kept_run(example: Example, engine: Engine, name: str, cohorts: Sequence[list[int]]) -> KeptRun:
    kept = example.runs.get((name, engine.name))
    if kept is None or not kept.is_unchanged():
        done = run(example.experiment(), engine, cohorts, score="test")
        copies = [copy_leaves(state) for state in done.states]
        kept = KeptRun(done.experiment, done.states, done.reports, engine, copies)
        example.runs[name, engine.name] = kept
    return kept
