"""A report on one net serves another only if nothing that it depends on is another."""

from __future__ import annotations

import abc
import enum
import functools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.inspection import code_of
from fedblocks.engines.net_check.known_again import key_of
from fedblocks.engines.net_check.report import NetReport

FACTOR = 1.0
Change = Callable[[Any, Any], None]  # of a module, by one of two values


def helper(x: Tensor) -> Tensor:
    return x


def other_helper(x: Tensor) -> Tensor:
    return -x


class Layer(nn.Module):
    limit = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("mask", torch.ones(2))
        self.settings: Any = SimpleNamespace(factor=1.0)

    @property
    def factor(self) -> float:
        return FACTOR

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        return helper(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(self.inner(x)) * self.mask * self.settings.factor * self.factor


class Kind(enum.Enum):
    ONE, TWO = 1, 2


@dataclass(frozen=True)
class Settings:
    kind: Kind
    more: Any = None


class Abstract(Layer, abc.ABC):
    """A class with attributes that nobody can look into, and one whose hash fails."""

    lock, odd = threading.Lock(), Settings(Kind.ONE, [])

    @functools.cached_property
    def once(self) -> int:
        return 1


def closing_over(value: Any) -> Callable[..., Any]:
    return lambda x: (x, value)


def with_default(value: Any) -> Callable[..., Any]:
    return lambda x, y=value: x


def with_default_by_word(value: Any) -> Callable[..., Any]:
    return lambda x, *, y=value: x


VALUES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "a tuple": lambda value: (0, (value,)),
    "a list": lambda value: [value],
    "a set": lambda value: {value},
    "a dictionary": lambda value: {"a": value},
    "a key": lambda value: {value: 1},
    "an object": lambda value: SimpleNamespace(a=[value]),
    "an array": lambda value: np.full(2, float(value)),
    "a tensor": lambda value: torch.full((2,), float(value)),
    "the end of a long tensor": lambda value: torch.tensor([0.0] * 5000 + [float(value)]),
    "settings": lambda value: Settings(Kind(1 + value)),
    "a function": lambda value: other_helper if value else helper,
    "a function of torch": lambda value: torch.relu if value else torch.sigmoid,
    "a method of a type in C": lambda value: [value].append,
    "a closure": closing_over,
    "a closure of a closure": lambda value: closing_over(closing_over(value)),
    "a default": with_default,
    "a default by word": with_default_by_word,
    "a part of a function": lambda value: partial(helper, value),
    "a part by word": lambda value: partial(helper, y=value),
    "a type of numbers": lambda value: torch.float32 if value else torch.float64,
    "a module": lambda value: [nn.Linear(2, 2 + value)],
    "the layer of a method": lambda value: nn.Linear(2, 2 + value).forward,
}
PLACES: dict[str, Change] = {
    "an attribute": lambda layer, value: setattr(layer, "more", value),
    "an attribute below": lambda layer, value: setattr(layer.inner, "more", value),
}


def known(place: str, what: str, value: int) -> list[Any]:
    layer = Layer()
    PLACES[place](layer, VALUES[what](value))
    return list(code_of(layer))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", VALUES)
def test_a_module_is_known_by_what_its_attributes_hold(place: str, what: str) -> None:
    assert known(place, what, 0) == known(place, what, 0) != known(place, what, 1)
    assert hash(tuple(known(place, what, 0))) == hash(tuple(known(place, what, 0)))


@pytest.mark.parametrize(
    "value",
    [
        *(iter([1]), lru_cache(helper), (one for one in [1]), random.Random(1)),
        *(torch.zeros(1_000_001), torch.zeros(2).to_sparse(), np.array([helper], object)),
    ],
)
def test_what_nobody_looks_into_is_another_each_time(value: Any) -> None:
    layer = Layer()
    layer.more = value
    assert list(code_of(layer)) != list(code_of(layer))


def test_whole_numbers_fractions_and_truths_are_told_apart() -> None:
    assert len({key_of(1), key_of(1.0), key_of(True), key_of("1"), key_of(None)}) == 5


def test_a_class_is_known_again_whatever_its_attributes_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = tuple(code_of(Abstract()))
    assert {before: 1}[tuple(code_of(Abstract()))] == 1
    monkeypatch.setattr(Abstract, "lock", threading.Lock())
    assert tuple(code_of(Abstract())) != before


def test_lists_that_hold_themselves_are_looked_at_once() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)
    assert key_of(one) == key_of(one) != key_of(other)


def test_the_same_hooks_are_known_again_and_others_are_not() -> None:
    def hooked(factor: float) -> list[Any]:
        layer = Layer()
        layer.handle = layer.inner.register_forward_hook(lambda m, i, o: factor * o)
        return list(code_of(layer))

    assert hooked(1.0) == hooked(1.0) != hooked(2.0)


def test_buffers_are_known_by_their_numbers_and_parameters_by_their_shape() -> None:
    one, other = Layer(), Layer()
    assert not torch.equal(one.inner.weight, other.inner.weight)
    assert list(code_of(one)) == list(code_of(other))
    other.mask[0] = 2.0
    assert list(code_of(one)) != list(code_of(other))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        ("Layer", "limit", 2.0),
        ("Layer", "turned", staticmethod(other_helper)),
        ("Layer", "factor", property(lambda self: 2.0)),
        ("Layer", "forward", lambda self, x: x),
        ("globals", "FACTOR", 2.0),
        ("globals", "helper", other_helper),
    ],
)
def test_a_module_is_known_by_its_class_and_the_global_names_that_this_uses(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str, value: Any
) -> None:
    before = list(code_of(Layer()))
    if owner == "globals":
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(Layer, name, value)
    assert list(code_of(Layer())) != before


def by_python() -> nn.Module:
    layer = Layer()
    nn.init.constant_(layer.inner.bias, random.random())
    return layer


def always_alike() -> nn.Module:
    torch.manual_seed(0)
    return Layer()


X = torch.randn(9, 3)


def test_a_verdict_on_a_class_is_not_taken_for_one_on_a_function_or_an_instance() -> None:
    right = check.check_training(fb.Net.of(Layer), X)
    assert check.check_training(fb.Net.of(Layer), X) is right and not right.remark
    assert fb.check_net(fb.Net.of(by_python), X).engines == ()
    assert "seeds torch's randomness" in fb.check_net(fb.Net.of(always_alike), X).remark
    others = [fb.Net.of(Layer()), fb.Net.of(Layer(), keep_weights=True), fb.Net.of(lambda: Layer())]
    reports = [check.check_training(net, X) for net in others]
    assert len({id(right), *map(id, reports)}) == 4
    again = check.check_training(fb.Net.of(Layer(), keep_weights=True), X)
    assert again is reports[1]  # of another instance, in which nothing is another


class TwoOutputs(Layer):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits, logits - logits.mean(0)


def test_a_verdict_is_one_on_the_outputs_that_are_asked_for() -> None:
    first, second = (fb.check_net(fb.Net.of(TwoOutputs, output=one), X) for one in (0, 1))
    assert first.engines == ("sequential", "vectorised") and second.engines == ("sequential",)


def test_what_could_not_be_checked_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = iter([NetReport(unclear="infinite"), NetReport()])
    monkeypatch.setattr(check, "_check", lambda net, x, y: next(reports))
    monkeypatch.setattr(check, "_reports", {})
    net = fb.Net.of(Layer)
    assert check.check_net(net, X).unclear and not check.check_net(net, X).unclear
