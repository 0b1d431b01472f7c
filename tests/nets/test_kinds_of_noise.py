"""Noise of every shape and of complex numbers is that of docs/randomness.md, on every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core import mode
from fedblocks.layers.guard import Guard
from tests.oracles import definition

KEY = definition.key(3, "noise")


def drawn(draw: Callable[[], Tensor]) -> Tensor:
    """What a module draws first in a training step of this key."""
    with mode.mode(training=True, mapped=False, key=torch.tensor(KEY)), Guard(nn.Identity(), []):
        return draw()


def uniform(number: int, *shape: int) -> np.ndarray:
    """The draw of this number, from 1."""
    return definition.uniform(definition.fold(KEY, number), *shape)


def normal(*shape: int) -> np.ndarray:
    return np.sqrt(-2 * np.log(uniform(1, *shape))) * np.cos(2 * math.pi * uniform(2, *shape))


def complex_of(parts: np.ndarray) -> np.ndarray:
    return parts[..., 0] + 1j * parts[..., 1]


def assert_close(ours: Tensor, wanted: np.ndarray) -> None:
    assert ours.shape == wanted.shape
    assert np.allclose(ours.numpy(), wanted, atol=1e-6)


COMPLEX = (torch.cfloat, torch.cdouble)
SHAPES = [(3, 2), (5,), ()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_noise_is_that_of_the_definition(dtype: torch.dtype, shape: tuple[int]) -> None:
    like = torch.zeros(shape, dtype=dtype)
    uniforms, normals = complex_of(uniform(1, *shape, 2)), complex_of(normal(*shape, 2))
    for draw in (lambda: torch.rand(shape, dtype=dtype), lambda: torch.rand_like(like)):
        assert drawn(draw).dtype == dtype
        assert_close(drawn(draw), uniforms)
    for draw in (lambda: torch.randn(shape, dtype=dtype), lambda: torch.randn_like(like)):
        assert drawn(draw).dtype == dtype
        assert_close(drawn(draw), normals * math.sqrt(0.5))


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_complex_noise_is_spread_as_that_of_torch(draw: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    ours, theirs = drawn(lambda: draw(40_000, dtype=torch.cfloat)), draw(40_000, dtype=torch.cfloat)
    for part in (torch.real, torch.imag):
        assert abs(part(ours).mean() - part(theirs).mean()) < 0.02
        assert abs(part(ours).std() - part(theirs).std()) < 0.02
    assert abs(torch.corrcoef(torch.stack([ours.real, ours.imag]))[0, 1]) < 0.02


def test_a_type_that_is_asked_for_goes_before_that_of_the_example() -> None:
    real, pair = torch.zeros(3), torch.zeros(3, dtype=torch.cfloat)
    assert_close(drawn(lambda: torch.randn_like(pair, dtype=torch.float32)), normal(3))
    assert_close(
        drawn(lambda: torch.rand_like(real, dtype=torch.cfloat)), complex_of(uniform(1, 3, 2))
    )


ONE = torch.tensor(0.5)
WITHOUT_DIMENSIONS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "rand(())": (lambda: torch.rand(()), lambda: uniform(1)),
    "rand([])": (lambda: torch.rand([]), lambda: uniform(1)),
    "rand(Size)": (lambda: torch.rand(torch.Size([])), lambda: uniform(1)),
    "rand(size=())": (lambda: torch.rand(size=()), lambda: uniform(1)),
    "rand(size=[])": (lambda: torch.rand(size=[]), lambda: uniform(1)),
    "rand_like": (lambda: torch.rand_like(ONE), lambda: uniform(1)),
    "randn(())": (lambda: torch.randn(()), lambda: normal()),
    "randn([])": (lambda: torch.randn([]), lambda: normal()),
    "randn_like": (lambda: torch.randn_like(ONE), lambda: normal()),
    "bernoulli": (lambda: torch.bernoulli(ONE), lambda: 1.0 * (uniform(1) < 0.5)),
    "dropout": (lambda: F.dropout(ONE, 0.2), lambda: (uniform(1) >= 0.2) * 0.5 / 0.8),
}


@pytest.mark.parametrize("name", WITHOUT_DIMENSIONS)
def test_noise_without_dimensions_is_that_of_the_definition(name: str) -> None:
    draw, wanted = WITHOUT_DIMENSIONS[name]
    assert_close(drawn(draw), np.asarray(wanted()))


SIZES: dict[str, Callable[[], Tensor]] = {
    "of numpy": lambda: torch.rand(np.int64(3)),
    "a tensor": lambda: torch.rand(torch.tensor(3)),
    "of numpy in a tuple": lambda: torch.rand((np.int64(3),)),
    "of numpy by name": lambda: torch.rand(size=(np.int64(3),)),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_any_whole_number_that_torch_takes(name: str) -> None:
    assert_close(drawn(SIZES[name]), uniform(1, 3))


def test_a_size_that_is_no_whole_number_is_refused_as_by_torch() -> None:
    for draw in (lambda: torch.rand(3.0), lambda: torch.rand((3.5,)), lambda: torch.rand(size=3)):
        for ask in (draw, lambda draw=draw: drawn(draw)):
            with pytest.raises(TypeError):
                ask()


class Noisy(nn.Module):
    """Two layers, between which somebody disturbs the features in training."""

    def __init__(self, disturb: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.disturb = disturb
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(self.disturb(h) if self.training else h)


def channel(h: Tensor) -> Tensor:
    """Pairs of features are numbers that a channel disturbs."""
    z = torch.view_as_complex(h.unflatten(1, (4, 2)))
    return torch.view_as_real(z + torch.randn_like(z)).flatten(1)


def turned(h: Tensor) -> Tensor:
    z = torch.polar(torch.ones_like(h), h) * torch.rand(h.shape, dtype=torch.cfloat).to(
        h.dtype.to_complex()
    )
    return z.real + z.imag


EVERYWHERE: dict[str, Callable[[Tensor], Tensor]] = {
    "channel": channel,
    "turned": turned,
    "rand(())": lambda h: h * torch.rand(()),
    "randn([])": lambda h: h * torch.randn([]),
    "rand_like": lambda h: h * torch.rand_like(h[0, 0].detach()),
    "bernoulli": lambda h: h * torch.bernoulli(torch.tensor(0.5)),
    "dropout": lambda h: h * F.dropout(torch.tensor(1.0), 0.5),
    "complex": lambda h: h * torch.randn((), dtype=torch.cfloat).abs(),
    "numpy": lambda h: h * torch.rand(np.int64(8)),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_such_noise_is_right_on_both_engines(name: str) -> None:
    report = fb.check_net(fb.Net.of(lambda: Noisy(EVERYWHERE[name])), torch.randn(9, 6))
    assert report.engines == ("sequential", "vectorised"), str(report)


def test_a_layer_that_is_dropped_at_random_is_right_on_sequential() -> None:
    drop = lambda h: h if torch.rand(()) < 0.5 else h.tanh()
    report = fb.check_net(fb.Net.of(lambda: Noisy(drop)), torch.randn(9, 6))
    assert report.engines == ("sequential",)
    assert "data-dependent" in report.why_not("vectorised")


def test_the_noise_of_a_complex_channel_reaches_both_parts_in_a_run(tmp_path: Any) -> None:
    outcomes = []
    x, y = torch.randn(30, 6).numpy(), np.arange(30) % 3
    data = fb.Federation.from_users(x, y, [0] * 14 + [1] * 16)
    for engine in ("sequential", "vectorised"):
        for disturb in (only_imaginary, lambda h: h):
            method = fb.Local(fb.Net.of(lambda own=disturb: Noisy(own)), epochs=4, batch_size=4)
            out = tmp_path / f"{engine}-{len(outcomes)}"
            run = fb.run(method, data, rounds=2, out=out, engine=engine, device="cpu")
            outcomes.append(run.state().private[0]["model"]["a.weight"])
    noisy, silent, stacked, _ = outcomes
    assert torch.allclose(noisy, stacked, atol=1e-5)
    assert not torch.allclose(noisy, silent, atol=1e-3)


def only_imaginary(h: Tensor) -> Tensor:
    return h + torch.randn(h.shape, dtype=torch.cfloat).imag
