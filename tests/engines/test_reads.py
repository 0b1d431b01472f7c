"""A step in which Python reads a number, in whatever way, is not repeated."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import dlpack

import fedblocks as fb
from fedblocks.engines.replay.recording import Recorder
from fedblocks.layers.guard import Guard

WAYS = {
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "numpy by force": lambda t: t.numpy(force=True),
    "asarray": np.asarray,
    "an array of numbers": lambda t: np.array([t[0], t[1]]),
    "from_dlpack": np.from_dlpack,
    "to_dlpack": lambda t: dlpack.to_dlpack(t),
    "to_dlpack of torch": lambda t: torch.to_dlpack(t),
    "bytes": lambda t: t.untyped_storage()[0],
    "storage": lambda t: t._typed_storage()[0],
    "address": lambda t: t.data_ptr(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "saved": lambda t: torch.save(t, io.BytesIO()),
    "saved in the old way": lambda t: torch.save(
        t, io.BytesIO(), _use_new_zipfile_serialization=False
    ),
    "saved with others": lambda t: torch.save({"one": [nn.Parameter(t)]}, io.BytesIO()),
    "shared": lambda t: t.clone().share_memory_(),
    "text": str,
    "text of one": lambda t: f"{t[0]:.2f}",
    "text of all": lambda t: f"{t}",
    "tensor": lambda t: torch.tensor([t[0], 1.0]),
    "tensor of lists": lambda t: torch.tensor([[0.0], [t[1]]]),
    "as_tensor": lambda t: torch.as_tensor((t[0],)),
    "asarray of torch": lambda t: torch.asarray([t[0]]),
    "new_tensor": lambda t: t.new_tensor([t[0]]),
    "Tensor": lambda t: torch.Tensor([t[0]]),
    "places to split at": lambda t: torch.tensor_split(torch.zeros(9), t.long()),
    "lengths": lambda t: nn.utils.rnn.pack_padded_sequence(torch.ones(3, 3, 1), t.long()),
    "item": lambda t: t[0].item(),
    "float": lambda t: float(t[0]),
    "bool": lambda t: bool(t[0]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_python_reads_is_noticed(way) -> None:
    given = torch.tensor([3.0, 2.0, 1.0])
    with Recorder([given]) as recorder:
        WAYS[way](given)
    assert recorder.program(1) is None


@pytest.mark.parametrize("way", WAYS)
def test_it_is_noticed_behind_the_guard_of_a_module(way) -> None:
    """That passes on what the module asks, so that it seems to be who asks."""
    given, module = torch.tensor([3.0, 2.0, 1.0]), nn.Module()
    module.register_buffer("table", torch.ones(3))
    with Recorder([given]) as recorder, Guard(module, ["table"]):
        WAYS[way](given)
    assert recorder.program(1) is None


def test_what_is_no_number_may_be_read() -> None:
    given, fixed = torch.tensor([3.0, 2.0, 1.0]), [1.0, 2.0, 3.0]
    with Recorder([given]) as recorder:
        given.add_(torch.tensor(fixed) * len(given) * given.shape[0] * given.dim())
        assert (
            given.is_floating_point() and given.stride() == (1,) and given.new_tensor(fixed).numel()
        )
    assert recorder.program(1) is not None


def test_the_guard_of_constants_reads_no_numbers() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.ones(3))
    given = torch.ones(3)
    with Recorder([given]) as recorder, Guard(module, ["table"]):
        given.add_(1.0)
    assert recorder.program(1) is not None


def test_after_recording_torch_is_as_it_was() -> None:
    before = dlpack.to_dlpack, torch.to_dlpack, torch._C._to_dlpack
    with Recorder([]):
        pass
    assert before == (dlpack.to_dlpack, torch.to_dlpack, torch._C._to_dlpack)


def saved(tensor: torch.Tensor) -> bytes:
    """The bytes of its numbers, by way of a file."""
    file = io.BytesIO()
    torch.save(tensor, file)
    with ZipFile(file) as parts:
        (name,) = (name for name in parts.namelist() if name.endswith("data/0"))
        return parts.read(name)


READ = {
    "tolist": lambda bias: bias.tolist()[0],
    "numpy": lambda bias: bias.detach().numpy()[0],
    "asarray": lambda bias: np.asarray(bias.detach())[0],
    "from_dlpack": lambda bias: np.from_dlpack(bias.detach())[0],
    "bytes": lambda bias: np.frombuffer(bytes(bias.detach().untyped_storage()), "f4")[0],
    "saved": lambda bias: np.frombuffer(saved(bias.detach()), "f4")[0],
    "text": lambda bias: float(str(bias.detach()).partition("[")[2].partition(",")[0]),
    "tensor": lambda bias: torch.tensor([bias[0]]).numpy()[0],
}


def start(net: nn.Module) -> None:
    """The same numbers for every net of a kind."""
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel()) * 1.7 + i).view_as(p) * 0.4)


class Gate(nn.Module):
    """Its first bias decides about its path: on, off, and on again from about step 60."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.a, self.b = way, nn.Linear(6, 5), nn.Linear(5, 2)
        start(self)

    def forward(self, x):
        h = self.a(x)
        if READ[self.way](self.b.bias) > -0.15:
            h = h * 1.5 + 0.3
        return self.b(torch.tanh(h))


def federation(**options) -> tuple[torch.Tensor, torch.Tensor, fb.Federation]:
    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    users = [0] * 40 + [1] * 40
    return x, y, fb.Federation.from_users(x.numpy(), y.numpy(), users, **options)


class Plain(nn.Sequential):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        start(self)


def turned(outputs: torch.Tensor, bias: torch.Tensor, way: str) -> torch.Tensor:
    """On, off, and on again from about step 70."""
    return outputs * 1.5 if READ[way](bias) > -0.2 else outputs


def turning_loss(outputs: torch.Tensor, y: torch.Tensor, way: str) -> torch.Tensor:
    """Reads the outputs of each example, which turn one after another."""
    factors = torch.tensor([2.0 if READ[way](own) > 0.0 else 1.0 for own in outputs.detach()])
    return cross_entropy(outputs, y, reduction="none") * factors


@dataclass(frozen=True, eq=False)
class Turning(fb.Local):
    """Local, whose own predictions turn with a bias."""

    way: str = "tolist"

    def predict(self, blocks, x):
        """The net's, or those turned."""
        return turned(super().predict(blocks, x), blocks["model"]["2.bias"], self.way)


def trained(net: nn.Module, data: fb.Federation, x, y, loss) -> dict[str, torch.Tensor]:
    """What a plain loop makes of the first client; one full batch a step, so their order does not
    matter."""
    rows = torch.as_tensor(data.train.index[data.train.offsets[0] : data.train.offsets[1]].copy())
    sgd = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(100):
        sgd.zero_grad()
        loss(net(x[rows]), y[rows]).backward()
        sgd.step()
    return {name: p.detach() for name, p in net.named_parameters()}


def outcome(method: fb.Method, data: fb.Federation, engine: str, out: Path) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be mapped over clients
        run = fb.run(method, data, rounds=1, out=out, engine=engine)
    return run.state().private[0]["model"]


def assert_same(ours: dict, theirs: dict) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


FULL = {"lr": 0.5, "epochs": 100, "batch_size": 100}
ENGINES = ["sequential", "processes"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", READ)
def test_a_net_that_turns_late_is_trained_as_by_a_plain_loop(way, engine, tmp_path) -> None:
    x, y, data = federation()
    ours = outcome(fb.Local(fb.Net.of(partial(Gate, way)), **FULL), data, engine, tmp_path / "run")
    assert_same(ours, trained(Gate(way), data, x, y, cross_entropy))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", ["tolist", "numpy", "asarray"])
def test_a_loss_that_turns_late_is_trained_as_by_a_plain_loop(way, engine, tmp_path) -> None:
    loss = partial(turning_loss, way=way)
    x, y, data = federation(task=fb.Task("classification", loss=loss))
    ours = outcome(fb.Local(fb.Net.of(Plain), **FULL), data, engine, tmp_path / "run")
    assert_same(ours, trained(Plain(), data, x, y, lambda out, y: loss(out, y).mean()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", ["tolist", "numpy", "asarray"])
def test_a_method_that_turns_late_is_trained_as_by_a_plain_loop(way, engine, tmp_path) -> None:
    x, y, data = federation()
    ours = outcome(Turning(fb.Net.of(Plain), way=way, **FULL), data, engine, tmp_path / "run")
    net = Plain()
    loss = lambda out, y: cross_entropy(turned(out, net[2].bias, way), y)
    assert_same(ours, trained(net, data, x, y, loss))
