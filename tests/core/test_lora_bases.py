"""Bases as people have them: with tied weights, and modules that go on being used."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb

SOURCE = torch.Generator().manual_seed(0)
TOKENS = torch.randint(0, 5, (80, 6), generator=SOURCE)
NUMBERS = torch.randn(80, 7, generator=SOURCE)
Y, USERS = torch.arange(80) % 5, torch.arange(80) % 4


class Tied(nn.Module):
    """A language model: words are read and written by one table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(5, 7), nn.Linear(7, 7)
        self.out = nn.Linear(7, 5, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.tanh(self.body(self.words(x).mean(1))))
        return y


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_layers_of_a_base_may_be_tied(engine: str, tmp_path: Path) -> None:
    data = fb.Federation.from_users(TOKENS, Y, USERS)
    base = Tied()
    net = fb.lora(base, rank=2, targets=("body",))
    method = fb.FedAvgLoRA(net, lr=0.5)
    run = fb.run(method, data, rounds=3, out=tmp_path / "run", engine=engine)
    model = fb.personal(run, 0, method, data)
    own = Tied()
    own.load_state_dict(model.merged())  # strictly: under both names
    torch.testing.assert_close(own(TOKENS), model.predict(TOKENS), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(base(TOKENS), own(TOKENS), atol=1e-3)
    path = fb.export_model(run, 0, out=tmp_path / "m.safetensors", method=method, data=data)
    assert path.exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tied_tensor_of_a_base_is_held_once(dtype: torch.dtype) -> None:
    net = fb.lora(Tied(), rank=2, targets=("body",), dtype=dtype)
    template = net.template
    assert template.get_buffer("words.weight") is template.get_buffer("out.weight")
    assert net.constant_names == []


@pytest.mark.parametrize("target", ["words", "out"])
def test_a_target_that_is_tied_is_refused(target: str) -> None:
    with pytest.raises(fb.UserError, match="tied layers are not supported"):
        fb.lora(Tied(), rank=2, targets=(target,))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_small_model_of_hugging_face_with_tied_words(kind: str, tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import transformers as tf

    sizes = {"vocab_size": 5, "tie_word_embeddings": True}
    if kind == "gpt2":
        config = tf.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=8, **sizes)
        module, target = tf.GPT2LMHeadModel(config), "c_attn"
    else:
        config = tf.LlamaConfig(
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            **sizes,
        )
        module, target = tf.LlamaForCausalLM(config), "q_proj"
    plain = fb.Net.of(module.eval(), keep_weights=True, output=lambda result: result.logits[:, -1])
    data = fb.Federation.from_users(TOKENS, Y, USERS)
    method = fb.FedAvgLoRA(fb.lora(plain, rank=2, targets=(target,)), lr=0.5)
    run = fb.run(method, data, rounds=2, out=tmp_path / "run", engine="sequential")
    model = fb.personal(run, 0, method, data)
    own = copy.deepcopy(module)
    own.load_state_dict(model.merged())
    torch.testing.assert_close(
        own(TOKENS).logits[:, -1], model.predict(TOKENS), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: fb.Net.of(m, keep_weights=True)])
def test_a_module_that_goes_on_being_used_changes_nothing(wrap: object, tmp_path: Path) -> None:
    assert callable(wrap)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
    data = fb.Federation.from_users(NUMBERS, Y, USERS)
    net = fb.lora(wrap(module), rank=3, targets=("0",), head="2")
    method = fb.FedSALoRA(net, head="private", lr=0.3)
    run = fb.run(method, data, rounds=2, out=tmp_path / "run", engine="sequential")
    model = fb.personal(run, 0, method, data)
    before, start = model.predict(NUMBERS), net.init(0)["2.weight"]
    merged = model.merged()
    module.load_state_dict(merged)
    assert torch.equal(net.init(0)["2.weight"], start)
    assert torch.equal(fb.personal(run, 0, method, data).predict(NUMBERS), before)
    again = fb.personal(run, 0, method, data).merged()
    assert all(torch.equal(again[name], value) for name, value in merged.items())
