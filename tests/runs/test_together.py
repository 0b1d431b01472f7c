"""Runs as lanes of one: each folder ends as if its run had been alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, RunFolderError
from fedblocks.runs import run as single
from fedblocks.runs.build import prepare
from fedblocks.runs.grids import grid
from fedblocks.runs.grids import lanes as together_module
from fedblocks.runs.grids.lanes import fits, rounds_done, run_together, worth_it
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run


def config(seed: int, lr: float = 0.1, method: str = "fedper") -> Config:
    table = {
        "seed": seed, "rounds": 3, "engine": "vectorised", "device": "cpu", "cohort": {"size": 3},
        "data": {"name": "digits", "clients": 5, "seed": seed, "unseen": 0.2},
        "net": {"name": "mlp", "hidden": [8]},
        "method": {"name": method, "lr": lr, "batch_size": 64},
    }  # fmt: skip
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
                assert one.accuracies(part, round=round) == other.accuracies(part, round=round) != {}
        for block, params in other.state().server.items():
            for key, value in params.items():
                assert torch.allclose(one.state().server[block][key], value, atol=1e-5)


def test_runs_with_other_rounds_or_methods_do_not_fit_together():
    one = prepare(config(0))
    assert fits([one, prepare(config(1))])
    assert not fits([one, prepare(config(1, method="ditto"))])
    assert not worth_it([one, prepare(config(1))])  # on a CPU they run one after the other


def test_a_comparison_takes_the_new_seeds_of_a_method_together_where_that_is_worth_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(grid.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(grid, "worth_it", fits)
    changes = ["rounds=1", 'device="cpu"', 'engine="vectorised"']
    found = grid.play_grid(grid.read_grid("digits-fedavg", ["fedper"], 2, changes), tmp_path / "grid")
    for by_seed in found.values():
        for one in by_seed.values():
            assert one.status == "finished"
            assert any("lanes" in note["text"] for note in one.notes)


def test_a_lane_that_diverges_leaves_the_accuracies_of_the_others_as_they_were(tmp_path: Path):
    for method in ("fedavg", "pfedmb", "scaffold", "fedper", "ifca"):
        # scaffold's hooks use the learning rate: its lanes differ in seeds, all of which diverge or none
        rates = (0.1, 1e12, 0.2) if method != "scaffold" else (0.1, 0.1, 0.1)
        configs = [config(seed, lr, method) for seed, lr in enumerate(rates)]
        together = run_together(configs, [tmp_path / f"{method}-{k}" for k in range(3)])
        for number, (one, alone) in enumerate(zip(together, configs)):
            other = run(alone, tmp_path / f"{method}-alone-{number}")
            assert one.accuracies("test") == other.accuracies("test") != {}, (method, number)


def test_a_listener_that_ends_the_runs_finds_the_round_stored_and_they_go_on_from_there(tmp_path: Path):
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
        assert (load_run(path).status, load_run(path).rounds, rounds_done(path)) == ("interrupted", 2, 2)
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


def test_long_runs_are_stored_in_between_whatever_their_configuration_says(tmp_path: Path, monkeypatch):
    saved = []
    for module in (single, together_module):
        monkeypatch.setattr(module, "OFTEN", -1.0)
        monkeypatch.setattr(module, "save", lambda folder, config, state, changed: saved.append(state.round))
    seldom = Config.of({**config(0).resolved(), "checkpoint": {"every": 3}})
    run_together([seldom], [tmp_path / "lane"])
    assert saved == [1, 2, 3]
    run(seldom, tmp_path / "alone")
    assert saved == [1, 2, 3] * 2
