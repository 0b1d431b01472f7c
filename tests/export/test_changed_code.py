"""An exported model is read with the code that it was exported with, and takes what it was
trained on.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.errors import DataError, UserError
from fedblocks.export.card import Card
from fedblocks.export.formats import read_card
from fedblocks.export.predict import predict

RNG = np.random.default_rng(0)
USERS = np.arange(60) % 3
NUMBERS = RNG.normal(size=(60, 6)).astype("float32")
WORDS = RNG.integers(0, 8, (60, 4))
Body = Callable[[], nn.Module]
Exported = Callable[..., tuple[Path, Path]]


def method(activation: Body, words: bool = False) -> fb.FedAvg:
    first = [nn.Embedding(8, 3), nn.Flatten()] if words else [nn.Identity()]
    width = 12 if words else 6
    make = lambda: nn.Sequential(*first, nn.Linear(width, 8), activation(), nn.Linear(8, 2))
    return fb.FedAvg(fb.Net.of(make), lr=0.1)


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """A model, and a file of inputs."""

    def export(own: fb.Method, x: np.ndarray) -> tuple[Path, Path]:  # type: ignore[type-arg]
        data = fb.Federation.from_users(x, USERS % 2, USERS)
        fb.run(own, data, rounds=1, out=tmp_path / "run")
        out = tmp_path / "m.safetensors"
        np.savez(tmp_path / "x.npz", x=x[:5])
        path = fb.export_model(tmp_path / "run", 0, out=out, method=own, data=data)
        return path, tmp_path / "x.npz"

    return export


@pytest.mark.parametrize("words", [False, True])
def test_a_net_that_was_changed_since_is_refused(exported: Exported, words: bool) -> None:
    path, inputs = exported(method(nn.ReLU, words), WORDS if words else NUMBERS)
    assert len(predict(path, inputs, method(nn.ReLU, words)).labels) == 5
    with pytest.raises(UserError, match=r"is not the one that .* was exported with"):
        predict(path, inputs, method(nn.Tanh, words))


def test_a_method_that_predicts_otherwise_is_refused(exported: Exported) -> None:
    class Halved(fb.FedAvg):
        factor = 0.5

        def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
            return super().predict(blocks, x) * self.factor

    own = Halved(method(nn.ReLU).net, lr=0.1)
    path, inputs = exported(own, NUMBERS)
    predict(path, inputs, own)
    Halved.factor = -0.5
    with pytest.raises(UserError, match=r"is not the one that .* was exported with"):
        predict(path, inputs, own)


def test_a_net_that_shrinks_its_inputs_is_tried_on_large_ones(exported: Exported) -> None:
    # of 1/100 an activation is a straight line, or nearly
    class Shrunk(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x / 100)
            return out

    def shrunk(activation: Body) -> fb.FedAvg:
        layers = lambda: Shrunk(nn.Linear(6, 8), activation(), nn.Linear(8, 2))
        return fb.FedAvg(fb.Net.of(layers), lr=0.1)

    path, inputs = exported(shrunk(nn.Tanh), NUMBERS * 100)
    predict(path, inputs, shrunk(nn.Tanh))
    with pytest.raises(UserError, match=r"is not the one that .* was exported with"):
        predict(path, inputs, shrunk(nn.Identity))


def test_a_net_that_cannot_take_made_up_inputs_is_read_without_answers(exported: Exported) -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if bool((x.abs() > 40).any()):
                raise ValueError("too large")
            return super().forward(x)

    def picky() -> fb.FedAvg:
        return fb.FedAvg(fb.Net.of(lambda: Picky(6, 2)), lr=0.1)

    path, inputs = exported(picky(), NUMBERS)
    card = read_card(path)
    assert card is not None and card.answers == []
    assert len(predict(path, inputs, picky()).labels) == 5


def test_a_card_of_earlier_versions_has_no_answers_and_is_read(exported: Exported) -> None:
    path, _ = exported(method(nn.ReLU), NUMBERS)
    card = read_card(path)
    assert card is not None
    old = card.model_dump(exclude={"answers", "takes_bytes"})
    read = Card.model_validate(old)
    assert read.answers == [] and read.takes_bytes


def test_bytes_are_refused_in_a_file_as_they_are_in_python(exported: Exported) -> None:
    path, inputs = exported(method(nn.ReLU), NUMBERS)
    np.savez(inputs, x=np.arange(12, dtype=np.uint8).reshape(2, 6))
    with pytest.raises(DataError, match=r"x\.npz holds bytes \(uint8\), which are divided by 255"):
        predict(path, inputs, method(nn.ReLU))


def test_bytes_are_taken_where_training_inputs_were_0_to_1(exported: Exported) -> None:
    path, inputs = exported(method(nn.ReLU), RNG.random((60, 6)).astype("float32"))
    x = np.arange(12, dtype=np.uint8).reshape(2, 6)
    np.savez(inputs, x=x)
    as_bytes = predict(path, inputs, method(nn.ReLU)).probabilities
    np.savez(inputs, x=(x / 255).astype("float32"))
    plain = predict(path, inputs, method(nn.ReLU)).probabilities
    assert torch.allclose(torch.from_numpy(as_bytes), torch.from_numpy(plain))
