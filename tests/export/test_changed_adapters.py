"""What no output shows while a factor is zero is a part of what a run is of: the scale of adapters,
and any number that multiplies such a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb

X = torch.randn(80, 7, generator=torch.Generator().manual_seed(0))
Y = torch.arange(80) % 5


def data() -> fb.Federation:
    return fb.Federation.from_users(X, Y, torch.arange(80) % 4)


def adapted(alpha: float) -> fb.Method:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
    net = fb.lora(module, rank=3, alpha=alpha, targets=("0",), head="2")
    # Adam's first step is as long whatever the scale is
    return fb.FedSALoRA(net, head="private", lr=0.03, optimizer=fb.Adam())


class Gated(nn.Module):
    """A branch behind a gate that is zero at the start, with a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.branch = nn.Linear(7, 5), nn.Linear(7, 5)
        self.gate, self.factor = nn.Parameter(torch.zeros(5)), factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.factor * self.gate * self.branch(x)
        return out


def gated(factor: float) -> fb.Method:
    net = fb.Net.of(lambda: Gated(factor))
    return fb.FedAvg(net, lr=0.03, optimizer=fb.Adam())


CALLS: dict[str, Callable[[Path, fb.Method], object]] = {
    "personal": lambda run, method: fb.personal(run, 0, method, data()),
    "resume": lambda run, method: fb.resume(run, method, data(), rounds=4),
    "export": lambda run, method: fb.export_model(
        run, 0, out=run / "m.safetensors", method=method, data=data()
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_scale_of_adapters_is_refused(call: str, tmp_path: Path) -> None:
    fb.run(adapted(5.0), data(), rounds=2, out=tmp_path / "run")
    # 10 / 3 and 5 / 3
    message = r"adapters have scale 3\.33\d+ here and scale 1\.66\d+ in the run"
    with pytest.raises(fb.UserError, match=message):
        CALLS[call](tmp_path / "run", adapted(10.0))
    CALLS[call](tmp_path / "run", adapted(5.0))


@pytest.mark.parametrize("call", CALLS)
def test_another_factor_of_what_starts_at_zero_is_refused(call: str, tmp_path: Path) -> None:
    fb.run(gated(1.0), data(), rounds=2, out=tmp_path / "run")
    with pytest.raises(fb.UserError, match=r"another output .* once what is zero has learned"):
        CALLS[call](tmp_path / "run", gated(3.0))
    CALLS[call](tmp_path / "run", gated(1.0))
