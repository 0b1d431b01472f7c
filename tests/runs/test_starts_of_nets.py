"""A run says where its net starts, if that is not what it seems."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.outside_modules import seeded
from fedblocks.engines.net_check.seeding import ANEW, ANEW_BASE, IGNORES_SEED

Levels = Callable[[fb.Net], dict[str, str]]  # note -> how loud it is


class Seeded(nn.Module):
    """Sets torch's seed before it draws."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(42)
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def plain_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 3))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))


@pytest.fixture
def levels(tmp_path: Path) -> Levels:
    """The notes of a run of one round with a net, and how loud each is."""
    x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
    data = fb.Federation.from_users(x, np.arange(80) % 3, np.arange(80) % 4)

    def notes(net: fb.Net) -> dict[str, str]:
        heard: dict[str, str] = {}
        method = fb.FedAvg(net, lr=0.1)
        out = tmp_path / "run"
        fb.run(method, data, 1, out, on_note=lambda note: heard.update({note.text: note.level}))
        return heard

    return notes


def test_a_module_that_seeds_itself_is_named(levels: Levels) -> None:
    assert levels(fb.Net.of(Seeded))[IGNORES_SEED] == "warning"
    assert IGNORES_SEED in str(fb.check_net(fb.Net.of(Seeded, input_shape=(4,))))


@pytest.mark.parametrize(
    ("make", "factor"),
    [(layers, 1.1), (plain_layers, 3)],  # a norm that is not 1; numbers too large
)
def test_weights_that_are_not_used_are_warned_of(
    levels: Levels, make: Callable[[], nn.Module], factor: float
) -> None:
    module = make()
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(factor)
    heard = levels(fb.Net.of(module))
    assert heard[ANEW] == "warning" and IGNORES_SEED not in heard


def test_a_fresh_module_has_a_note_alone(levels: Levels) -> None:
    assert levels(fb.Net.of(layers()))[ANEW] == "info"


@pytest.mark.parametrize(
    "net", [lambda: fb.Net.of(layers), lambda: fb.Net.of(layers(), keep_weights=True)]
)
def test_nets_that_start_as_they_seem_have_no_note(
    levels: Levels, net: Callable[[], fb.Net]
) -> None:
    heard = levels(net())
    assert ANEW not in heard and IGNORES_SEED not in heard


def test_a_module_whose_weights_are_no_base_is_warned_of(levels: Levels) -> None:
    """A base is not trained: a random one is a mistake, whether the module looks trained or not."""
    heard = levels(fb.lora(fb.Net.of(layers()), rank=2, targets=("0",)))
    assert heard[ANEW_BASE] == "warning" and ANEW not in heard


@pytest.mark.parametrize(
    "net",
    [
        lambda: fb.lora(layers(), rank=2, targets=("0",)),
        lambda: fb.lora(fb.Net.of(layers(), keep_weights=True), rank=2, targets=("0",)),
        lambda: fb.lora(layers, rank=2, targets=("0",)),
    ],
)
def test_a_base_of_given_weights_or_of_a_function_has_no_note(
    levels: Levels, net: Callable[[], fb.Net]
) -> None:
    assert not {ANEW, ANEW_BASE} & levels(net()).keys()


def test_a_base_that_a_function_draws_is_the_same_for_all_seeds() -> None:
    """It is drawn with seed 0, once; factors and head follow the seed of the run."""
    net = fb.lora(layers, rank=2, targets=("0",), head="2")
    again = fb.lora(layers, rank=2, targets=("0",), head="2")
    with seeded(0):
        drawn = layers()
    assert torch.equal(net.base["0.weight"], drawn[0].weight) and net.base_hash == again.base_hash
    one, other = net.init(1), net.init(2)
    assert not torch.equal(one["0.lora_A"], other["0.lora_A"])
    assert not torch.equal(one["2.weight"], other["2.weight"])
