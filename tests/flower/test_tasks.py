"""Numbers over the network: the run says the task, and the owner of the data may, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.losses import LOSSES
from fedblocks.flower.client.node import check
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.wire.messages import Malformed
from fedblocks.flower.wire.run_spec import RunSpec, shape_of

TASK = {"kind": "regression", "loss": "huber", "metrics": ["rmse", "r2"]}


class Fleet:
    """Two machines with a number for each row, and runs for them."""

    def __init__(self, base: Path) -> None:
        self.base, rng = base, np.random.default_rng(0)
        x, y = rng.normal(size=(40, 3)).astype("float32"), rng.normal(size=40)
        np.savez(base / "trucks.npz", x=x, y=y, user=np.arange(40) % 2)
        self.data: dict[str, Any] = {
            "name": "npz",
            "options": {"path": str(base / "trucks.npz")},
            "partition": {"name": "by_user"},
        }
        set_up(base / "f", "127.0.0.1", {"one": [0], "two": [1]}, insecure=True, data=self.data)
        self.folder = base / "f" / "one"

    def say(self, task: dict[str, Any]) -> None:
        host = ClientHost.read(self.folder)
        host.model_copy(update={"task": task}).write(self.folder)

    def config(self, **changes: Any) -> Config:
        net, method = {"name": "mlp", "hidden": [4]}, {"name": "fedavg"}
        table = {"rounds": 1, "data": self.data, "net": net, "method": method, "task": TASK}
        return Config.of({**table, **changes})

    def spec(self) -> RunSpec:
        path = new_run(self.config(), self.base / "run", [])
        spec = job_for(path, "f", kind="train", seconds=1.0, patience=1.0).spec
        return RunSpec.model_validate_json(spec.model_dump_json())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_client_trains_the_task_of_the_run(fleet: Fleet) -> None:
    side, _ = sides_at(fleet.folder, fleet.spec())[0]
    assert side.experiment.data.task.table() == TASK
    assert side.experiment.data.y.shape == (20, 1)


def test_the_owner_may_say_what_the_targets_are_and_another_task_is_refused(fleet: Fleet) -> None:
    fleet.say({"kind": "regression"})
    assert "20 examples" in check(fleet.folder)
    spec = fleet.spec()
    assert sides_at(fleet.folder, spec).keys() == {0}
    fleet.say({"kind": "multi-label"})
    with pytest.raises(Malformed, match="targets here are of multi-label"):
        sides_at(fleet.folder, spec)


def test_a_client_refuses_a_loss_of_examples_of_which_it_knows_a_part(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOSSES, "of_rows", lambda out, y: (out - y).square().mean(-1))
    monkeypatch.setitem(TASK, "loss", "of_rows")
    whole = dict(np.load(fleet.base / "trucks.npz"))
    pairs = np.stack([whole["y"], whole["y"]], 1)
    np.savez(fleet.base / "trucks.npz", **{**whole, "y": pairs})
    spec = fleet.spec()
    assert sides_at(fleet.folder, spec).keys() == {0}
    pairs[0, 1] = np.nan
    np.savez(fleet.base / "trucks.npz", **{**whole, "y": pairs})
    with pytest.raises(Malformed, match="data-mismatch"):
        sides_at(fleet.folder, spec)


def test_a_server_knows_the_shape_of_numbers_that_it_never_sees(fleet: Fleet) -> None:
    remote = {"name": "remote", "clients": 2, "options": {"input_shape": [3], "classes": 2}}
    shape = shape_of(fleet.config(data=remote))
    assert shape.task.kind == "regression" and shape.y.shape == (2, 2)
    assert shape.y.is_floating_point()
