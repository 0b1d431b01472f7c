"""What a run tells of its evaluations, and early stopping that a configuration asks for."""

from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.runs.grids.lanes import run_together

Table = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")


def method(lr: float = 0.1) -> fb.Method:
    return fb.FedPer(fb.small_net(), lr=lr, batch_size=4)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes"])
def test_a_listener_has_round_state_and_scores_of_every_client(engine: Any, tmp_path: Path) -> None:
    heard: list[fb.EvaluationDone] = []
    run = fb.run(
        method(), fb.small_federation(), 5, tmp_path / "run", on_evaluation=heard.append,
        evaluation=2, engine=engine,
    )  # fmt: skip
    assert [done.round for done in heard] == [2, 4, 5]
    last = heard[-1]
    assert last.rounds == 5 and last.state.round == 5
    assert last.scores("test") == run.scores()
    assert last.scores("test", metric="loss") == run.scores("loss")
    assert last.mean("validation") == pytest.approx(run.summary("validation")["mean"])
    assert last.mean("train") is None
    stored = run.state()
    for client, blocks in stored.private.items():
        for key, value in blocks["head"].items():
            assert value.equal(last.state.private[client]["head"][key])
    assert last.experiment.data.clients == 6


def test_a_listener_of_evaluations_may_end_the_run_or_interrupt_it(tmp_path: Path) -> None:
    def enough(done: fb.EvaluationDone) -> None:
        if done.round == 2:
            raise fb.StopRun("seen enough")

    run = fb.run(method(), fb.small_federation(), 9, tmp_path / "run", on_evaluation=enough)
    assert (run.status, run.rounds) == ("finished", 2)
    assert run.notes[-1]["text"] == "stopped after round 2: seen enough"

    def interrupt(done: fb.EvaluationDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.resume(tmp_path / "run", method(), fb.small_federation(), on_evaluation=interrupt)
    assert fb.load_run(tmp_path / "run").rounds == 3


def still(small: Table, **changes: Any) -> fb.Config:
    """A run that never gets better: its first evaluation is its best."""
    table = {**small, "rounds": 20, "method": {**small["method"], "lr": 1e-9}}
    return fb.Config.of({**table, "stopping": {"patience": 3}, **changes})


def test_a_configuration_asks_for_early_stopping(small: Table, tmp_path: Path) -> None:
    run = fb.run(still(small), tmp_path / "run")
    assert (run.status, run.rounds) == ("finished", 4)
    text = "stopped after round 4: validation accuracy did not get better in 3 evaluations"
    assert run.notes[-1]["text"] == text
    assert run.state().round == 4


def test_patience_is_counted_in_evaluations_of_the_part_that_is_named(
    small: Table, tmp_path: Path
) -> None:
    stopping = {"patience": 2, "part": "train", "least": 0.01}
    evaluation = {"every": 3, "parts": ["train", "test"]}
    run = fb.run(still(small, stopping=stopping, evaluation=evaluation), tmp_path / "run")
    assert run.rounds == 9


def test_a_run_that_was_stopped_goes_on_with_the_patience_that_is_left(
    small: Table, tmp_path: Path
) -> None:
    def interrupt(done: fb.RoundDone) -> None:
        if done.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(still(small), tmp_path / "run", on_round=interrupt)
    assert fb.resume(tmp_path / "run").rounds == 4


def test_a_run_that_has_stopped_itself_stays_so_unless_it_is_extended(
    small: Table, tmp_path: Path
) -> None:
    fb.run(still(small), tmp_path / "run")
    again = fb.resume(tmp_path / "run")
    assert (again.status, again.rounds) == ("finished", 4)
    longer = fb.resume(tmp_path / "run", rounds="+5")
    assert longer.rounds == 8  # the fifth round is the first that patience knows


def test_every_lane_has_patience_of_its_own(small: Table, tmp_path: Path) -> None:
    shared: Table = {"engine": "vectorised", "rounds": 6, "stopping": {"patience": 2}}
    learns = still(small, method={**small["method"], "lr": 0.1}, **shared)
    rests = still(small, **shared)
    run_together([rests, learns], [tmp_path / "rests", tmp_path / "learns"])
    apart = [fb.run(c, tmp_path / str(n)).rounds for n, c in enumerate((rests, learns))]
    together = [fb.load_run(tmp_path / name).rounds for name in ("rests", "learns")]
    assert together == apart and together[0] == 3 < together[1]


def test_python_may_ask_for_it_too(tmp_path: Path) -> None:
    run = fb.run(method(1e-9), fb.small_federation(), 9, tmp_path / "run", stopping=2)
    assert run.rounds == 3


@pytest.mark.parametrize(
    ("stopping", "message"),
    [
        ({"patience": 0}, "patience"),
        ({"patience": 2, "part": "test"}, "part"),
        ({"patience": 2, "part": "train"}, "train is not among evaluation.parts"),
    ],
)
def test_what_could_not_stop_a_run_is_refused(small: Table, stopping: Table, message: str) -> None:
    with pytest.raises(fb.UserError, match=message):
        fb.Config.of({**small, "stopping": stopping})


def test_a_run_without_validation_data_cannot_be_stopped_by_them(
    small: Table, tmp_path: Path
) -> None:
    data = {**small["data"], "split": [0.8, 0.0, 0.2]}
    with pytest.raises(fb.DataError, match="no client has validation data"):
        fb.run(still(small, data=data), tmp_path / "run")


def test_a_real_federation_refuses_it(small: Table, tmp_path: Path) -> None:
    from fedblocks.flower.hosts.federation import new_run

    with pytest.raises(fb.UserError, match="is for simulated runs"):
        new_run(still(small), tmp_path / "run", [])
