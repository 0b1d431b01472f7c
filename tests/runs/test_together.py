"""Runs as lanes of one: each folder ends as if its run had been alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, RunFolderError
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.runs import loop
from fedblocks.runs.build import prepare
from fedblocks.runs.grids import grid
from fedblocks.runs.grids.lanes import fits, rounds_done, run_together, worth_it
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run


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
    assert not worth_it([one, prepare(config(1))])  # on a CPU they run one after the other


def test_a_comparison_takes_the_new_seeds_of_a_method_together_where_that_is_worth_it(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(grid.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(grid, "worth_it", fits)
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
        # scaffold's hooks use the learning rate: its lanes differ in seeds, all of which diverge or
        # none
        rates = (0.1, 1e12, 0.2) if method != "scaffold" else (0.1, 0.1, 0.1)
        configs = [config(seed, lr, method) for seed, lr in enumerate(rates)]
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
        assert (load_run(path).status, load_run(path).rounds, rounds_done(path)) == (
            "interrupted",
            2,
            2,
        )
    together = [*run_together(configs, folders), resume(tmp_path / "alone")]
    for one, own in zip(together, (*configs, configs[0])):
        other = run(own, tmp_path / f"whole-{one.folder.name}")
        assert (one.status, one.rounds) == ("finished", 3)
        assert one.accuracies("test") == other.accuracies("test")


def test_runs_that_stopped_after_different_rounds_are_no_lanes(tmp_path: Path):
    def end(done: RoundDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config(0), tmp_path / "0", end)
    with pytest.raises(RunFolderError, match="different rounds"):
        run_together([config(0), config(1)], [tmp_path / "0", tmp_path / "1"])


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
