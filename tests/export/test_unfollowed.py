"""A net whose code asks for numbers is refused by formats that hold operations, with the one that
it can have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb


class TopOne(nn.Module):
    """Each example goes through one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Linear(6, 2)
        self.experts = nn.ModuleList([nn.Linear(6, 3) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.choose(x).argmax(1), x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                out[chosen == number] = expert(x[chosen == number])
        return out


class ByNumPy(nn.Module):
    """Leaves torch on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x * torch.from_numpy(np.abs(x.detach().numpy())))


def trained(
    make: Callable[[], nn.Module], out: Path
) -> tuple[fb.RunResult, fb.Method, fb.Federation]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 6)).astype("float32"), rng.integers(0, 3, 60)
    data = fb.Federation.from_users(x, y, np.arange(60) % 2)
    method = fb.FedAvg(fb.Net.of(make), lr=0.1)
    return fb.run(method, data, rounds=1, engine="sequential", out=out), method, data


@pytest.mark.parametrize("form", ["pt2", "onnx"])
@pytest.mark.parametrize(
    ("make", "said"), [(TopOne, "its code asks for numbers"), (ByNumPy, "torch cannot follow it")]
)
def test_a_net_that_asks_for_numbers_is_refused_with_the_format_that_it_can_have(
    form: str,
    make: Callable[[], nn.Module],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run, method, data = trained(make, tmp_path / "run")
    files = tmp_path / "files"
    files.mkdir()
    capfd.readouterr()
    with pytest.raises(fb.UserError, match=f"no {form} file of this net: {said}") as error:
        fb.export_model(run.folder, 0, form, files / f"m.{form}", method=method, data=data)
    assert "test_unfollowed.py, line" in error.value.message
    assert len(error.value.message) < 400 and "safetensors" in error.value.fix
    assert list(files.iterdir()) == [] and capfd.readouterr() == ("", "")


def test_the_format_that_is_named_instead_holds_such_a_net(tmp_path: Path) -> None:
    run, method, data = trained(TopOne, tmp_path / "run")
    path = fb.export_model(run.folder, 0, out=tmp_path / "m.safetensors", method=method, data=data)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).normal(size=(5, 6)).astype("float32"))
    wanted = fb.personal(run.folder, 0, method, data).predict(np.load(tmp_path / "x.npz")["x"])
    predicted = fb.predict(path, tmp_path / "x.npz", method)
    assert predicted.labels.tolist() == wanted.argmax(1).tolist()
