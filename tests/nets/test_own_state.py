"""What a forward pass leaves in the attributes of its module, wherever it is and whenever it would
show.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from net_zoo.species import classify, dense, hidden
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.net_check.held_values import held_values
from fedblocks.engines.net_check.own_state import left_behind

Change = Callable[[Any, Tensor], Any]


@dataclass
class Tally:
    passes: int = 0


class Slotted:
    __slots__ = ("above", "passes")

    def __init__(self) -> None:
        self.passes, self.above = 0, self  # it leads to itself

    def count(self) -> None:
        self.passes += 1


class Calling:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *seen: Any) -> None:
        self.calls += 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x


def closing() -> Callable[[], None]:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    return count


def with_default() -> Callable[..., None]:
    return lambda seen=[]: seen.append(1)


def with_keyword() -> Callable[..., None]:
    return lambda *, seen=[]: seen.append(1)


def with_attribute() -> Callable[[], None]:
    def count() -> None:
        vars(count)["calls"] = vars(count).get("calls", 0) + 1

    return count


def more(module: Any, x: Tensor) -> None:
    module.kept["a"][0] += 1


def set_item(key: Any, value: Any) -> Change:
    return lambda m, x: m.kept.__setitem__(key, value)


# what a module keeps at the start, what a pass does to it, and how that is named
KEEPERS: dict[str, tuple[Callable[[], Any], Change, str]] = {
    "a number in a list in a dictionary": (lambda: {"a": [0]}, more, "kept['a'][0]"),
    "a tensor": (lambda: torch.zeros(1), lambda m, x: m.kept.add_(1), "kept"),
    "a tensor in a tuple": (lambda: (torch.zeros(2),), lambda m, x: m.kept[0].add_(1), "kept[0]"),
    "an array": (lambda: np.zeros(1), lambda m, x: np.add(m.kept, 1, out=m.kept), "kept"),
    "an array of objects": (
        lambda: np.array([[], None], object),
        lambda m, x: m.kept[0].append(1),
        "kept.flat[0]",
    ),
    "a counter": (Counter, lambda m, x: m.kept.update("a"), "kept['a']"),
    "a set": (set, lambda m, x: m.kept.add(len(m.kept)), "kept"),
    "a deque": (
        lambda: deque([0, 1], 2),
        lambda m, x: m.kept.append(m.kept[-1] + 1),
        "kept[0]",
    ),
    "a dataclass": (
        Tally,
        lambda m, x: setattr(m.kept, "passes", m.kept.passes + 1),
        "kept.passes",
    ),
    "an object with slots": (Slotted, lambda m, x: m.kept.count(), "kept.passes"),
    "a bound method": (lambda: Slotted().count, lambda m, x: m.kept(), "kept.passes"),
    "a partial function": (lambda: partial(Calling(), 1), lambda m, x: m.kept(), "kept.func.calls"),
    "a closure": (closing, lambda m, x: m.kept(), "kept (calls)"),
    "a default argument": (lambda: with_default(), lambda m, x: m.kept(), "kept (defaults)[0]"),
    "a keyword's default": (
        lambda: with_keyword(),
        lambda m, x: m.kept(),
        "kept (defaults)['seen']",
    ),
    "an attribute of a function": (lambda: with_attribute(), lambda m, x: m.kept(), "kept.calls"),
    "a namespace": (
        lambda: SimpleNamespace(t=torch.zeros(1)),
        lambda m, x: m.kept.t.add_(1),
        "kept.t",
    ),
    "a layer in a list": (lambda: [Counts()], lambda m, x: m.kept[0](x), "kept[0].n"),
    "torch's generator": (
        lambda: torch.Generator().manual_seed(0),
        lambda m, x: torch.ops.aten.rand([1], generator=m.kept),
        "kept",
    ),
    "NumPy's generator": (
        lambda: np.random.default_rng(0),
        lambda m, x: m.kept.random(),
        "kept",
    ),
    "NumPy's old generator": (
        lambda: np.random.RandomState(0),
        lambda m, x: m.kept.random(),
        "kept",
    ),
    "Python's generator": (lambda: random.Random(0), lambda m, x: m.kept.random(), "kept"),
    "a switch": (lambda: False, lambda m, x: setattr(m, "kept", not m.kept), "kept"),
    "a number that is full at once": (
        lambda: 0,
        lambda m, x: setattr(m, "kept", min(m.kept + 1, 2)),
        "kept",
    ),
    "a log by its length": (
        dict,
        lambda m, x: m.kept.__setitem__(len(m.kept), 1),
        "kept[2]",
    ),
    "an average": (
        lambda: torch.zeros(6),
        lambda m, x: setattr(m, "kept", m.kept + 0.1 * hidden(m, x).detach().mean(0)),
        "kept",
    ),
    "evaluations": (lambda: 0, lambda m, x: setattr(m, "kept", m.kept + (not m.training)), "kept"),
    "steps": (lambda: 0, lambda m, x: setattr(m, "kept", m.kept + m.training), "kept"),
    "the first batch": (
        lambda: None,
        lambda m, x: m.kept is None and setattr(m, "kept", x.mean(0)),
        "kept",
    ),
    "the first weights": (
        lambda: None,
        lambda m, x: m.kept is None and setattr(m, "kept", m.fc.weight.detach().clone()),
        "kept",
    ),
}


def keeping(start: Callable[[], Any], change: Change) -> fb.Net:
    """What it keeps has no effect on its outputs, now or later."""

    def run(module: Any, x: Tensor) -> Tensor:
        change(module, x)
        return classify(module, x)

    make = dense(run, lambda module: setattr(module, "kept", start()))
    return fb.Net.of(make, input_shape=(5,))


def said_of(net: fb.Net) -> str:
    with pytest.raises(fb.NetError) as error:
        check_before_run(net, torch.randn(9, 5), mapped=False)
    return str(error.value)


@pytest.fixture
def all_nets_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they are not trained, and nothing else is looked at."""
    monkeypatch.setattr(check, "MOST", 10)


@pytest.mark.usefixtures("all_nets_are_large")
@pytest.mark.parametrize("name", KEEPERS)
def test_a_net_is_refused_for_what_passes_change_in_its_attributes(name: str) -> None:
    start, change, place = KEEPERS[name]
    said = said_of(keeping(start, change))
    assert "a forward pass leaves nothing behind" in said
    assert f'it changes its own attribute "{place}" in its forward pass, which no client' in said


@pytest.mark.parametrize("name", ["a tensor", "an array", "a number in a list in a dictionary"])
def test_a_small_net_is_refused_for_it_too(name: str) -> None:
    start, change, place = KEEPERS[name]
    report = fb.check_net(keeping(start, change))
    assert not report.engines and f'its own attribute "{place}"' in str(report)


@pytest.mark.usefixtures("all_nets_are_large")
def test_a_net_is_refused_for_a_first_pass_that_answers_otherwise() -> None:
    def run(module: Any, x: Tensor) -> Tensor:
        is_first, module.is_first = module.is_first, False
        return classify(module, x) * (2 if is_first else 1)

    net = fb.Net.of(dense(run, lambda module: setattr(module, "is_first", True)))
    assert 'its own attribute "is_first"' in said_of(net)


@pytest.mark.parametrize("add", ["register_forward_hook", "register_full_backward_hook"])
def test_what_a_hook_counts_is_found(add: str) -> None:
    """In a backward pass, too."""
    equip = lambda module: getattr(module.fc, add)(Calling())
    said = said_of(fb.Net.of(dense(classify, equip), input_shape=(5,)))
    assert ".calls" in said and "fc._" in said


def test_what_is_left_behind_is_told_and_the_module_of_the_net_is_as_before() -> None:
    counting = keeping(*KEEPERS["steps"][:2])
    drawing = keeping(lambda: None, lambda m, x: torch.ops.aten.rand([1]))
    for net, said in (
        (
            counting,
            'it changes its own attribute "kept" in its forward pass, which no client owns: ',
        ),
        (drawing, "it draws from torch's common randomness"),
    ):
        params, x = net.init(0), torch.randn(4, 5)
        net(params, x)
        module, before = net._on(x.device).module, held_values(net._on(x.device).module)
        assert left_behind(net, params, x).startswith(said)
        assert net._on(x.device).module is module and held_values(module) == before
        assert all(torch.equal(value, params[name]) for name, value in net.init(0).items())


@pytest.mark.usefixtures("all_nets_are_large")
def test_a_net_is_refused_for_what_its_first_pass_takes_away() -> None:
    def run(module: Any, x: Tensor) -> Tensor:
        return classify(module, x) * vars(module).pop("warm", 1)

    net = fb.Net.of(dense(run, lambda module: setattr(module, "warm", 2)))
    assert 'its own attribute "warm"' in said_of(net)


CALLS: list[bool] = []


def note(module: Any, x: Tensor) -> None:
    CALLS.append(module.training)


def note_and_keep_size(module: Any, x: Tensor) -> None:
    note(module, x)
    keep_size(module, x)


def keep_size(module: Any, x: Tensor) -> None:
    module.kept = x.shape[1]


def test_a_net_that_leaves_nothing_runs_twice_and_one_that_does_six_times_more() -> None:
    for change, more_calls in ((note, []), (note_and_keep_size, [True] * 3 + [False] * 3)):
        CALLS.clear()
        net = keeping(lambda: 0, change)
        assert left_behind(net, net.init(0), torch.randn(4, 5)) == ""
        assert [True, False, *more_calls] == CALLS


def no_rows_alike(module: Any, x: Tensor) -> None:
    keep_size(module, x)
    if torch.equal(x[-1], x[-2]):
        raise ArithmeticError("rows that are alike")


def to_nan(module: Any, x: Tensor) -> Tensor:
    keep_size(module, x)
    return classify(module, x) * torch.nan


def test_other_numbers_may_not_suit_a_net() -> None:
    net = keeping(lambda: 0, no_rows_alike)
    assert left_behind(net, net.init(0), torch.randn(4, 5)) == ""


def test_answers_that_are_no_numbers_are_alike() -> None:
    net = fb.Net.of(dense(to_nan))
    assert left_behind(net, net.init(0), torch.randn(4, 5)) == ""


def test_statistics_and_layers_that_are_not_used_have_no_gradient() -> None:
    def equip(module: Any) -> None:
        module.unused, module.norm = nn.Linear(2, 2), nn.BatchNorm1d(5)

    def run(module: Any, x: Tensor) -> Tensor:
        module.norm.running_mean.add_(0)
        return classify(module, module.norm(x))

    net = fb.Net.of(dense(run, equip), head="fc")
    assert left_behind(net, net.init(0), torch.randn(4, 5)) == ""


def test_inputs_are_not_written_to() -> None:
    net, x = keeping(lambda: 0, lambda m, x: x.mul_(2)), torch.ones(4, 5)
    left_behind(net, net.init(0), x)
    assert bool((x == 1).all())


def test_a_check_leaves_a_net_without_a_module_that_it_did_not_have() -> None:
    net = keeping(lambda: None, lambda m, x: None)
    assert left_behind(net, net.init(0), torch.randn(4, 5)) == "" and not net._templates


def test_a_net_that_fails_leaves_it_as_it_was_too() -> None:
    net = fb.Net.of(nn.Linear(5, 3))
    with pytest.raises(RuntimeError):
        left_behind(net, net.init(0), torch.randn(4, 6))
    assert not net._templates


def masked(module: Any, x: Tensor) -> Tensor:
    length = x.shape[1]
    if length not in module.kept:
        module.kept[length] = torch.ones(length, length, dtype=x.dtype).triu()
        module.longest = max(module.longest, length)  # a number beside it
    return classify(module, x @ module.kept[length])


def read_back(module: Any, x: Tensor) -> Tensor:
    key = float(x.sum())
    if key not in module.kept:
        module.kept[key] = x.detach().exp()
    return classify(module, module.kept[key])


def look(module: Any, x: Tensor) -> Tensor:
    module.kept = hidden(module, x)
    module.size = float(module.kept.detach().norm())
    return module.fc(module.kept)


def times(module: Any, x: Tensor) -> Tensor:
    return classify(module, x) * module.kept(3)


HARMLESS: dict[str, tuple[Callable[[], Any], Change]] = {
    "a mask by its length": (dict, masked),
    "results by their inputs": (OrderedDict, read_back),
    "what is to be looked at": (lambda: None, look),
    "a memory of a pure function": (lambda: lru_cache(float), times),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_memory_that_changes_no_later_pass_is_nobodys_fault(name: str) -> None:
    start, run = HARMLESS[name]

    def equip(module: Any) -> None:
        module.kept, module.longest = start(), 0

    report = fb.check_net(fb.Net.of(dense(run, equip), input_shape=(5,)))
    assert "sequential" in report.engines, str(report)


class Tied(nn.Linear):
    pass


def test_what_torch_keeps_for_itself_is_no_state() -> None:
    def make() -> nn.Module:
        norm = nn.utils.parametrizations.weight_norm(Tied(5, 3))
        return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.GRU(5, 5, batch_first=True), Last(), norm)

    assert fb.check_net(fb.Net.of(make, input_shape=(5,))).engines == ("sequential", "vectorised")


class Last(nn.Module):
    def forward(self, result: Any) -> Tensor:
        return result[0][:, -1]  # type: ignore[no-any-return]
