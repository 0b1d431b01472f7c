"""Clients whose inputs differ in shape, side by side: nothing but the padding is new,
and ModFL trains across them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError, UserError
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cyclic import side_by_side
from fedblocks.data.sets.har import COMMON
from fedblocks.data.sets.signals import Recordings
from fedblocks.data.testbeds import TESTBEDS, unlike
from fedblocks.data.testbeds.modfl import modfl_clients
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.nets import NETS
from fedblocks.runs.run import run

SHAPES = {
    "modfl_cifar": (3, 8, 9),
    "modfl_stl": (1, 16, 16),
    "modfl_hapt": (3, 7),
    "modfl_wisdm": (2, 5),
}


def pool(
    shape: tuple[int, ...], per_label: int = 12, labels: int = 3, name: str = "made_up"
) -> DataPool:
    """Noise, brighter for higher labels."""
    y = torch.arange(labels).repeat_interleave(per_label)
    noise = torch.randn(
        len(y), *shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))
    )
    return DataPool(noise + y.view(-1, *[1] * len(shape)), y, labels, about={"name": name})


def larger(x: Tensor, more: int = 4) -> Tensor:
    """The same examples in the first corner of larger ones, whose rest is not zero but 7."""
    padded = torch.full((len(x), *(size + more for size in x.shape[1:])), 7.0)
    padded[(slice(None), *(slice(size) for size in x.shape[1:]))] = x
    return padded


def federation(shape: tuple[int, ...], clients: int = 3) -> Federation:
    return modfl_clients(pool(shape, per_label=4 * clients), clients, per_group=2)


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_cuts_its_own_inputs_out_of_larger_ones_and_sees_nothing_else(name: str) -> None:
    x = pool(SHAPES[name]).x
    plain, cutting = (
        NETS[name](SHAPES[name], 3),
        NETS[name](larger(x).shape[1:], 3, own_shape=SHAPES[name]),
    )
    params = plain.init(5)
    assert cutting.names == plain.names and cutting.head.names == plain.head.names
    assert all(torch.equal(params[key], value) for key, value in cutting.init(5).items())
    torch.testing.assert_close(cutting(params, larger(x)), plain(params, x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("own", [(3, 9, 8), (3, 8)])
def test_a_shape_that_is_no_corner_of_the_inputs_is_refused(own: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"is to cut .* out of inputs of shape \[3, 8, 8\]"):
        NETS["modfl_cifar"]((3, 8, 8), 3, own_shape=own)
    with pytest.raises(UserError, match=r"own_shape = \[3, 0, 8\]: must be at least 1"):
        NETS["modfl_cifar"]((3, 8, 8), 3, own_shape=(3, 0, 8))


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("small", "large", "net"),
    [((1, 8, 8), (1, 10, 9), "modfl_cifar"), ((2, 5), (4, 7), "modfl_wisdm")],
)
def test_a_round_beside_larger_inputs_ends_in_the_same_parameters(
    engine: Any, small: Any, large: Any, net: str
) -> None:
    alone = federation(small)
    both = side_by_side({"small": alone, "large": federation(large)})
    settings = [Experiment.of(FedAvg(NETS[net](small, 3), lr=0.1, batch_size=4), alone, 3)]
    cutting = NETS[net](both.x.shape[1:], 3, own_shape=small)
    settings.append(Experiment.of(FedAvg(cutting, lr=0.1, batch_size=4), both, 3))
    states = [
        run_round(experiment, experiment.start(), range(3), engine)[0] for experiment in settings
    ]
    for key, value in states[0].server["model"].items():
        torch.testing.assert_close(states[1].server["model"][key], value, rtol=0, atol=1e-6)
    actual = [
        evaluate(experiment, state, range(3), engine)["personal"]
        for experiment, state in zip(settings, states)
    ]
    assert [actual[0][c][:2] for c in range(3)] == [actual[1][c][:2] for c in range(3)]


def two_architectures(path: Path, old: dict[str, Any]) -> Config:
    """ModFL on new and old devices, whose inputs and nets differ."""
    table = {
        "rounds": 1,
        "device": "cpu",
        "data": {"name": "saved", "options": {"path": str(path)}},
        "net": {"name": "modfl_stl", "own_shape": [1, 16, 16]},
        "method": {
            "name": "modfl",
            "configuration": "new",
            "operations": 3,
            "lr": 0.01,
            "batch_size": 4,
        },
        "groups": {
            "old": {
                "tag": "configuration",
                "value": 1,
                "net": {"name": "modfl_cifar", "own_shape": [1, 8, 8]},
                "method": {"configuration": "old", **old},
            }
        },
        "evaluation": {"parts": ["test"]},
    }
    return Config.of(table)


def test_modfl_federates_operation_modules_across_two_architectures_of_a_configuration(
    tmp_path: Path,
) -> None:
    path = tmp_path / "both.npz"
    side_by_side({"new": federation((1, 16, 16), clients=6), "old": federation((1, 8, 8))}).save(
        path
    )
    result = run(two_architectures(path, {}), tmp_path / "run")
    server = result.state().server
    assert {"configuration/new", "configuration/old", "operation"} == set(server)
    assert len(server["operation"]["0.weight"]) == 3 and set(result.accuracies("test")) == set(
        range(9)
    )
    apart = (
        run(two_architectures(path, {"task": "of old devices"}), tmp_path / "apart").state().server
    )
    assert set(apart) - set(server) == {"operation/of old devices"}
    # the old devices' part
    assert not torch.equal(apart["operation"]["0.weight"], server["operation"]["0.weight"])


def many(name: str, side: int) -> Callable[[], DataPool]:
    """As many rows of each class as the full configurations take."""
    return lambda: pool((3, side, side), per_label=1300 * 2, labels=10, name=name)


def recordings(channels: int) -> Callable[[], Recordings]:
    """Sixty recordings of every common activity, long enough for ten windows each."""
    label = np.repeat(np.arange(5), 60)
    begin = np.arange(len(label)) * 1000
    signal = np.random.Generator(np.random.PCG64(channels)).normal(
        size=(1000 * len(label), channels)
    )
    return lambda: Recordings(
        signal.astype(np.float32), begin, begin + 1000, label, label, COMMON, 50
    )


@pytest.fixture
def made_up_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of the right names and sizes, but with tiny inputs."""
    for name, side in (("cifar10", 1), ("stl10", 2)):
        monkeypatch.setattr(unlike, name, many(name, side))
    for name, channels in (("hapt", 2), ("realworld", 2), ("wisdm", 1)):
        monkeypatch.setattr(unlike, f"{name}_recordings", recordings(channels))


FULL = [("modfl_photographs", p, total) for p, total in ((3, 2916), (6, 2808), (9, 2916))]
FULL += [("modfl_movements", p, total) for p, total in ((2, 240), (4, 240), (5, 200))]


@pytest.mark.usefixtures("made_up_files")
@pytest.mark.parametrize(("testbed", "per_group", "total"), FULL)
def test_every_data_set_of_a_full_test_bed_has_the_published_test_total(
    testbed: str, per_group: int, total: int
) -> None:
    actual = TESTBEDS[testbed](per_group=per_group)
    side = actual.tags["configuration"]
    assert actual.clients == (72 if testbed == "modfl_photographs" else 60)
    assert [int(actual.test.sizes[side == number].sum()) for number in np.unique(side)] == [
        total
    ] * (int(side.max()) + 1)


@pytest.mark.usefixtures("made_up_files")
def test_a_data_set_alone_has_the_rows_that_it_has_beside_others() -> None:
    both, alone = (
        unlike.modfl_photographs(clients=9),
        unlike.modfl_photographs(("stl10",), clients=9),
    )
    assert both.about["shapes"] == {"cifar10": [3, 1, 1], "stl10": [3, 2, 2]}
    for client in range(9):
        assert torch.equal(alone.x[alone.train[client]], both.x[both.train[9 + client]])
    with pytest.raises(DataError, match=r'sets = \["stl"\]: must be a list of "cifar10" or'):
        unlike.modfl_photographs(("stl",))


@pytest.mark.usefixtures("made_up_files")
def test_the_other_camera_takes_images_that_the_first_does_not() -> None:
    first = unlike.modfl_images(unlike.cifar10(), 9, 3, per_label=50)
    second = unlike.seen_otherwise(50, 1, seed=0)
    assert second.about["name"] == "cifar10_other_camera" and second.about["skip"] == 50
    assert first.about["sample_hash"] != second.about["sample_hash"]
