"""Recurrent layers and attention for a stack of clients: outputs, states and gradients are those of
torch's own layers, client by client, in double precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedblocks.core.mode import mode
from fedblocks.layers.attention import attention
from fedblocks.layers.replacement import mappable, switch

Result = tuple[Tensor, list[Tensor]]
CLIENTS, BATCH, STEPS, FEATURES = 3, 4, 5, 6


def leaves(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for one in result if one is not None for leaf in leaves(one)]


def weigh(result: Any) -> Tensor:
    """A number that depends on every entry of a result in its own way."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in leaves(result):
        weights = torch.linspace(-1, 2, leaf.numel(), dtype=torch.float64).view(leaf.shape)
        total = total + (leaf * weights).sum()
    return total


def assert_equal_to_torch(layer: nn.Module, call: Callable[..., Any], *inputs: Tensor) -> None:
    """`call(layer, *inputs)` mapped over clients with weights of their own, and by a loop."""
    torch.manual_seed(0)
    own = mappable(layer)
    draw = lambda t: t + 0.3 * torch.randn(CLIENTS, *t.shape, dtype=t.dtype)
    weights = {name: draw(value.detach()) for name, value in layer.named_parameters()}
    everything = [draw(x) for x in inputs]

    def loss(
        module: nn.Module, params: dict[str, Tensor], *xs: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        class Caller(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = module

            def forward(self, *xs: Tensor) -> Any:
                return call(self.layer, *xs)

        named = {f"layer.{name}": value for name, value in params.items()}
        result = functional_call(Caller(), named, xs)
        return weigh(result), leaves(result)

    places = tuple(range(len(inputs) + 1))
    with mode(training=True, mapped=True):
        slope = grad(lambda p, *xs: loss(own, p, *xs), places, has_aux=True)
        (d_weights, *d_inputs), results = vmap(slope)(weights, *everything)
    for client in range(CLIENTS):
        params = {name: value[client].requires_grad_() for name, value in weights.items()}
        xs = [x[client].requires_grad_() for x in everything]
        total, expected = loss(copy.deepcopy(layer), params, *xs)
        slopes = torch.autograd.grad(total, [*params.values(), *xs])
        actual = [t[client] for t in results]
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        slopes_here = [d_weights[name][client] for name in params] + [d[client] for d in d_inputs]
        torch.testing.assert_close(slopes_here, list(slopes), rtol=1e-9, atol=1e-11)


def sequences(*shape: int) -> Tensor:
    return torch.zeros(shape or (BATCH, STEPS, FEATURES), dtype=torch.float64)


LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm-both-ways": (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
    "gru": (nn.GRU, {}),
    "gru-stacked": (nn.GRU, {"num_layers": 3}),
    "gru-both-ways": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    "gru-without-bias": (nn.GRU, {"bias": False}),
    "rnn": (nn.RNN, {}),
    "rnn-relu-both-ways": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
    "rnn-stacked": (nn.RNN, {"num_layers": 2, "bias": False}),
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_gives_what_torch_gives(name: str, batch_first: bool) -> None:
    kind, options = LAYERS[name]
    layer = kind(FEATURES, 7, batch_first=batch_first, **options).double()
    shape = (BATCH, STEPS, FEATURES) if batch_first else (STEPS, BATCH, FEATURES)
    assert_equal_to_torch(layer, lambda m, x: m(x), sequences(*shape))


@pytest.mark.parametrize("name", ["lstm-both-ways", "gru-both-ways", "rnn"])
def test_a_first_state_may_be_passed(name: str) -> None:
    kind, options = LAYERS[name]
    layer = kind(FEATURES, 7, batch_first=True, **options).double()
    places = layer.num_layers * (1 + layer.bidirectional)
    state = sequences(places, BATCH, 7)
    if kind is nn.LSTM:
        call = lambda m, x, h, c: m(x, (h, c))
        assert_equal_to_torch(layer, call, sequences(), state, state)
    else:
        assert_equal_to_torch(layer, lambda m, x, h: m(x, h), sequences(), state)


@pytest.mark.parametrize("name", ["lstm", "gru-stacked"])
def test_a_sequence_needs_no_batch(name: str) -> None:
    kind, options = LAYERS[name]
    layer = kind(FEATURES, 7, batch_first=True, **options).double()
    assert_equal_to_torch(layer, lambda m, x: m(x), sequences(STEPS, FEATURES))


ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch-in-the-middle": {"batch_first": False},
    "without-bias": {"bias": False},
    "other-keys": {"kdim": 6, "vdim": 6},
    "one-more-key": {"add_bias_kv": True},
    "zero-key": {"add_zero_attn": True, "add_bias_kv": True},
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("weights", ["none", "mean", "heads"])
def test_attention_gives_what_torch_gives(name: str, weights: str) -> None:
    options = {"batch_first": True, **ATTENTIONS[name]}
    layer = nn.MultiheadAttention(FEATURES, 2, **options).double()
    want = {"need_weights": weights != "none", "average_attn_weights": weights == "mean"}
    assert_equal_to_torch(layer, lambda m, x: m(x, x, x, **want), sequences())
    assert_equal_to_torch(layer, lambda m, x, y: m(x, y, y, **want), sequences(), sequences())


BOOLEAN = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
PADDING = torch.zeros(BATCH, STEPS, dtype=torch.bool)
PADDING[1, 3:] = PADDING[2, 4:] = True
NUMBERS = torch.linspace(-1, 1, STEPS * STEPS, dtype=torch.float64).view(STEPS, STEPS)
MASKS: dict[str, dict[str, Any]] = {
    "causal": {"attn_mask": BOOLEAN, "is_causal": True},
    "numbers": {"attn_mask": NUMBERS},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": BOOLEAN, "key_padding_mask": PADDING},
    "by-head": {"attn_mask": NUMBERS.expand(2 * BATCH, -1, -1).cumsum(0)},
}


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masked_attention_gives_what_torch_gives(name: str, extra: bool) -> None:
    layer = nn.MultiheadAttention(FEATURES, 2, batch_first=True, add_bias_kv=extra).double()
    call = lambda m, x: m(x, x, x, **MASKS[name])
    assert_equal_to_torch(layer, call, sequences())


def test_attention_needs_no_batch() -> None:
    layer = nn.MultiheadAttention(FEATURES, 2).double()
    assert_equal_to_torch(layer, lambda m, x: m(x, x, x), sequences(STEPS, FEATURES))


@pytest.mark.parametrize("first", [False, True])
def test_an_encoder_of_transformer_layers_gives_what_torch_gives(first: bool) -> None:
    one = nn.TransformerEncoderLayer(
        FEATURES, 2, 10, dropout=0.0, batch_first=True, norm_first=first
    )
    layer = nn.TransformerEncoder(one, 2, enable_nested_tensor=False).double()
    call = lambda m, x: m(x, mask=BOOLEAN, src_key_padding_mask=PADDING)
    assert_equal_to_torch(layer, call, sequences())


def test_a_decoder_layer_gives_what_torch_gives() -> None:
    layer = nn.TransformerDecoderLayer(FEATURES, 2, 10, dropout=0.0, batch_first=True).double()
    assert_equal_to_torch(layer, lambda m, x, y: m(x, y), sequences(), sequences())


SCALED: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": ~BOOLEAN},
    "numbers": {"attn_mask": NUMBERS},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("name", SCALED)
def test_the_function_gives_what_torchs_gives(name: str) -> None:
    q, k, v = torch.randn(3, BATCH, 2, STEPS, FEATURES, dtype=torch.float64).unbind()
    expected = F.scaled_dot_product_attention(q, k, v, **SCALED[name])
    torch.testing.assert_close(attention(q, k, v, **SCALED[name]), expected)


def test_several_queries_may_share_a_key() -> None:
    q = torch.randn(BATCH, 4, STEPS, FEATURES)
    k, v = torch.randn(2, BATCH, 2, STEPS, FEATURES).unbind()
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v, enable_gqa=True), expected)


def encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, batch_first=True)


class OwnAttention(nn.MultiheadAttention):
    """A layer of a user's own, which stays as it is."""


KERNELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "attention": (
        lambda: nn.MultiheadAttention(FEATURES, 2, batch_first=True),
        "_native_multi_head_attention",
    ),
    "own attention": (
        lambda: OwnAttention(FEATURES, 2, batch_first=True),
        "_native_multi_head_attention",
    ),
    "an encoder's layer": (encoder_layer, "_transformer_encoder_layer_fwd"),
    "an encoder": (
        lambda: nn.TransformerEncoder(encoder_layer(), 2),
        "_nested_tensor_from_mask",
    ),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_that_are_for_evaluation_alone_are_not_taken(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can be neither mapped nor exported."""
    make, kernel = KERNELS[kind]
    plain, x = make().eval(), sequences().float()
    own = mappable(plain)
    switch(own, training=False)
    padding = torch.arange(STEPS).expand(BATCH, -1) >= 3

    def call(layer: nn.Module) -> Any:
        if isinstance(layer, nn.MultiheadAttention):
            return layer(x, x, x, key_padding_mask=padding)
        return layer(x, src_key_padding_mask=padding)

    def taken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("taken")

    monkeypatch.setattr(torch, kernel, taken)
    with torch.no_grad(), pytest.raises(RuntimeError, match="taken"):
        call(plain)
    with torch.no_grad():
        call(own)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_kernels_of_recurrent_layers_can_be_trained_in_evaluation_mode(
    kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of cuDNN cannot: they ask whether the layer is training."""
    seen, forward = list[bool](), kind.forward
    monkeypatch.setattr(
        kind, "forward", lambda own, *xs: seen.append(own.training) or forward(own, *xs)
    )
    layer = mappable(kind(FEATURES, 4).double()).eval()
    layer(sequences())
    assert seen == [True] and not layer.training
