"""What is looked for around a net's forward passes, with small functions in its place."""

from __future__ import annotations

import itertools
import textwrap
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from fedblocks.core import mode
from fedblocks.engines.net_check import company, kept_state, passes
from fedblocks.engines.net_check.kept_state import _of_callable, _of_class, _of_function, _print
from fedblocks.engines.net_check.swallowed import _Watch, swallows_errors

LEVEL = 3


def helper(x: int, start: int = 7, *, stop: int = 9) -> int:
    return x + LEVEL


helper.calls = 4  # type: ignore[attr-defined]


def closing() -> Any:
    inside = [1]

    def function(x: int) -> int:
        return sum(helper(x) + one for one in inside)

    return function


OF_HELPER = {
    '"LEVEL"': "3",
    'a default argument of "helper" (0)': "7",
    'a default argument of "helper" (stop)': "9",
}


def test_what_a_function_keeps_is_found_in_its_names_closures_and_defaults() -> None:
    seen: set[Any] = set()
    found = dict(_of_function(closing(), seen))
    assert found == {**OF_HELPER, '"inside"': (1, ("1",)), '"helper", attribute "calls"': "4"}
    assert helper in seen and dict(_of_function(helper, seen)) == {}
    assert dict(_of_function(helper, set())) == OF_HELPER
    for foreign in (textwrap.dedent, nn.Linear.forward, company.inputs_like):
        assert dict(_of_function(foreign, set())) == {}  # of Python, of a package, and ours


def test_a_name_that_is_not_filled_yet_is_nothing() -> None:
    def function() -> int:
        return later

    assert dict(_of_function(function, set())) == {}
    later = 1
    assert dict(_of_function(function, set())) == {'"later"': "1"}


class Above:
    count = 2
    __hidden__ = 5

    def call(self) -> int:
        return LEVEL


class Plain:
    unused = 1


class Below(Above, Plain):
    seen: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.own, self.tensor = 6, torch.zeros(1)

    def __call__(self) -> int:
        return LEVEL


OF_CLASS = {
    'the class attribute "Below.seen"': (0, ()),
    'the class attribute "Above.count"': "2",
    '"LEVEL"': "3",
}


def test_what_a_class_keeps_is_that_of_those_above_it_that_have_own_functions() -> None:
    assert _of_class(Below, set()) == OF_CLASS
    assert _of_class(Plain, set()) == {} == _of_class(dict, set())


def test_what_is_called_keeps_what_it_is_made_of() -> None:
    of = lambda code: dict(_of_callable(code, set()))
    one = Below()
    assert of(one) == {'its attribute "own"': "6", **OF_CLASS}
    assert of(one.call) == {'its attribute "own"': "6", '"LEVEL"': "3"}
    assert of(helper) == {**OF_HELPER, 'its attribute "calls"': "4"}
    assert of(partial(partial(helper, 1), stop=2)) == of(helper)
    assert of(Below) == {}
    assert kept_state.state_around(helper) == of(helper)


class Kept(nn.Module):
    passes = 1

    def forward(self, x: Tensor) -> Tensor:
        return x + LEVEL


def test_what_a_module_keeps_is_that_of_the_classes_of_its_parts() -> None:
    found = kept_state.state_around(nn.Sequential(Kept(), nn.ReLU()))
    assert found == {'the class attribute "Kept.passes"': "1", '"LEVEL"': "3"}
    assert kept_state.changed_state(found, found) == ""
    assert kept_state.changed_state({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == "b"
    assert kept_state.changed_state({"a": 1}, {"a": 1, "c": 4}) == "c"


def test_values_are_known_by_what_they_show() -> None:
    assert [_print(v) for v in (True, 1, 1.5, "a")] == ["True", "1", "1.5", "'a'"]
    assert _print(itertools.count(4)) == "count(4)"
    assert _print(np.zeros(50, dtype=np.int8)) == bytes(50)
    assert _print(np.zeros(51, dtype=np.int8)) is None is _print(None) is _print(torch.zeros(1))
    assert _print(deque([1, None, [2], (3, "b"), (4, [])])) == (5, ("1", "None", "(3, 'b')"))
    assert _print({"a": 1, "b": torch.zeros(1)}) == (2, ("('a', 1)",))
    assert _print(list(range(60))) == (60, tuple(map(str, range(50))))


def no_net(module: nn.Module, function: Any) -> Any:
    """A function in the place of a net that has this module."""

    class Stand:
        template = module

        def __call__(self, params: Any, x: Tensor) -> Any:
            return function(params, x)

    return Stand()


def test_passes_are_one_in_training_and_one_in_evaluation_on_copies() -> None:
    seen: list[Any] = []

    def net(params: Any, x: Tensor) -> None:
        now = mode.current()
        seen.append((now.training, now.mapped, int(now.key), torch.is_grad_enabled()))
        params["w"].add_(1)

    w = torch.zeros(1)
    passes.run_passes(net, {"w": w}, torch.zeros(1))  # type: ignore[arg-type]
    assert seen == [(True, False, 0, False), (False, False, 0, False)] and w.item() == 0


def test_inputs_are_left_as_they_are_and_what_is_nan_is_not_compared() -> None:
    writes = lambda function, x: passes.writes_to_inputs(function, {}, x)
    x = torch.ones(2)
    assert writes(lambda params, x: x + 1, x) == ""
    assert writes(lambda params, x: x.add_(1), x).startswith("it writes into them")
    assert writes(lambda params, x: x, torch.tensor([1.0, torch.nan])) == ""
    assert x.tolist() == [1.0, 1.0]


def test_a_checkpoint_is_noticed_and_torch_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "_checkpoint_without_reentrant_generator"
    called: list[Any] = []
    original = lambda *args, **options: called.append((args, options))
    monkeypatch.setattr(checkpoint, place, original)
    plain: Any = lambda params, x: x + 1
    lazy: Any = lambda params, x: getattr(checkpoint, place)(torch.sin, x, early=True)
    assert passes.computes_anew(plain, {}, torch.ones(1)) == ""
    assert "torch.utils.checkpoint" in passes.computes_anew(lazy, {}, torch.ones(1))
    assert called == [((torch.sin, torch.ones(1)), {"early": True})] * 2

    def fail(params: Any, x: Tensor) -> Any:
        raise ValueError("fails")

    with pytest.raises(ValueError, match="fails"):
        passes.computes_anew(fail, {}, torch.ones(1))  # type: ignore[arg-type]
    assert getattr(checkpoint, place) is original


def test_what_changes_outside_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Kept()
    count = lambda params, x: monkeypatch.setattr(Kept, "passes", Kept.passes + 1)
    assert passes.keeps_outside(no_net(module, lambda params, x: x), {}, torch.ones(1)) == ""
    said = passes.keeps_outside(no_net(module, count), {}, torch.ones(1))
    assert said == 'the class attribute "Kept.passes"'


def looking(catch: int, calls: int, only_in_evaluation: bool = False) -> Any:
    """Rows are looked up so many times; one of these may fail."""

    def net(params: Any, x: Tensor) -> None:
        net.passes += 1  # type: ignore[attr-defined]
        if only_in_evaluation and mode.current().training:
            return
        for n in range(1, calls + 1):
            try:
                torch.index_select(x, 0, torch.tensor([0]))
            except IndexError:
                if n != catch:
                    raise

    net.passes = 0  # type: ignore[attr-defined]
    return net


@pytest.mark.parametrize(("catch", "found"), [(0, False), (1, True), (3, True), (4, False)])
def test_three_calls_that_look_something_up_are_let_fail(catch: int, found: bool) -> None:
    net = looking(catch, calls=5)
    said = swallows_errors(net, {}, torch.ones(2))
    assert bool(said) is found and ("index_select fails" in said) is found
    if not found:  # a pass and three that fail in training, and a pass in evaluation
        assert net.passes == 5


def test_what_is_called_in_evaluation_alone_is_let_fail_there() -> None:
    assert swallows_errors(looking(1, 1, only_in_evaluation=True), {}, torch.ones(2))
    assert not swallows_errors(looking(0, 1, only_in_evaluation=True), {}, torch.ones(2))


@pytest.mark.parametrize(("catch", "found"), [(8, True), (9, False)])
def test_eight_calls_that_ask_of_matrices_are_let_fail(catch: int, found: bool) -> None:
    def net(params: Any, x: Tensor) -> None:
        for n in range(1, 11):
            try:
                torch.linalg.cholesky(x)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                if n != catch:
                    raise

    assert bool(swallows_errors(net, {}, torch.eye(2))) is found  # type: ignore[arg-type]


def test_operations_that_cannot_fail_by_numbers_are_not_counted() -> None:
    with _Watch() as watch:
        torch.ones(2) + 1
        torch.index_select(torch.ones(2), 0, torch.tensor([0]))
    assert [*watch.seen.values()] == [1]


def test_inputs_are_drawn_like_those_of_the_data() -> None:
    of = lambda fields, data: company.inputs_like(SimpleNamespace(fields=fields), data)  # type: ignore[arg-type]
    before = torch.get_rng_state()
    numbers = of(None, torch.zeros(9, 3))
    assert numbers.shape == (4, 3) and torch.equal(numbers, of(None, torch.zeros(1, 3)))
    draw = torch.Generator().manual_seed(3)
    assert torch.equal(numbers, torch.randn((4, 3), generator=draw))
    tokens = of(None, torch.full((1, 2), 7))
    assert tokens.shape == (4, 2) and {*tokens.flatten().tolist()} == {0, 7}
    assert torch.equal(tokens, of(None, torch.full((1, 2), 7)))
    assert of("fields", torch.arange(3)[:, None]).tolist() == [[0], [1], [2], [0]]
    assert torch.equal(torch.get_rng_state(), before)


def test_zeros_are_stirred_by_the_root_of_their_rows_and_nothing_else_is() -> None:
    zeros, kept = torch.zeros(2, 9, dtype=torch.double), torch.tensor([0.0, 1.0])
    stirred = company._stirred({"w": zeros, "v": kept, "none": torch.zeros(0)})
    drawn = torch.randn((2, 9), generator=torch.Generator().manual_seed(3))
    assert torch.equal(stirred["w"], (drawn / 3).double()) and stirred["v"] is kept
    assert stirred["w"].dtype == torch.double and not zeros.any()
