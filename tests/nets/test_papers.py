"""The papers' nets: parameter counts as published, names, and one round on both engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.modfl import ModFL
from fedblocks.nets import NETS
from fedblocks.nets.modfl_nets import two_modules

COUNTS = [
    ("femnist_cnn", (1, 28, 28), 62, 2_278_334),
    ("emnist_cnn", (1, 28, 28), 62, 1_206_590),
    ("pfl_cnn", (3, 32, 32), 10, 896 + 18_496 + (64 * 14 * 14 + 1) * 128 + 129 * 10),
    ("lenet", (3, 32, 32), 10, 62_006),
    ("lenet", (3, 32, 32), 100, 69_656),
    ("mobilenet_v2", (3, 32, 32), 10, 2_236_682),
    ("mobilenet_v2", (3, 32, 32), 100, 2_351_972),
    ("mobilenet_v2", (3, 32, 32), 512, 2_879_744),  # FedMN's encoder
    ("femnist_cnn", (1, 28, 28), 512, 3_200_384),  # FedMN's encoder for characters
    ("modfl_cifar", (3, 32, 32), 9, 896 + 18_496 + 73_856 + 524_544 + 41_737),
    ("modfl_stl", (3, 96, 96), 9, 448 + 4_640 + 18_496 + 73_856 + 1_179_904 + 41_737),
    # The published counts have one bias in an LSTM, torch has two: 4 x units more.
    ("modfl_hapt", (6, 128), 5, 1_472 + 272 + 357 + 4 * 16),
    ("modfl_rwhar", (6, 128), 5, 2_976 + 800 + 528 + 357 + 4 * 24),
    ("modfl_wisdm", (3, 52), 5, 384 + 144 + 357 + 4 * 8),
]
SHAPES = {name: (shape, classes) for name, shape, classes, _ in reversed(COUNTS)}
MODFL = ["modfl_cifar", "modfl_stl", "modfl_hapt", "modfl_rwhar", "modfl_wisdm"]
BAD: list[tuple[str, Sequence[int]]] = [
    ("femnist_cnn", (1, 8, 8)),
    ("emnist_cnn", (784,)),
    ("pfl_cnn", (3, 4, 4)),
    ("mobilenet_v2", (3, 4, 4)),
    ("modfl_cifar", (3, 4, 4)),
    ("modfl_hapt", (3, 32, 32)),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_a_net_has_as_many_parameters_as_published(
    name: str, shape: Any, classes: int, count: int
) -> None:
    assert NETS[name](shape, classes).size() == count


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_makes_a_logit_for_every_class(name: str) -> None:
    shape, classes = SHAPES[name]
    net = NETS[name](shape, classes)
    assert net(net.init(0), torch.zeros(2, *shape)).shape == (2, classes)
    # a chain that can be cut
    assert net.stages and net.body.stages is not None and net.head.stages is not None


@pytest.mark.parametrize("name", MODFL)
def test_the_operation_module_is_the_head_and_the_same_for_all_of_a_kind(name: str) -> None:
    net = NETS[name](*SHAPES[name])
    like = NETS["modfl_stl" if name in ("modfl_cifar", "modfl_stl") else "modfl_hapt"](
        *SHAPES[name]
    )
    assert {k: v.shape for k, v in net.head.init(0).items()} == {
        k: v.shape for k, v in like.head.init(0).items()
    }
    assert sum(v.numel() for v in net.head.init(0).values()) == (
        41_737 if len(SHAPES[name][0]) == 3 else 357
    )
    x = torch.randn(2, *SHAPES[name][0])
    params = net.init(0)
    torch.testing.assert_close(net.head(params, net.body(params, x)), net(params, x))


def test_pooling_the_last_convolution_is_a_choice() -> None:
    pooled, larger = (
        NETS["modfl_cifar"]((3, 32, 32), 9, pool_last=last).size() for last in (True, False)
    )
    assert larger - pooled == 256 * (128 * 8 * 8 - 128 * 4 * 4)


def test_modules_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(UserError, match="ends in 8 numbers, the operation module takes 9"):
        two_modules(lambda: [nn.Linear(4, 8)], lambda: [nn.Linear(9, 2)])


@pytest.mark.parametrize(("name", "shape"), BAD)
def test_inputs_that_do_not_fit_are_refused_by_name(name: str, shape: Any) -> None:
    with pytest.raises(UserError, match=f'net "{name}" needs'):
        NETS[name](shape, 10)


def test_the_glorot_start_differs_from_torchs_own() -> None:
    params = NETS["pfl_cnn"]((3, 32, 32), 10).init(0)
    assert params["0.bias"].abs().max() == 0
    bound = (6 / (3 * 9 + 32 * 9)) ** 0.5  # sqrt(6 / (fan in + fan out))
    assert 0.9 * bound < params["0.weight"].abs().max() <= bound


class TestMobileNet:
    def names(self) -> list[str]:
        return list(NETS["mobilenet_v2"]((3, 32, 32), 10).names)

    def test_tensors_have_torchvisions_names(self) -> None:
        names = set(self.names())
        assert {
            "features.0.0.weight",  # first convolution
            "features.0.1.running_var",
            "features.1.conv.0.0.weight",  # a block without expansion
            "features.1.conv.1.weight",
            "features.1.conv.2.bias",
            "features.2.conv.1.0.weight",  # a depthwise convolution
            "features.2.conv.3.running_mean",
            "features.17.conv.2.weight",
            "features.18.0.weight",
            "classifier.1.weight",
        } <= names
        # torchvision's parameters, and two statistics for each of 52 norms
        assert len(names) == 158 + 2 * 52

    def test_images_of_32_pixels_end_as_one(self) -> None:
        net = NETS["mobilenet_v2"]((3, 32, 32), 10)
        features = net.template.get_submodule("features")
        assert features(torch.zeros(1, 3, 32, 32)).shape == (1, 1280, 1, 1)

    def test_weights_of_a_file_are_the_start_and_the_classifier_is_new(
        self, tmp_path: Path
    ) -> None:
        stored = self.stored(1000)
        save_file(stored, tmp_path / "weights.safetensors")
        net = NETS["mobilenet_v2"]((3, 32, 32), 10, weights=str(tmp_path / "weights.safetensors"))
        first, second = net.init(0), net.init(1)
        assert all(
            torch.equal(first[k], v)
            for k, v in stored.items()
            if k in first and not k.startswith("classifier")
        )
        assert torch.equal(
            first["features.18.1.running_mean"], second["features.18.1.running_mean"]
        )
        assert not torch.equal(first["classifier.1.weight"], second["classifier.1.weight"])

    def stored(self, classes: int) -> dict[str, Tensor]:
        module = NETS["mobilenet_v2"]((3, 32, 32), classes).make()
        return {
            k: torch.full_like(v, 0.5) if v.is_floating_point() else v
            for k, v in module.state_dict().items()
        }

    def test_a_file_of_another_net_is_refused_by_tensor(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.safetensors"
        save_file({"conv1.weight": torch.zeros(2)}, path)
        with pytest.raises(
            UserError,
            match=r'"features.0.0.weight" is missing, the net has '
            r"\[32, 3, 3, 3\]",
        ):
            NETS["mobilenet_v2"]((3, 32, 32), 10, weights=str(path))

    def test_a_file_that_is_none_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "bad").write_bytes(b"not a tensor")
        for path in (tmp_path / "bad", tmp_path / "absent"):
            with pytest.raises(UserError, match="cannot be read"):
                NETS["mobilenet_v2"]((3, 32, 32), 10, weights=str(path))


def federation(shape: Sequence[int], classes: int, **tags: Any) -> Federation:
    draw = np.random.Generator(np.random.PCG64(4))
    cuts = np.split(np.arange(16), [4, 7, 12])
    x = torch.from_numpy(draw.normal(size=(16, *shape)).astype(np.float32))
    y = torch.from_numpy(draw.integers(0, classes, 16))
    return Federation(x, y, Rows.of(cuts[:2]), Rows.none(2), Rows.of(cuts[2:]), classes, tags=tags)


@pytest.mark.parametrize("name", ["emnist_cnn", "mobilenet_v2", "modfl_cifar", "modfl_rwhar"])
def test_a_round_is_the_same_on_both_engines(name: str) -> None:
    shape, classes = SHAPES[name]
    shape = (*shape[:-1], 9) if len(shape) == 2 else (shape[0], 32, 32)
    net = double(NETS[name](shape, classes))
    data = federation(shape, classes)
    data = Federation(data.x.double(), data.y, data.train, data.validation, data.test, classes)
    experiment = Experiment.of(FedAvg(net, lr=0.001, batch_size=4), data)
    states = [
        run_round(experiment, experiment.start(), [0, 1], engine)[0]
        for engine in (Sequential(), Vectorised())
    ]
    for key, value in states[0].server["model"].items():
        torch.testing.assert_close(states[1].server["model"][key], value, rtol=1e-7, atol=1e-9)
    assert set(evaluate(experiment, states[0], [0, 1], Sequential())["personal"]) == {0, 1}


def double(net: Net) -> Net:
    return Net.of(net.make, head=net.head_module, dtype=torch.float64)


def test_two_generations_of_devices_share_an_operation_module() -> None:
    """The paper's HAR nets: other sensors, other lengths are other federations; here
    both see 6 channels.
    """
    nets = {name: NETS[name]((6, 9), 5) for name in ("modfl_hapt", "modfl_rwhar")}
    methods = {
        name: ModFL(net, configuration=name, operations=1, batch_size=4)
        for name, net in nets.items()
    }
    experiment = Experiment(
        methods, federation((6, 9), 5, operation=np.zeros(2, np.int64)), 0, groups=list(nets)
    )
    state, report = run_round(experiment, experiment.start(), [0, 1], Sequential())
    assert state.server.keys() == {
        "configuration/modfl_hapt",
        "configuration/modfl_rwhar",
        "operation",
    }
    assert report.bytes_down["operation"] == {0: 4 * 357, 1: 4 * 357}
