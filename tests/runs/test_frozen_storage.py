"""A run stores its frozen blocks once, checks them at checkpoints, and goes on with no other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.frozen_hash import content_hash
from fedblocks.runs.loop import Lane
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.frozen import read_frozen


@dataclass(frozen=True, eq=False)
class Probe(fb.Method):
    """A head on a body that nobody trains."""

    def blocks(self):
        return {"body": fb.Frozen(self.net.body), "head": fb.Shared(self.net.head)}

    def predict(self, blocks, x):
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self):
        return [fb.Phase((self.step("head"),), self.epochs)]


def probe(shift: float = 0.0) -> Probe:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    with torch.no_grad():
        layers[0].weight += shift
    return Probe(fb.Net.of(layers, keep_weights=True, dtype=torch.float64), batch_size=4)


def stop_after(rounds: int):
    def told(done: fb.RoundDone) -> None:
        if done.round == rounds:
            raise KeyboardInterrupt

    return told


def test_a_frozen_block_is_stored_once_under_its_hash(tmp_path: Path) -> None:
    method = probe()
    fb.run(method, fb.small_federation(), rounds=3, out=tmp_path / "run")
    (stored,) = (tmp_path / "run" / "frozen").iterdir()
    assert stored.stem == content_hash(method.net.body.init(0))
    assert torch.equal(read_frozen(stored)["0.weight"], method.net.body.init(0)["0.weight"])
    with RunFolder.open(tmp_path / "run") as folder:
        assert json.loads(folder.store.meta("frozen")) == {"all/body": stored.stem}


def test_checkpoints_do_not_hold_frozen_blocks(tmp_path: Path) -> None:
    state = fb.run(probe(), fb.small_federation(), rounds=2, out=tmp_path / "run").state()
    assert set(state.server) == {"head"} and not state.private


def test_a_run_goes_on_with_the_frozen_block_that_it_began_with(tmp_path: Path) -> None:
    data = fb.small_federation()
    whole = fb.run(probe(), data, rounds=3, out=tmp_path / "whole").state()
    with pytest.raises(fb.Interrupted):
        fb.run(probe(), data, rounds=3, out=tmp_path / "run", on_round=stop_after(1))
    with pytest.raises(fb.CheckpointError, match='"all/body" is not the one that the run was'):
        fb.resume(tmp_path / "run", probe(shift=0.5), data)
    resumed = fb.resume(tmp_path / "run", probe(), data).state()
    for name, value in whole.server["head"].items():
        assert torch.equal(resumed.server["head"][name], value)


def test_a_frozen_block_that_moves_stops_the_run_at_its_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Lane.store

    def move_and_store(lane: Lane) -> None:
        lane.prepared.experiment.beginnings["all"].frozen["body"]["0.weight"][0, 0] += 1
        honest(lane)

    monkeypatch.setattr(Lane, "store", move_and_store)
    with pytest.raises(fb.UserError, match='the frozen block "all/body" has changed'):
        fb.run(probe(), fb.small_federation(), rounds=2, out=tmp_path / "run")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    fb.run(probe(), fb.small_federation(), rounds=1, out=tmp_path / "run")
    (stored,) = (tmp_path / "run" / "frozen").iterdir()
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(bytes(content))
    with pytest.raises(fb.CheckpointError, match="does not hold what its name says"):
        read_frozen(stored)


def test_an_exported_model_holds_its_frozen_blocks(tmp_path: Path) -> None:
    method, data = probe(), fb.small_federation()
    fb.run(method, data, rounds=1, out=tmp_path / "run")
    path = fb.export_model(
        tmp_path / "run", 2, "safetensors", tmp_path / "model.safetensors", method, data
    )
    model = fb.personal(tmp_path / "run", 2, method, data)
    assert torch.equal(model.blocks["body"]["0.weight"], method.net.body.init(0)["0.weight"])
    assert path.is_file()
