"""The engine of a run: as configured, or as found by trial and then kept."""

from __future__ import annotations

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.engines.auto import trial as planner
from fedblocks.engines.memory import measure_need
from fedblocks.runs import build, engine_choice
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage.folder import RunFolder

SMALL = {
    "rounds": 3,
    "device": "cpu",
    "threads": 1,
    "data": {
        "name": "gaussian",
        "clients": 4,
        "options": {"rows": 120, "classes": 3, "features": 5},
    },
    "net": {"name": "mlp", "hidden": [6]},
    "method": {"name": "fedper", "lr": 0.1, "batch_size": 8},
}


def config(**changes) -> Config:
    return Config.of({**SMALL, **changes})


def engine_of(path) -> str | None:
    with RunFolder.open(path) as folder:
        return folder.store.meta("engine")


def test_a_run_of_several_processes_ends_where_a_sequential_one_ends_to_the_bit(tmp_path) -> None:
    states = [
        run(config(engine=engine, processes=2), tmp_path / engine).state()
        for engine in ("processes", "sequential")
    ]
    ours, theirs = (
        {**s.server, **{str(c): b["head"] for c, b in s.private.items()}} for s in states
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name][k], theirs[name][k]) for name in ours for k in ours[name])


def test_a_resumed_run_keeps_the_engine_that_was_found_for_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDBLOCKS_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(engine_choice, "WORTH_A_TRIAL", 0)
    monkeypatch.setattr(
        planner, "measure_seconds", lambda engine, job: 0.1 if engine.name == "vectorised" else 0.4
    )

    def stop(done) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config(), tmp_path / "run", on_round=stop)
    assert engine_of(tmp_path / "run") == "vectorised"
    notes = [note["text"] for note in load_run(tmp_path / "run").notes]
    assert any(
        text.startswith("engine vectorised: vectorised 100 ms, sequential 400 ms") for text in notes
    )
    monkeypatch.setattr(planner, "planned", None)  # would fail if anybody asked
    monkeypatch.setattr(engine_choice, "planned", None)
    resume(tmp_path / "run")
    assert (
        engine_of(tmp_path / "run") == "vectorised"
        and load_run(tmp_path / "run").state().round == 3
    )


def test_short_runs_are_not_tried(monkeypatch) -> None:
    monkeypatch.setattr(engine_choice, "planned", None)
    assert build.prepare(config()).engine.name in ("sequential", "vectorised")


def test_memory_bounds_the_clients_that_are_trained_at_once() -> None:
    whole = build.prepare(config(engine="vectorised"))
    need = measure_need(whole.experiment, "all", whole.config.evaluation.parts)
    memory = need.bytes(whole.cohort, whole.cohort - 1)
    prepared = build.prepare(config(engine="vectorised", memory=f"{memory}B"))
    assert prepared.engine.chunk == need.chunk(memory, whole.cohort, 64)
    with pytest.raises(UserError, match="trained one after another, needs about"):
        build.prepare(config(memory="100B"))
    with pytest.raises(UserError, match="not an amount of memory"):
        build.prepare(config(memory="much"))
