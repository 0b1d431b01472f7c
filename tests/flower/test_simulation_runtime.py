"""A federation that `flwr run` hands to Flower's simulation runtime ends as a simulated run; a
stand-in takes the place of Ray, so that the rest is tested wherever Flower is installed.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.flower import simulation
from fedblocks.flower.hosts import running
from fedblocks.flower.hosts.federation import new_run
from fedblocks.flower.hosts.process_group import ProcessGroup, find_marked
from fedblocks.runs.run import run
from tests.flower.stored_scores import scores

STAND_IN = Path(__file__).parent / "ray_stand_in"
TABLE: dict[str, Any] = {
    "rounds": 2,
    "threads": 1,
    "engine": "sequential",
    "device": "cpu",
    "data": {"name": "digits", "clients": 5, "split": [0.6, 0.2, 0.2]},
    "net": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedper", "batch_size": 16, "lr": 0.3},
    "evaluation": {"every": 2},
}
MARK = "simulation-runtime-test"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in for Ray notes what it is asked for."""
    file = tmp_path / "asked.jsonl"
    path = os.pathsep.join([str(STAND_IN), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setenv("RAY_STAND_IN", str(file))
    monkeypatch.delenv(simulation.RAY_ADDRESS, raising=False)
    monkeypatch.setattr(simulation, "need_ray", lambda: None)
    monkeypatch.setattr(simulation, "ProcessGroup", partial(ProcessGroup, mark=MARK))
    monkeypatch.setattr(running, "LOOK", 1.0)
    return file


def simulate(path: Path, rounds: list[int], **resources: Any) -> None:
    simulation.simulate(
        path,
        2,
        {"seconds": 60.0, "patience": 60.0},
        lambda done: rounds.append(done.round),
        lambda note: None,
        **resources,
    )


def test_a_run_handed_to_flowers_simulation_ends_as_a_simulated_one(
    tmp_path: Path, asked: Path
) -> None:
    config = Config.of(TABLE)
    path = new_run(config, tmp_path / "flower", [])
    rounds: list[int] = []
    simulate(path, rounds, cpus=1, gpus=0.25, address="head:6379")
    run(config, tmp_path / "simulated")
    assert rounds == [1, 2]
    assert scores(path) == scores(tmp_path / "simulated")
    assert find_marked(MARK) == []
    said = [json.loads(line) for line in asked.read_text().splitlines()]
    assert said[0] == {"address": "head:6379", "level": "warning"}
    # the stand-in has two cores and half a GPU: room for two such nodes
    assert said[1:3] == [{"resources": {"num_cpus": 1, "num_gpus": 0.25}}] * 2


def test_a_simulation_whose_cluster_is_missing_ends_with_the_cause(
    tmp_path: Path, asked: Path
) -> None:
    path = new_run(Config.of(TABLE), tmp_path / "flower", [])
    with pytest.raises(UserError, match="ended before the run") as caught:
        simulate(path, [], cpus=1, gpus=0.0, address="nowhere")
    log = path / "federation" / "logs" / "simulation.log"
    assert "no cluster of Ray at nowhere" in log.read_text()
    assert str(log) in caught.value.fix and f"simulate {path}" in caught.value.fix
    assert find_marked(MARK) == []
