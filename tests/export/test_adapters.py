"""A client's adapters as a file without the base, and merged with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.frozen_hash import content_hash


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


class Words(nn.Module):
    """Mean embeddings: probes of tokens 0 and 1 see two rows of fifty."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle, self.out = nn.Embedding(50, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.tanh(self.middle(self.words(x).mean(1))))
        return logits


def words(other_rows: bool = False, alpha: float = 4.0) -> fb.Method:
    torch.manual_seed(0)
    module = Words()
    if other_rows:
        module.words.weight.data[2:] = module.words.weight.data[2:].flip(0)
    return fb.FedSALoRA(
        fb.lora(module, rank=2, alpha=alpha, targets=("middle",), head="out"), head="private"
    )


def exported(tmp_path: Path) -> Path:
    x = torch.randint(0, 50, (60, 6), generator=torch.Generator().manual_seed(0))
    data = fb.Federation.from_users(x, torch.arange(60) % 3, torch.arange(60) % 4)
    fb.run(words(), data, rounds=1, out=tmp_path / "run", engine="sequential")
    file = tmp_path / "client.safetensors"
    fb.export_model(tmp_path / "run", 2, "safetensors", file, words(), data)
    np.savez(tmp_path / "in.npz", x=x[:5].numpy())
    return file


def test_a_file_of_adapters_is_refused_over_a_base_that_its_probes_cannot_tell(tmp_path) -> None:
    file = exported(tmp_path)
    assert len(fb.predict(file, tmp_path / "in.npz", words()).labels) == 5
    with pytest.raises(
        fb.UserError, match=r'frozen block "base" has the hash \w{12} here and \w{12} in'
    ):
        fb.predict(file, tmp_path / "in.npz", words(other_rows=True))
    with pytest.raises(fb.UserError, match=r"adapters have scale 3\.0 here and scale 2\.0 in"):
        fb.predict(file, tmp_path / "in.npz", words(alpha=6.0))


def test_a_file_and_its_card_say_what_merging_by_hand_needs(tmp_path) -> None:
    file = exported(tmp_path)
    with safetensors.safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["fedblocks"])["adapters"]
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    base = words().net.base
    digest = facts.pop("base")
    assert digest == content_hash(base) and len(digest) == 64
    wanted = {"rank": 2, "alpha": 4.0, "scale": 2.0, "targets": ["middle"], "head": "out"}
    assert facts == wanted
    card = file.with_name(f"{file.name}.md").read_text()
    assert "scale 2 (alpha 4 / rank 2) on middle" in card and digest in card
    x = torch.arange(12).view(2, 6)
    weight = base["middle.weight"] + 2.0 * tensors["middle.lora_B"] @ tensors["middle.lora_A"]
    hidden = torch.tanh(base["words.weight"][x].mean(1) @ weight.T + base["middle.bias"])
    by_hand = hidden @ tensors["out.weight"].T + tensors["out.bias"]
    np.savez(tmp_path / "two.npz", x=x.numpy())
    said = fb.predict(file, tmp_path / "two.npz", words()).probabilities
    np.testing.assert_allclose(said, torch.softmax(by_hand, -1).numpy(), rtol=1e-5)


def test_adapters_of_a_file_that_does_not_say_its_base_are_refused(tmp_path) -> None:
    file = exported(tmp_path)
    with safetensors.safe_open(file, "pt") as opened:
        card = json.loads(opened.metadata()["fedblocks"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    del card["adapters"]
    safetensors.torch.save_file(tensors, file, {"fedblocks": json.dumps(card)})
    with pytest.raises(fb.UserError, match="does not say over which base"):
        fb.predict(file, tmp_path / "in.npz", words())


def test_a_damaged_base_in_the_run_folder_is_noticed(tmp_path) -> None:
    exported(tmp_path)
    (stored,) = (tmp_path / "run" / "frozen").iterdir()
    block = safetensors.torch.load_file(stored)
    block["middle.weight"][0, 0] += 1
    safetensors.torch.save_file(block, stored)
    x = torch.randint(0, 50, (60, 6), generator=torch.Generator().manual_seed(0))
    data = fb.Federation.from_users(x, torch.arange(60) % 3, torch.arange(60) % 4)
    with pytest.raises(fb.UserError, match="does not hold what its name says"):
        fb.export_model(
            tmp_path / "run", 2, out=tmp_path / "b.safetensors", method=words(), data=data
        )
    stored.write_bytes(b"short")
    with pytest.raises(fb.UserError, match="cannot read"):
        fb.personal(tmp_path / "run", 2, words(), data)
