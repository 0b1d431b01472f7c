"""Adapters as peft writes and reads them: names, shapes and config without peft, and where it is
installed, its own model over the same base.
"""

from __future__ import annotations

import copy
import json
import math
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedblocks as fb
from fedblocks.cli.app import app
from fedblocks.export.peft_config import adapter_config
from fedblocks.export.peft_names import target_modules, to_peft

WITH_PEFT = pytest.mark.skipif(find_spec("peft") is None, reason="needs the package peft")
P = "base_model.model."


class Every(nn.Module):
    """A layer of each kind that an adapter fits, but GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8, padding_idx=0)
        self.look = nn.MultiheadAttention(8, 2, batch_first=True)
        self.point, self.dense = nn.Conv2d(5, 4, 1), nn.Linear(8, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        hidden = hidden + self.look(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.point(hidden[..., None]).mean(1).squeeze(-1)
        y: Tensor = self.classifier(torch.tanh(self.dense(hidden)))
        return y


torch.manual_seed(0)
MODULE = Every()
X = torch.randint(0, 12, (60, 5), generator=torch.Generator().manual_seed(0))
DATA = fb.Federation.from_users(X, torch.arange(60) % 3, torch.arange(60) % 4)
TARGETS = ("words", "look", "point", "dense")


def net() -> fb.LoraNet:
    return fb.lora(MODULE, rank=3, alpha=6, targets=TARGETS, head="classifier")


METHODS: dict[str, Any] = {
    "fedsa": lambda: fb.FedSALoRA(net(), head="private", lr=0.3, batch_size=4),
    "ranks": lambda: fb.FedAvgLoRA(net(), head="shared", ranks=(1, 3), lr=0.3, batch_size=4),
    "dual": lambda: fb.DualLoRA(net(), head="private", lr=0.3, batch_size=4),
    "residual": lambda: fb.ProductLoRA(net(), head="shared", keep="residual", lr=0.3, batch_size=4),
}


def exported(name: str, tmp_path: Path) -> tuple[Path, Any]:
    """The folder of client 1 after two rounds, and its model."""
    method = METHODS[name]()
    run = fb.run(method, DATA, rounds=2, out=tmp_path / "run", engine="sequential")
    folder = fb.export_peft(run, 1, tmp_path / "adapter", method, DATA, base_model="every")
    return folder, fb.personal(run, 1, method, DATA)


def shapes_in(folder: Path) -> dict[str, list[int]]:
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    return {name: list(value.shape) for name, value in tensors.items()}


# as `get_peft_model(Every(), LoraConfig(r=3, ...)).save_pretrained(...)` of peft 0.21 has them
STORED = {
    f"{P}words.lora_embedding_A": [3, 12],
    f"{P}words.lora_embedding_B": [8, 3],
    f"{P}look.base_layer.out_proj.lora_A.weight": [3, 8],
    f"{P}look.base_layer.out_proj.lora_B.weight": [8, 3],
    f"{P}look.lora_A.weight": [3, 8],
    f"{P}look.lora_B.weight": [24, 3],
    f"{P}point.lora_A.weight": [3, 5, 1, 1],
    f"{P}point.lora_B.weight": [4, 3, 1, 1],
    f"{P}dense.lora_A.weight": [3, 8],
    f"{P}dense.lora_B.weight": [6, 3],
    f"{P}classifier.weight": [3, 6],
    f"{P}classifier.bias": [3],
}


def test_a_folder_has_the_names_shapes_and_config_of_peft(tmp_path: Path) -> None:
    folder, _ = exported("fedsa", tmp_path)
    assert shapes_in(folder) == STORED
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((folder / "adapter_config.json").read_text())
    core = {name: config[name] for name in ("peft_type", "r", "lora_alpha", "modules_to_save")}
    assert core == {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 6,
        "modules_to_save": ["classifier"],
    }
    assert config["target_modules"] == list(TARGETS)
    assert config["base_model_name_or_path"] == "every"
    stored = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert not stored[f"{P}look.base_layer.out_proj.lora_B.weight"].any()


@pytest.mark.parametrize("name", METHODS)
def test_a_folder_read_again_is_the_model(name: str, tmp_path: Path) -> None:
    folder, model = exported(name, tmp_path)
    params = fb.read_peft(net(), folder)
    torch.testing.assert_close(net()(params, X[:9]), model.predict(X[:9]), rtol=1e-6, atol=1e-6)
    other = fb.lora(MODULE, rank=2, alpha=1, targets=TARGETS, head="classifier")  # in its own scale
    again = other(fb.read_peft(other, folder), X[:9])
    torch.testing.assert_close(again, model.predict(X[:9]), rtol=1e-5, atol=1e-6)


def test_two_adapters_side_by_side_have_twice_the_rank_in_the_same_scale(tmp_path: Path) -> None:
    folder, _ = exported("dual", tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (6, 12, {})


def test_layers_of_other_ranks_stand_in_patterns(tmp_path: Path) -> None:
    """A dense change is a product of rank `inputs`: 3 more than 8, 8, 12 and 5."""
    folder, _ = exported("residual", tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == 11 and config["rank_pattern"] == {"words": 15, "point": 8}
    assert config["alpha_pattern"] == {"words": 30, "point": 16}


@WITH_PEFT
@pytest.mark.parametrize("name", METHODS)
def test_peft_over_the_base_is_the_clients_model(name: str, tmp_path: Path) -> None:
    from peft import PeftModel

    folder, model = exported(name, tmp_path)
    theirs = PeftModel.from_pretrained(copy.deepcopy(MODULE), folder).eval()(X[:9])
    torch.testing.assert_close(theirs, model.predict(X[:9]), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(MODULE.eval()(X[:9]), model.predict(X[:9]), atol=1e-2)


@WITH_PEFT
def test_a_config_and_a_folder_of_peft_become_a_net_and_its_tensors(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    options: dict[str, Any] = {"r": 3, "lora_alpha": 5, "use_rslora": True}
    targets = ["dense", "point", "words"]
    config = LoraConfig(target_modules=targets, modules_to_save=["classifier"], **options)
    theirs = get_peft_model(copy.deepcopy(MODULE), config).eval()
    torch.manual_seed(1)
    for name, value in theirs.named_parameters():
        if value.requires_grad:
            value.data = torch.randn(value.shape)
            if "lora_embedding_A" in name:
                value.data[:, 0] = 0.0  # the row of padding_idx, which rests here
    theirs.save_pretrained(tmp_path / "theirs")
    for source in (config, tmp_path / "theirs"):
        own = fb.lora_from_peft(MODULE, source)
        assert own.targets == ("words", "point", "dense") and own.spec.head == "classifier"
        assert own.spec.scale == pytest.approx(5 / math.sqrt(3))
    ours = own(fb.read_peft(own, tmp_path / "theirs"), X[:9])
    torch.testing.assert_close(ours, theirs(X[:9]), rtol=1e-5, atol=1e-5)


@WITH_PEFT
def test_a_module_with_adapters_of_peft_is_refused() -> None:
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(copy.deepcopy(MODULE), LoraConfig(r=2, target_modules=["dense"]))
    with pytest.raises(fb.UserError, match="the module has adapters of peft already"):
        fb.lora(wrapped, rank=2)
    assert fb.lora(wrapped.merge_and_unload(), rank=2, targets=("dense",)).targets == ("dense",)


USUAL: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["dense"]}


def test_a_config_says_rank_alpha_targets_and_head() -> None:
    own = fb.lora_from_peft(MODULE, {**USUAL, "modules_to_save": ["classifier"], "bias": "none"})
    assert own.spec == fb.lora(MODULE, 2, 4.0, ("dense",), "classifier").spec
    assert own.base_hash == fb.lora(MODULE, 2, 4.0, ("dense",), "classifier").base_hash
    by_pattern = fb.lora_from_peft(MODULE, {**USUAL, "target_modules": r"(dense|po.*)"})
    assert by_pattern.targets == ("point", "dense")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "is of IA3 adapters"),
        ({"lora_dropout": 0.05}, "says lora_dropout = 0.05, which adapters here do not have"),
        ({"use_dora": True}, "says use_dora = True"),
        ({"bias": "all"}, "says bias = 'all'"),
        ({"rank_pattern": {"dense": 4}}, "says rank_pattern"),
        ({"target_modules": "all-linear"}, "all-linear"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is another start"),
        ({"modules_to_save": ["classifier", "dense"]}, "names several parts"),
        ({"modules_to_save": ["score"]}, 'modules_to_save = "score" is 0 parts'),
    ],
)
def test_what_a_config_asks_for_and_is_not_here_is_refused_by_name(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(fb.UserError, match=message):
        fb.lora_from_peft(MODULE, {**USUAL, **change})


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match="cannot read a peft config"):
        fb.lora_from_peft(MODULE, tmp_path)
    folder, _ = exported("fedsa", tmp_path)
    with pytest.raises(fb.UserError, match=r'has no tensor "base_model.model.dense.lora_A'):
        stored = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        del stored[f"{P}dense.lora_A.weight"]
        safetensors.torch.save_file(stored, folder / "adapter_model.safetensors")
        fb.read_peft(net(), folder)
    few = fb.lora(MODULE, rank=3, targets=("point",), head="classifier")
    with pytest.raises(fb.UserError, match="belongs to no adapter of the net"):
        fb.read_peft(few, folder)
    method = METHODS["fedsa"]()
    with pytest.raises(fb.UserError, match="exists already"):
        fb.export_peft(tmp_path / "run", 1, folder, method, DATA)
    fb.export_peft(tmp_path / "run", 1, folder, method, DATA, force=True)
    assert shapes_in(folder) == STORED


class Blocks(nn.Module):
    """Paths of which one is the end of another."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.dense, self.inner = nn.Linear(4, 4), nn.Sequential()
        self.inner.add_module("dense", nn.Linear(4, 4))
        self.add_module(head, nn.Linear(4, 3))
        self.last = head

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.get_submodule(self.last)(self.inner(self.dense(x)))
        return y


def test_a_path_that_is_the_end_of_another_is_named_by_a_pattern() -> None:
    module = Blocks("classifier")
    every = fb.lora(module, rank=2, targets=("dense",), head="classifier")
    assert target_modules(every) == ["dense", "inner.dense"]
    inner = fb.lora(module, rank=2, targets=("inner.dense",), head="classifier")
    assert target_modules(inner) == ["inner.dense"]
    outer = fb.lora(module, rank=2, targets=("dense",), head="inner")  # and not the head's
    assert target_modules(outer) == "dense"


def test_a_pattern_that_leaves_out_a_path_with_the_same_end_is_refused() -> None:
    module = Blocks("classifier")
    assert fb.lora_from_peft(module, {**USUAL, "target_modules": r".*\.dense"}).targets
    with pytest.raises(fb.UserError, match=r'target_modules = "dense" leaves out "inner\.dense"'):
        fb.lora_from_peft(module, {**USUAL, "target_modules": "dense"})


@WITH_PEFT
def test_layers_of_gpt2_are_written_as_peft_has_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from peft import PeftModel

    sizes = {"vocab_size": 30, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    own = fb.lora(fb.Net.of(module, output="logits", keep_weights=True), rank=2)
    assert own.left_out == ["lm_head"]
    params = {k: torch.randn_like(v) for k, v in own.init(0).items()}
    safetensors.torch.save_file(to_peft(own, params), tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(own, params, None)))
    theirs = PeftModel.from_pretrained(module, tmp_path).eval()
    x = torch.arange(12).view(2, 6)
    torch.testing.assert_close(theirs(x).logits, own(params, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", ["out", "dense"])
def test_a_head_that_peft_would_mistake_is_refused(head: str) -> None:
    """Names that end alike are heads, too: "lora_dropout" ends as "out" does."""
    if head == "dense":
        module: nn.Module = nn.Sequential()
        module.add_module("inner_dense", nn.Linear(4, 4))
        module.add_module("dense", nn.Linear(4, 3))
        own = fb.lora(module, rank=2, targets=("inner_dense",), head="dense")
    else:
        own = fb.lora(Blocks("out"), rank=2, targets=("inner.dense",), head="out")
    with pytest.raises(fb.UserError, match=f'peft would take ".*" for the head "{head}"'):
        target_modules(own)


def test_the_command_writes_a_folder_for_peft(tmp_path: Path) -> None:
    job = f"""
import torch, fedblocks as fb
from torch import nn
torch.manual_seed(0)
module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
data = fb.small_federation(dtype=torch.float32)
fb.run(fb.FedAvgLoRA(fb.lora(module, rank=2)), data, rounds=1, out={str(tmp_path / "run")!r})
"""
    code = tmp_path / "job.py"
    code.write_text(job)
    runpy.run_path(str(code))
    folder = tmp_path / "adapter"
    words = ["export", str(tmp_path / "run"), "--client", "2", "--format", "peft"]
    said = CliRunner().invoke(app, [*words, "--out", str(folder), "--code", str(code)])
    assert said.exit_code == 0, said.output
    assert "adapters of client 2 for peft" in said.output
    assert shapes_in(folder) == {
        f"{P}0.lora_A.weight": [2, 6],
        f"{P}0.lora_B.weight": [5, 2],
        f"{P}2.lora_A.weight": [2, 5],
        f"{P}2.lora_B.weight": [4, 2],
    }
