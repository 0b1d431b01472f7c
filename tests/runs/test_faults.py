"""Faults on purpose: a round with them is the round of those who are left."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedblocks.config.model import Config
from fedblocks.config.problems import ConfigError
from fedblocks.core.state import State
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.reports.compare import compare
from fedblocks.runs.build import prepare
from fedblocks.runs.faults import faults_of
from fedblocks.runs.result import load_run
from fedblocks.runs.rounds import cohort_of
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing.compare import state_leaves

Table = dict[str, Any]
ENGINES = ["sequential", "vectorised", "processes"]
FAULTS = {"drop": 0.2, "slow": 0.1, "crash": 0.1, "corrupt": 0.2}


@pytest.fixture
def many(small: Table) -> Table:
    """Twelve clients, of which about half have a fault in each of four rounds."""
    small |= {"rounds": 4, "faults": dict(FAULTS)}
    small["data"] |= {"clients": 12, "options": {"rows": 360, "classes": 3, "features": 5}}
    return small


def refusals(folder: Path) -> dict[tuple[int, int], str]:
    """(round, client) -> reason, as the record has it."""
    with RunFolder.open(folder) as opened:
        rows = opened.store.rows("SELECT round, client, reason FROM refusals")
    return {(row["round"], row["client"]): row["reason"] for row in rows}


def by_hand(config: Config) -> State:
    """The end of a run whose cohorts lack everybody with a fault."""
    prepared = prepare(config)
    state = prepared.experiment.start()
    for round in range(config.rounds):
        cohort = cohort_of(prepared, round)
        left = [i for i in cohort if i not in faults_of(prepared, round, cohort)]
        state, _ = run_round(prepared.experiment, state, left, Sequential(replay=False))
    return state


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "pfedmb"])
def test_a_run_with_faults_is_that_of_the_cohorts_without_them(
    many: Table, tmp_path: Path, engine: str, method: str
) -> None:
    many |= {"engine": engine, "method": {"name": method, "batch_size": 8}}
    config = Config.of(many)
    result = run(config, tmp_path / "run")
    ours, theirs = state_leaves(result.state()), state_leaves(by_hand(config))
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value.numpy(), abs=1e-5), key


def test_lanes_have_the_faults_that_each_has_alone(many: Table, tmp_path: Path) -> None:
    """Of `compare`, whose seeds are lanes of one stack where clients are stacked."""
    (tmp_path / "c.toml").write_text(tomli_w.dumps(many | {"engine": "vectorised"}))
    both = compare(tmp_path / "c.toml", ["fedavg"], seeds=2, out=tmp_path / "both")
    drawn = [refusals(lane.folder) for lane in both.runs["fedavg"].values()]
    assert drawn[0] != drawn[1]
    for seed, lane in both.runs["fedavg"].items():
        alone = run(lane.config, tmp_path / str(seed))
        assert (lane.lanes, alone.lanes) == (2, 1) and refusals(alone.folder) == drawn.pop(0)
        ours, theirs = state_leaves(lane.state()), state_leaves(alone.state())
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value.numpy(), abs=1e-5), key


def test_every_fault_is_on_record_with_its_reason(many: Table, tmp_path: Path) -> None:
    config = Config.of(many)
    run(config, tmp_path / "run")
    prepared = prepare(config)
    reasons = {"drop": "dropped-out", "slow": "late", "crash": "crashed", "corrupt": "not-finite"}
    expected = {
        (round + 1, client): reasons[fault]
        for round in range(4)
        for client, fault in faults_of(prepared, round, range(12)).items()
    }
    assert refusals(tmp_path / "run") == expected and {*expected.values()} == {*reasons.values()}
    with RunFolder.open(tmp_path / "run") as folder:
        rows = folder.store.rows("SELECT DISTINCT round, client FROM traffic")
    sent = {(row["round"], row["client"]) for row in rows}
    assert sent == {
        (round, client)
        for round in range(1, 5)
        for client in range(12)
        if expected.get((round, client)) != "dropped-out"
    }


def test_what_was_planted_is_no_reason_to_look_for_large_inputs(
    small: Table, tmp_path: Path
) -> None:
    run(Config.of(small | {"faults": {"corrupt": 1.0}}), tmp_path / "run")
    result = load_run(tmp_path / "run")
    refused = result.refused()
    assert refused.reason.endswith("too large to be squared: a fault on purpose")
    assert refused.advice == "[faults] in its configuration asks for that"
    warned = [note["text"] for note in result.notes if note["level"] == "warning"]
    assert warned and all("a fault on purpose" in text for text in warned)
    assert not any("learning rate" in text for text in warned)


def test_shares_are_kept_on_average_and_depend_on_the_seed(many: Table) -> None:
    prepared = prepare(Config.of(many))
    drawn = [faults_of(prepared, round, range(12)).values() for round in range(500)]
    for fault, share in FAULTS.items():  # 6000 draws: a deviation of 0.02 is at least 3.8 sigma
        assert sum([*one].count(fault) for one in drawn) / 6000 == pytest.approx(share, abs=0.02)
    other = prepare(Config.of(many | {"seed": 4}))
    assert faults_of(prepared, 0, range(12)) != faults_of(other, 0, range(12))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["drop", "corrupt"])
def test_a_round_without_anybody_leaves_the_models_as_they_are(
    small: Table, tmp_path: Path, engine: str, fault: str
) -> None:
    config = Config.of(small | {"engine": engine, "faults": {fault: 1.0}})
    result = run(config, tmp_path / "run")
    before, after = state_leaves(prepare(config).experiment.start()), state_leaves(result.state())
    assert result.rounds == 3 and len(refusals(tmp_path / "run")) == 3 * 4
    assert (before.pop("round"), after.pop("round")) == (0, 3) and before.keys() == after.keys()
    assert all((after[key] == value).all() for key, value in before.items())


def test_only_the_clients_named_have_faults(small: Table, tmp_path: Path) -> None:
    run(Config.of(small | {"faults": {"crash": 1.0, "clients": [2]}}), tmp_path / "run")
    assert refusals(tmp_path / "run") == {(round, 2): "crashed" for round in (1, 2, 3)}


def test_shares_above_one_in_all_are_refused(small: Table) -> None:
    with pytest.raises(ConfigError, match=r"add up to 1\.2"):
        Config.of(small | {"faults": {"drop": 0.6, "crash": 0.6}})
