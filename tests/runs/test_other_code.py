"""A run goes on with the code that it was started with, and is refused another net or loss."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.engines.behaviour import behaviours_of
from fedblocks.engines.round import Experiment
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 6)).astype("float32")
Y = (X @ DRAW.normal(size=(6, 3))).argmax(1)


def points() -> fb.Federation:
    return fb.Federation.from_users(X, Y, np.arange(60) % 4)


class Scaled(fb.FedAvg):
    """FedAvg, its loss times a number that no option names."""

    factor = 1.0

    def loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return super().loss(blocks, batch) * self.factor


def net(activation: Callable[[], nn.Module] = nn.Tanh) -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 3)))


def stored(folder: Path) -> dict[str, dict[str, object]]:
    with RunFolder.open(folder) as opened:
        behaviour: dict[str, dict[str, object]] = json.loads(opened.store.meta("behaviour") or "{}")
    return behaviour


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fb.run(fb.FedAvg(net(), lr=0.3), points(), rounds=1, out=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("what", ["resume", "personal", "export"])
def test_another_activation_is_refused(folder: Path, what: str, tmp_path: Path) -> None:
    other, data = fb.FedAvg(net(nn.Sigmoid), lr=0.3), points()
    with pytest.raises(UserError, match='another output for client "0"'):
        if what == "resume":
            fb.resume(folder, other, data, rounds="+1")
        elif what == "personal":
            fb.personal(folder, 2, other, data)
        else:
            out = tmp_path / "a.safetensors"
            fb.export_model(folder, 2, method=other, data=data, out=out)
    assert not (tmp_path / "a.safetensors").exists()


def test_another_loss_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, data = Scaled(net(), lr=0.3), points()
    fb.run(method, data, rounds=1, out=tmp_path / "run")
    fb.resume(tmp_path / "run", method, data, rounds="+1")
    monkeypatch.setattr(Scaled, "factor", 5.0)
    with pytest.raises(UserError, match='another loss for client "0"'):
        fb.resume(tmp_path / "run", method, data, rounds="+1")


def test_the_same_code_goes_on_and_the_row_stays(folder: Path) -> None:
    before = stored(folder)
    assert list(before) == ["all"] and len(before["all"]["views"]["personal"]) == 2 * 3  # type: ignore[index]
    fb.resume(folder, fb.FedAvg(net(), lr=0.3), points(), rounds="+1")
    assert stored(folder) == before
    assert fb.personal(folder, 2, fb.FedAvg(net(), lr=0.3), points()).round == 2


def test_a_run_without_the_row_is_gone_on_with_as_before(folder: Path) -> None:
    with RunFolder.open(folder) as opened:
        opened.store.set_meta("behaviour", "{}")
    assert fb.personal(folder, 2, fb.FedAvg(net(nn.Sigmoid), lr=0.3), points()).round == 1


def test_weights_that_a_module_kept_may_be_others_when_a_run_goes_on(tmp_path: Path) -> None:
    def method() -> fb.FedAvg:
        own = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        return fb.FedAvg(fb.Net.of(own, keep_weights=True), lr=0.3)

    fb.run(method(), points(), rounds=1, out=tmp_path / "run")
    assert fb.resume(tmp_path / "run", method(), points(), rounds="+1").rounds == 2


def test_trying_the_code_leaves_torchs_randomness_as_it_was() -> None:
    class Drawing(fb.FedAvg):
        def loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
            return super().loss(blocks, batch) * (1 + torch.rand(()))

    experiment = Experiment.of(Drawing(net()), points())
    before = torch.get_rng_state()
    first = behaviours_of(experiment)
    torch.rand(3)
    assert first == behaviours_of(experiment) and first["all"]["losses"]
    torch.set_rng_state(before)
    behaviours_of(experiment)
    assert torch.equal(before, torch.get_rng_state())


def test_code_that_fails_alone_leaves_no_row_and_no_error() -> None:
    class Failing(fb.FedAvg):
        def loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
            raise ValueError("odd")

    assert behaviours_of(Experiment.of(Failing(net()), points())) == {}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_method_of_the_library_has_outputs_and_losses_to_compare(name: str) -> None:
    example = EXAMPLES[name]()
    behaviour = behaviours_of(example.experiment())["all"]
    assert behaviour["views"]["personal"]
    assert behaviour["losses"]
