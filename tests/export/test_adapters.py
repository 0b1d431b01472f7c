"""A client's adapters as a file without the base, and merged with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import fedblocks as fb


def net() -> fb.LoraNet:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4))
    return fb.lora(nn.Sequential(*layers), rank=2, targets=("0", "2"), head="4")


METHODS = {
    "fedsa": lambda: fb.FedSALoRA(net(), head="private"),
    "ffa": lambda: fb.FFALoRA(net(), head="shared"),
    "dual": lambda: fb.DualLoRA(net(), head="private"),
    "residual": lambda: fb.ProductLoRA(net(), head="shared", keep="residual"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_file_of_tensors_holds_the_adapter_and_not_the_base(name: str, tmp_path: Path) -> None:
    data = fb.small_federation(dtype=torch.float32)
    fb.run(METHODS[name](), data, rounds=2, out=tmp_path / "run", engine="sequential")
    file = tmp_path / "client.safetensors"
    # the file is read again and compared with the model of the run before it is kept
    fb.export_model(tmp_path / "run", 2, "safetensors", file, METHODS[name](), data)
    names = set(safetensors.torch.load_file(file))
    assert {name for name in names if name.endswith("lora_A")}
    assert not [name for name in names if name.endswith(("0.weight", "2.weight"))]


def test_merged_weights_of_a_client_are_its_model(tmp_path: Path) -> None:
    data = fb.small_federation(dtype=torch.float32)
    fb.run(METHODS["fedsa"](), data, rounds=2, out=tmp_path / "run", engine="sequential")
    model = fb.personal(tmp_path / "run", 2, METHODS["fedsa"](), data)
    adapted = net()
    merged = model.merged()
    x = data.x[data.test[2]]
    torch.testing.assert_close(adapted.plain(merged, x), model.predict(x), rtol=1e-5, atol=1e-6)
    base = adapted.plain(adapted.plain.init(0), x)
    assert not torch.allclose(base, model.predict(x), atol=1e-3)
