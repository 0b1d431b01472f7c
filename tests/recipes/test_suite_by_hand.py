"""What of the suite is there and what is missing, and which data its rows had: made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.recipes.running.halving import Rung
from fedblocks.recipes.suite import coverage, page, trial
from fedblocks.recipes.suite.entrants import Entrant
from fedblocks.recipes.suite.planning import missing_runs


@pytest.mark.parametrize(
    ("stored", "seeds"), [(["0"], 2), (["0", "2"], 1), (["0", "7", "8", "9"], 2)]
)
def test_seeds_beyond_those_that_are_asked_for_make_up_for_none(
    stored: list[str], seeds: int
) -> None:
    """Three are asked for; with one of two tries done, a try in full is missing, too."""
    tuning = [{"rounds": 10}]
    entry = {"seeds": {seed: {} for seed in stored}, "tuning": tuning}
    results = SimpleNamespace(stored=lambda cell: entry)
    due, steps = [["something"]], [Rung(10, 2)]
    todo: Any = SimpleNamespace(
        results=results, seeds=3, due=lambda cell: due, rungs=lambda cell: steps
    )
    cell: Any = SimpleNamespace(points=lambda: [{}, {"method.lr": 0.1}])
    assert missing_runs(cell, todo) == (seeds, seeds + 1.0)
    due.clear()
    assert missing_runs(cell, todo) == (0, 0.0)


@pytest.mark.parametrize(("held_out", "first"), [(False, 0), (True, 1000)])
def test_data_are_compared_with_what_was_frozen_for_their_own_seed(
    held_out: bool, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {str(number): {"partition": f"p{first + number}"} for number in range(3)}
    files = [{"cells": {"kin/local": {"seeds": seeds}}}]
    # what is not frozen is not known to be other data
    frozen = {("kin", first): "p-other", ("kin", first + 1): f"p{first + 1}"}

    def is_frozen(bed: str, seed: int, partition: str) -> bool | None:
        return frozen[bed, seed] == partition if (bed, seed) in frozen else None

    monkeypatch.setattr(trial, "files_of", lambda asked: files)
    monkeypatch.setattr(trial, "is_frozen", is_frozen)
    asked = trial.SuiteTrial([Entrant("local")], [], 3, tmp_path, held_out=held_out)
    assert trial.other_data(asked) == ["kin, seed 0"]


def test_six_seeds_are_enough_and_a_bed_without_any_is_no_row() -> None:
    assert coverage._count([6, 5, 0, 7]) == "3 (1 with fewer than 6 seeds)"
    assert coverage._count([0, 6]) == "1"


def test_a_default_is_told_with_the_seeds_of_the_bed_that_has_fewest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [{"seeds": seeds} for seeds in (6, 3, 5)]
    row = {"name": "ditto", "compared": ["a", "b"], "below_both": ["b"], "scores": scores}
    monkeypatch.setattr(page, "runs_by_bed", lambda folder: [])
    monkeypatch.setattr(page, "method_rows", lambda beds: [row])
    told = {"compared": ["a", "b"], "below_both": ["b"], "seeds": 3}
    assert page.default_runs(tmp_path)["methods"] == {"ditto": told}
