"""Comparisons and searches go on beside runs of the same code and data, and refuse others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedblocks as fb
from fedblocks import Federation
from fedblocks.core.errors import DataError, UserError
from fedblocks.runs.grids.tune import tune

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 6)).astype("float32")
Y = (X @ DRAW.normal(size=(6, 3))).argmax(1)


def points(names: str = "device") -> Federation:
    return Federation.from_users(X, Y, np.array([f"{names}-{i % 4}" for i in range(60)]))


class Scaled(fb.FedAvg):
    """FedAvg, its loss times a number that no option names."""

    factor = 1.0

    def loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return super().loss(blocks, batch) * self.factor


def method() -> Scaled:
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return Scaled(fb.Net.of(make), lr=0.3)


def begin(folder: Path, seeds: int, data: Federation | None = None) -> Any:
    return fb.compare([method()], data or points(), rounds=1, seeds=seeds, out=folder)


def test_a_comparison_does_not_mix_runs_of_old_and_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path / "c", 1)
    begin(tmp_path / "c", 2)
    plan = (tmp_path / "c" / "compare.toml").read_text()
    monkeypatch.setattr(Scaled, "factor", 4.0)
    with pytest.raises(
        UserError, match=r'Scaled-0 was started with: .* another loss for client "dev'
    ):
        begin(tmp_path / "c", 3)
    assert (tmp_path / "c" / "compare.toml").read_text() == plan
    assert not (tmp_path / "c" / "runs" / "Scaled-2").exists()


def test_a_comparison_does_not_mix_data(tmp_path: Path) -> None:
    begin(tmp_path / "c", 1)
    other = Federation.from_users(X + 1, Y, np.arange(60) % 4)
    with pytest.raises(UserError, match=r"other settings|the data differ"):
        begin(tmp_path / "c", 2, other)


def test_a_search_does_not_go_on_with_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setitem(fb.METHODS, "scaled", Scaled)
    changes = [
        "rounds=1",
        "data.clients=4",
        'method.name="scaled"',
        "method.lr=0.01..0.1",
        "method.epochs=1",
    ]
    tune("digits-fedavg", changes, 1, tmp_path / "t")
    tune("digits-fedavg", changes, 2, tmp_path / "t")
    monkeypatch.setattr(Scaled, "factor", 4.0)
    with pytest.raises(UserError, match=r"trial-000 was started with: .* another loss"):
        tune("digits-fedavg", changes, 3, tmp_path / "t")


@pytest.mark.parametrize("what", ["resume", "personal"])
def test_clients_keep_their_names(tmp_path: Path, what: str) -> None:
    fb.run(method(), points(), rounds=1, out=tmp_path / "run")
    said = 'client 0 was called "device-0" when the run was started, and is "phone-0"'
    with pytest.raises(DataError, match=said):
        if what == "resume":
            fb.resume(tmp_path / "run", method(), points("phone"), rounds="+1")
        else:
            fb.personal(tmp_path / "run", 0, method(), points("phone"))
    assert fb.resume(tmp_path / "run", method(), points(), rounds="+1").rounds == 2
