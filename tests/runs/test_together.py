"""Runs as lanes of one: each folder ends as if its run had been alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.runs import loop
from fedblocks.runs.build import prepare
from fedblocks.runs.grids import grid
from fedblocks.runs.grids.lanes import (
    Waiting,
    fits,
    run_queue,
    run_together,
    worth_it,
)
from fedblocks.runs.loop import Left
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage.folder import RunFolder


def config(seed: int, lr: float = 0.1, method: str = "fedper") -> Config:
    table = {
        "seed": seed,
        "rounds": 3,
        "engine": "vectorised",
        "device": "cpu",
        "cohort": {"size": 3},
        "data": {"name": "digits", "clients": 5, "seed": seed, "unseen": 0.2},
        "net": {"name": "mlp", "hidden": [8]},
        "method": {"name": method, "lr": lr, "batch_size": 64},
    }
    return Config.of(table)


def test_every_lane_stores_what_its_run_would_have_stored_alone(tmp_path: Path):
    configs = [config(0), config(1), config(1, lr=0.02)]
    together = run_together(configs, [tmp_path / f"lane-{k}" for k in range(3)])
    for number, (one, alone) in enumerate(zip(together, configs)):
        other = run(alone, tmp_path / f"alone-{number}")
        assert one.status == other.status == "finished"
        assert one.config == other.config
        for part in ("validation", "test", "unseen"):
            for round in (1, 2, 3):
                assert (
                    one.accuracies(part, round=round) == other.accuracies(part, round=round) != {}
                )
        for block, params in other.state().server.items():
            for key, value in params.items():
                assert torch.allclose(one.state().server[block][key], value, atol=1e-5)


def test_runs_with_other_rounds_or_methods_do_not_fit_together():
    one = prepare(config(0))
    assert fits([one, prepare(config(1))])
    assert not fits([one, prepare(config(1, method="ditto"))])
    assert worth_it([one, prepare(config(1))])  # their engine stacks clients
    loop = Config.of({**config(1).resolved(), "engine": "sequential"})
    assert fits([one, prepare(loop)]) and not worth_it([one, prepare(loop)])


def test_a_comparison_takes_the_new_seeds_of_a_method_together_where_that_is_worth_it(
    tmp_path: Path, monkeypatch
):
    changes = ["rounds=1", 'device="cpu"', 'engine="vectorised"']
    actual = grid.play_grid(
        grid.read_grid("digits-fedavg", ["fedper"], 2, changes), tmp_path / "grid"
    )
    for by_seed in actual.values():
        for one in by_seed.values():
            assert one.status == "finished"
            assert any("lanes" in note["text"] for note in one.notes)


def test_a_lane_that_diverges_leaves_the_accuracies_of_the_others_as_they_were(tmp_path: Path):
    for method in ("fedavg", "pfedmb", "scaffold", "fedper", "ifca"):
        configs = [config(seed, lr, method) for seed, lr in enumerate((0.1, 1e12, 0.2))]
        together = run_together(configs, [tmp_path / f"{method}-{k}" for k in range(3)])
        for number, (one, alone) in enumerate(zip(together, configs)):
            other = run(alone, tmp_path / f"{method}-alone-{number}")
            assert one.accuracies("test") == other.accuracies("test") != {}, (method, number)


def test_a_listener_that_ends_the_runs_finds_the_round_stored_and_they_go_on_from_there(
    tmp_path: Path,
):
    def end(done: RoundDone) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    seldom = {"checkpoint": {"every": 3}}
    configs = [Config.of({**config(seed).resolved(), **seldom}) for seed in (0, 1)]
    folders = [tmp_path / "0", tmp_path / "1"]
    with pytest.raises(Interrupted):
        run_together(configs, folders, end)
    with pytest.raises(Interrupted):
        run(configs[0], tmp_path / "alone", end)
    for path in (*folders, tmp_path / "alone"):
        assert (load_run(path).status, load_run(path).rounds) == ("interrupted", 2)
    together = [*run_together(configs, folders), resume(tmp_path / "alone")]
    for one, own in zip(together, (*configs, configs[0])):
        other = run(own, tmp_path / f"whole-{one.folder.name}")
        assert (one.status, one.rounds) == ("finished", 3)
        assert one.accuracies("test") == other.accuracies("test")


def test_runs_that_stopped_after_different_rounds_go_on_as_lanes(tmp_path: Path):
    def end(done: RoundDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config(0), tmp_path / "0", end)
    together = run_together([config(0), config(1)], [tmp_path / "0", tmp_path / "1"])
    assert_as_alone(together, tmp_path)


def assert_as_alone(together: Sequence[RunResult], tmp_path: Path) -> None:
    for number, one in enumerate(together):
        other = run(one.config, tmp_path / f"alone-{number}")
        assert (one.status, one.rounds) == (other.status, other.rounds)
        for round in range(1, other.rounds + 1):
            own = one.accuracies("test", round=round)
            assert own == other.accuracies("test", round=round) != {}


def longer(seed: int, rounds: int) -> Config:
    return Config.of({**config(seed).resolved(), "rounds": rounds})


def test_a_run_takes_the_place_of_one_that_has_ended(tmp_path: Path, monkeypatch):
    """Three clients a round each, and room for six: 1 ends after two rounds and 2 takes its place;
    3 waits until 0 has ended, and ditto until all others have.
    """
    whole, beside = Lanes.run_round, []

    def noting(lanes, states, *given, **named):
        beside.append([state.round for state in states])
        return whole(lanes, states, *given, **named)

    monkeypatch.setattr(Lanes, "run_round", noting)
    configs = [longer(0, 3), longer(1, 2), longer(2, 2), longer(3, 1), config(4, method="ditto")]
    folders = [tmp_path / f"{number}" for number in range(len(configs))]
    runs = [Waiting(prepare(own), path) for own, path in zip(configs, folders)]
    run_queue(runs, most=6)
    assert beside == [[0, 0], [1, 1], [2, 0], [1, 0], [0], [1], [2]]
    monkeypatch.undo()
    assert_as_alone([load_run(path) for path in folders], tmp_path)


def test_a_lane_whose_listener_leaves_is_stored_and_the_others_go_on(tmp_path: Path):
    def leave(done: RoundDone) -> None:
        if done.round == 2:
            raise Left

    folders = [tmp_path / "0", tmp_path / "1"]
    runs = [Waiting(prepare(config(seed)), path) for seed, path in enumerate(folders)]
    run_queue([replace(runs[0], on_round=leave), runs[1]])
    assert [(load_run(path).status, load_run(path).rounds) for path in folders] == [
        ("interrupted", 2),
        ("finished", 3),
    ]
    resume(folders[0])
    assert_as_alone([load_run(path) for path in folders], tmp_path)


def test_lanes_that_do_not_fit_the_memory_are_done_with_fewer_clients_at_once(
    tmp_path: Path, monkeypatch
):
    whole, chunks = Lanes.run_round, []

    def short_of_memory(lanes, states, clients, engine, *more, **named):
        chunks.append(engine.chunk)
        if engine.chunk > 3:
            raise torch.OutOfMemoryError("out of memory")
        return whole(lanes, states, clients, engine, *more, **named)

    monkeypatch.setattr(Lanes, "run_round", short_of_memory)
    together = run_together([config(0), config(1)], [tmp_path / "0", tmp_path / "1"])
    assert chunks == [512, 3, 3, 3]  # two lanes of three clients a round: half of six, from then on
    for one in together:
        assert one.status == "finished"
        assert [n["text"] for n in one.notes if n["round"] == 1] == [
            "out of memory: from now on 3 clients at once"
        ]


def test_a_run_alone_is_recorded_after_every_round_and_lanes_when_a_checkpoint_is_due(
    tmp_path: Path,
):
    seldom = {"checkpoint": {"every": 3}}
    configs = [Config.of({**config(seed).resolved(), **seldom}) for seed in (0, 1)]

    def rounds_seen(folder: Path, carry_out) -> list[int]:
        seen: list[int] = []
        carry_out(lambda done: seen.append(load_run(folder).rounds))
        return seen

    alone, lane = tmp_path / "alone", tmp_path / "0"
    assert rounds_seen(alone, lambda listen: run(configs[0], alone, listen)) == [1, 2, 3]
    assert rounds_seen(
        lane, lambda listen: run_together(configs, [lane, tmp_path / "1"], listen)
    ) == [0, 0, 3]


def test_long_runs_are_stored_in_between_whatever_their_configuration_says(
    tmp_path: Path, monkeypatch
):
    saved = []
    monkeypatch.setattr(loop, "OFTEN", -1.0)
    monkeypatch.setattr(
        loop, "save", lambda folder, config, state, changed: saved.append(state.round)
    )
    seldom = Config.of({**config(0).resolved(), "checkpoint": {"every": 3}})
    run_together([seldom], [tmp_path / "lane"])
    assert saved == [1, 2, 3]
    run(seldom, tmp_path / "alone")
    assert saved == [1, 2, 3] * 2


def test_scores_right_after_training_are_stored_in_the_rounds_that_each_run_evaluates(
    tmp_path: Path,
) -> None:
    """Every second round and the last: round 3 is evaluated in the shorter run alone."""
    asked = {"evaluation": {"every": 2, "local": True}}
    configs = [Config.of({**longer(0, rounds).resolved(), **asked}) for rounds in (3, 4)]
    folders = [tmp_path / "three", tmp_path / "four"]
    run_together(configs, folders)
    query = "SELECT DISTINCT round FROM client_metrics WHERE view = 'local' ORDER BY round"
    for folder, wanted in zip(folders, ([2, 3], [2, 4]), strict=True):
        with RunFolder.open(folder) as opened:
            assert [row["round"] for row in opened.store.rows(query)] == wanted
