"""Means of rounds in which not every client has scores: what counts, and what is said of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.runs import rounds
from fedblocks.runs.grids.tune import Trial, _rank
from fedblocks.runs.run import run
from fedblocks.runs.scored import leave_out_refused, remark_on_best
from fedblocks.runs.storage.record import ClientMetric, RefusalRow, RoundRecord
from fedblocks.runs.storage.store import RunStore

Table = dict[str, Any]


def in_rounds(scores: dict[int, dict[int, float]], folder: Path, *refused: int) -> RunStore:
    """A record with the validation accuracy of some clients in each round."""
    store = RunStore.create(folder / "run.sqlite")
    for round, by_client in scores.items():
        rows = [
            ClientMetric("validation", "personal", client, 100 * value, 100.0)
            for client, value in by_client.items()
        ]
        refusals = [RefusalRow(client, "not-finite") for client in refused]
        store.record_round(RoundRecord(round, 1.0, 3, metrics=rows, refusals=refusals))
    return store


def test_the_best_round_is_chosen_among_those_that_scored_the_most_clients(tmp_path: Path) -> None:
    """Round 2 lacks the client that does worst, so its mean is the highest."""
    store = in_rounds({1: {0: 0.9, 1: 0.1}, 2: {0: 0.9}, 3: {0: 0.9, 1: 0.2}}, tmp_path)
    assert store.best_round() == 3
    assert "rounds scored 1 to 2 clients" in remark_on_best(store)


def test_rounds_with_as_many_but_other_clients_are_told_of(tmp_path: Path) -> None:
    store = in_rounds({1: {0: 0.9, 1: 0.1}, 2: {0: 0.9, 2: 0.8}}, tmp_path, 1)
    assert "not the same ones" in remark_on_best(store)


def test_nothing_is_said_where_all_rounds_scored_the_same_clients(tmp_path: Path) -> None:
    store = in_rounds({1: {0: 0.9, 1: 0.1}, 2: {0: 0.9, 1: 0.8}}, tmp_path, 2)
    assert remark_on_best(store) == ""


def test_a_client_without_validation_rows_is_missing_in_no_round(tmp_path: Path) -> None:
    """Client 2 is in no mean, as it has nothing to be scored on; client 1 was refused once."""
    store = in_rounds({1: {0: 0.9, 1: 0.1}}, tmp_path, 1)
    scored = [ClientMetric("validation", "personal", client, 50, 100) for client in (0, 1)]
    none = ClientMetric("validation", "personal", 2, 0, 0)
    store.record_round(RoundRecord(2, 1.0, 3, metrics=[*scored, none]))
    assert remark_on_best(store) == ""


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_simulated_client_that_is_refused_is_scored_with_the_model_that_it_has(
    small: Table, tmp_path: Path, engine: str
) -> None:
    """Else means of methods that diverge on hard clients would look better."""
    small |= {"rounds": 2, "engine": engine, "faults": {"corrupt": 1.0, "clients": [1]}}
    small["evaluation"] = {"every": 1}
    result = run(Config.of(small), tmp_path / "run")
    assert len(result.accuracies()) == small["data"]["clients"] and result.remarks == []


def test_an_absent_client_is_scored_like_one_that_was_not_asked(
    small: Table, tmp_path: Path
) -> None:
    small |= {"rounds": 1, "faults": {"drop": 1.0, "clients": [1]}}
    result = run(Config.of(small), tmp_path / "run")
    assert 1 in result.accuracies() and result.remarks == []


def looked_at(*means: tuple[float, int]) -> tuple[fb.EarlyStopping, list[str]]:
    """Early stopping after some means, each over so many clients, and what it said."""
    listener, said = fb.EarlyStopping(2), []
    listener.tell = lambda note: said.append(note.text)
    for round, (mean, clients) in enumerate(means, 1):
        scores, counted = {"validation": mean}, {"validation": clients}
        listener(fb.RoundDone(round, 9, 3, 0.0, 0, 0, 0, scores, counted=counted))
    return listener, said


def test_a_mean_over_fewer_clients_counts_neither_as_better_nor_as_no_better() -> None:
    listener, said = looked_at((0.5, 3), (0.9, 2), (0.4, 3), (0.1, 2))
    assert (listener.best, listener.waited) == (0.5, 1)
    expected = "2 of 3 clients that were scored before have a score after round 2"
    assert said == [f"{expected}: such rounds do not count for early stopping"]


def test_a_mean_over_more_clients_is_the_new_measure() -> None:
    listener, said = looked_at((0.9, 2), (0.8, 2), (0.5, 3))
    assert (listener.best, listener.waited, said) == (0.5, 0, [])


def test_a_client_without_a_score_in_the_reference_is_not_compared(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a federation, where the scores of a refused client are left out."""
    whole = run(Config.of({**small, "rounds": 1}), tmp_path / "whole")
    record = rounds.record
    as_there = lambda after, report, metrics, *rest: record(
        after, report, leave_out_refused(metrics, report.refusals), *rest
    )
    monkeypatch.setattr(rounds, "record", as_there)
    small |= {"rounds": 1, "faults": {"corrupt": 1.0, "clients": [1]}}
    reference = run(Config.of(small), tmp_path / "reference")
    ours, theirs = whole.scores(), reference.scores()
    assert 1 in ours and 1 not in theirs
    everybody = small["data"]["clients"]
    assert reference.remarks[0] == f"{everybody - 1} of {everybody} scored after round 1"
    share = sum(ours[c] < theirs[c] for c in theirs) / len(theirs)
    assert whole.summary(reference=reference)["share_below_reference"] == share


def test_a_summary_says_who_has_no_score_in_its_own_round(small: Table, tmp_path: Path) -> None:
    whole = run(Config.of({**small, "rounds": 2, "evaluation": {"every": 1}}), tmp_path / "run")
    with closing(sqlite3.connect(whole.folder / "run.sqlite")) as db, db:
        db.execute("DELETE FROM client_metrics WHERE round = 1 AND client = 0")
    everybody = small["data"]["clients"]
    words = f"{everybody - 1} of {everybody} scored after round 1"
    assert words in whole.summary(round=1).remarks
    assert not any("scored after" in text for text in whole.summary().remarks)


def test_a_search_prefers_settings_under_which_no_client_is_refused() -> None:
    trials = [Trial(0, "complete", 0.9, {}, clients=3), Trial(1, "complete", 0.7, {}, clients=4)]
    assert max(trials, key=_rank).number == 1
