"""A federation on Flower's simulation runtime ends as a simulated one, and leaves no
process behind.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")
pytest.importorskip(
    "ray", reason="Ray is not installed: pip install 'fedblocks[flower-simulation]'"
)

from fedblocks.config.model import Config
from fedblocks.flower import simulation
from fedblocks.flower.hosts.federation import new_run
from fedblocks.flower.hosts.process_group import ProcessGroup, find_marked
from fedblocks.runs.run import run
from tests.flower.stored_scores import scores

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


def test_nodes_on_ray_end_as_a_simulated_run_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "ProcessGroup", partial(ProcessGroup, mark="ray-test"))
    config = Config.of(TABLE)
    path = new_run(config, tmp_path / "ray", [])
    rounds: list[int] = []
    simulation.simulate(
        path,
        2,
        {"seconds": 60.0, "patience": 60.0},
        lambda done: rounds.append(done.round),
        lambda note: None,
        cpus=1,
        gpus=0.0,
        address=None,
    )
    run(config, tmp_path / "simulated")
    assert rounds == [1, 2]
    assert scores(path) == scores(tmp_path / "simulated")
    assert find_marked("ray-test") == []
