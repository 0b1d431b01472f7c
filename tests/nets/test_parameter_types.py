"""Parameters are float32 or float64, whatever the inputs are; fewer digits are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb


def rows() -> fb.Federation:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    return fb.Federation.from_users(x, (x[:, 0] > 0).astype(int), np.arange(60) % 3)


def method(dtype: torch.dtype) -> fb.FedAvg:
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return fb.FedAvg(fb.Net.of(make, dtype=dtype), lr=0.1, batch_size=8)


def test_double_precision_trains_alike_on_both_engines_from_single_precision_data(
    tmp_path: Path,
) -> None:
    states = []
    for engine in ("sequential", "vectorised"):
        out = tmp_path / engine
        result = fb.run(method(torch.float64), rows(), 3, out, engine=engine, device="cpu")
        states.append(result.state().server["model"])
    one, other = states
    assert {value.dtype for value in one.values()} == {torch.float64}
    for name, value in one.items():
        # 1e-6 would be the rounding of float32
        assert torch.allclose(value, other[name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("format", ["safetensors", "pt2", "onnx"])
def test_a_net_in_double_precision_is_exported_and_predicts(format: str, tmp_path: Path) -> None:
    own, data = method(torch.float64), rows()
    result = fb.run(own, data, 1, tmp_path / "run", device="cpu")
    model = fb.personal(result, 1, own, data)
    file = fb.export_model(result, 1, format, tmp_path / f"one.{format}", own, data)
    np.savez(tmp_path / "x.npz", x=data.x.numpy())
    labels = fb.predict(file, tmp_path / "x.npz", own, trust=True).labels
    assert labels.tolist() == model.predict(data.x).argmax(1).tolist()


@pytest.mark.parametrize(("dtype", "share"), [(torch.bfloat16, "1/256"), (torch.float16, "1/2048")])
def test_parameters_of_few_digits_are_refused_before_the_first_round(
    dtype: torch.dtype, share: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError) as error:
        fb.run(method(dtype), rows(), 1, tmp_path / "run")
    assert f"a step below {share} of a parameter would be lost" in str(error.value)
    assert 'precision = "bf16"' in error.value.fix
    assert not (tmp_path / "run").exists()


def test_parameters_are_no_whole_numbers() -> None:
    with pytest.raises(fb.NetError, match="dtype=int64: parameters are real numbers"):
        method(torch.int64)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.cfloat) @ self.w).abs()


def test_complex_parameters_are_refused_by_name() -> None:
    with pytest.raises(fb.NetError, match='the parameter "w" is complex') as error:
        fb.Net.of(Complex)
    assert "torch.view_as_complex" in error.value.fix


@pytest.mark.parametrize(("dtype", "notes"), [(torch.float32, 1), (torch.float64, 0)])
@pytest.mark.filterwarnings("ignore")
def test_a_module_made_in_double_precision_that_trains_in_single_is_told(
    dtype: torch.dtype, notes: int, tmp_path: Path
) -> None:
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(3, 2)).double(), dtype=dtype)
    result = fb.run(fb.FedAvg(net), rows(), 1, tmp_path / "run")
    said = [n for n in result.notes if "is made in float64 and trains in float32" in n["text"]]
    assert len(said) == notes


def test_a_format_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match="there is no format 'onxx'") as error:
        fb.export_model(tmp_path, 0, "onxx")  # type: ignore[arg-type]
    assert '"onnx"' in error.value.fix
