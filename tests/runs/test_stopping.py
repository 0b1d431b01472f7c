"""Runs that end early because their program says so."""

from pathlib import Path

import pytest

import fedblocks as fb
from fedblocks.runs.progress import OnRound
from fedblocks.runs.storage.main_metric import MainMetric


def data() -> fb.Federation:
    return fb.small_federation(dtype=fb.small_net().dtype)


def method() -> fb.Method:
    return fb.FedAvg(fb.small_net(), lr=0.1, batch_size=4)


def stop_after(round: int) -> OnRound:
    def on_round(done: fb.RoundDone) -> None:
        if done.round == round:
            raise fb.StopRun("enough")

    return on_round


def test_a_listener_ends_a_run_cleanly_and_resume_goes_on_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    run = fb.run(method(), data(), 6, tmp_path / "run", on_round=stop_after(3))
    assert run.status == "finished" and run.rounds == 3
    assert any(note["text"] == "stopped after round 3: enough" for note in run.notes)
    whole = fb.run(method(), data(), 6, tmp_path / "whole")
    again = fb.resume(tmp_path / "run", method(), data())
    assert again.rounds == 6 and again.accuracies() == whole.accuracies()


def test_a_stopped_run_is_stored_although_no_checkpoint_was_due(tmp_path: Path) -> None:
    rare = {"every": 100}
    fb.run(method(), data(), 6, tmp_path / "run", on_round=stop_after(2), checkpoint=rare)
    assert fb.load_run(tmp_path / "run").state().round == 2


def done(round: int, score: float, better: str = "higher") -> fb.RoundDone:
    metric = MainMetric("m", better)  # type: ignore[arg-type]
    return fb.RoundDone(round, 99, 1, 0.0, 0, 0, 0, {"validation": score}, {}, metric)


def rounds_until_stop(scores: list[float], better: str, **options: float) -> int | None:
    listener = fb.EarlyStopping(2, **options)  # type: ignore[arg-type]
    for round, score in enumerate(scores, 1):
        try:
            listener(done(round, score, better))
        except fb.StopRun:
            return round
    return None


@pytest.mark.parametrize(
    ("scores", "better", "options", "end"),
    [
        ([0.1, 0.2, 0.2, 0.1, 0.3], "higher", {}, 4),
        ([0.1, 0.2, 0.1, 0.3, 0.2, 0.25], "higher", {}, 6),
        ([3.0, 2.0, 2.5, 1.0, 1.0, 1.5], "lower", {}, 6),
        ([3.0, 4.0, 3.0], "lower", {}, 3),
        ([0.1, 0.12, 0.14, 0.16], "higher", {"least": 0.05}, 3),
        # .14 is not better, .18 is, by .08 over .1; .19 and .2 are not
        ([0.1, 0.14, 0.18, 0.19, 0.2], "higher", {"least": 0.05}, 5),
        ([0.1, 0.2, 0.3, 0.4], "higher", {}, None),
    ],
)
def test_patience_ends_with_the_evaluations_that_are_no_better(
    scores: list[float], better: str, options: dict[str, float], end: int | None
) -> None:
    assert rounds_until_stop(scores, better, **options) == end


def test_a_round_without_an_evaluation_is_not_waited_for() -> None:
    listener = fb.EarlyStopping(1)
    listener(done(1, 0.5))
    for round in (2, 3):
        listener(fb.RoundDone(round, 9, 1, 0.0, 0, 0, 0, {}))
    assert listener.waited == 0


def test_test_data_stop_nothing_and_patience_is_at_least_one() -> None:
    with pytest.raises(fb.UserError, match="flatter"):
        fb.EarlyStopping(3, part="test")  # type: ignore[arg-type]
    with pytest.raises(fb.UserError, match="at least one"):
        fb.EarlyStopping(0)


def test_early_stopping_ends_a_run_that_learns_nothing(tmp_path: Path) -> None:
    still = fb.FedAvg(fb.small_net(), lr=1e-12)
    run = fb.run(still, data(), 20, tmp_path / "run", on_round=fb.EarlyStopping(3))
    assert run.rounds == 4 and "did not get better in 3" in run.notes[-1]["text"]
