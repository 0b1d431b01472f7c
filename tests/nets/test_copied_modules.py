"""A module is copied whole, or refused: no copy goes on using tensors of the module it is of."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, parametrize, prune

import fedblocks as fb
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.net_check.passes import uses_others
from fedblocks.layers.copying import copy_module

GLOBAL: Any = None  # a module that a class below uses by its name


class Two(nn.Module):
    """Two layers; `equip` gives it what a test is about, and `use` uses that."""

    def __init__(
        self,
        equip: Callable[[Any], None] = lambda module: None,
        use: Callable[[Any, Tensor], Tensor] = lambda module, hidden: hidden,
    ) -> None:
        super().__init__()
        self.a, self.b, self.o = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)
        self.scale, self.use = 2.0, use
        equip(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.tanh(self.use(self, self.a(x))))


class ByName(Two):
    """Its forward pass uses a global name; `self.a` has the name of no global."""

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.tanh(GLOBAL.a(x)))


class OwnHook(Two):
    """A hook that is a method of the module, as one may write it."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = self.a.register_forward_hook(self.skip)

    def skip(self, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + self.b(args[0])


def skips(m: Any) -> None:
    m.a.register_forward_hook(lambda layer, args, out: out + m.b(args[0]))


def skips_by_words(m: Any) -> None:
    m.a.register_forward_hook(lambda _, args, words, out: out + m.b(args[0]), with_kwargs=True)


def skips_before(m: Any) -> None:
    m.a.register_forward_pre_hook(lambda layer, args: (args[0] * m.b.weight.mean(),))


def looks_back(m: Any) -> None:
    m.a.register_full_backward_hook(lambda *_: m.b.zero_grad())


def closes_over_weight(m: Any) -> None:
    weight = m.a.weight
    m.f = lambda x: x @ weight.t()


def closes_over_alias(m: Any) -> None:
    weight = m.a.weight.data
    m.f = lambda x: x @ weight.t()


def calls_another_function(m: Any) -> None:
    inner = lambda x: m.a(x)
    m.f = lambda x: inner(x)


def has_default(m: Any) -> None:
    m.f = lambda x, layer=m.a: layer(x)


def has_default_by_word(m: Any) -> None:
    def f(x: Tensor, *, layers: Any = (m.a,)) -> Tensor:
        return layers[0](x)

    m.f = f


def has_part_of_function(m: Any) -> None:
    m.f = partial(lambda use, x: use(x), lambda x: m.a(x))


def keeps_method_of_a_weight(m: Any) -> None:
    m.f = m.a.weight.t  # of a type in C, which no copy is made of


def remembers_results(m: Any) -> None:
    m.f = lru_cache(lambda: m.a.weight)


def points_weakly(m: Any) -> None:
    m.f = weakref.ref(m.a)


def has_helper(m: Any) -> None:
    m.helper = SimpleNamespace(call=[lambda x: m.a(x)])


def is_wrapped(m: Any) -> None:
    inner = m.a.forward
    m.a.forward = wraps(inner)(lambda x: inner(x))


def fills_a_dictionary(m: Any) -> None:
    kept: dict[str, Tensor] = {}
    m.kept = kept
    m.a.register_forward_hook(lambda layer, args, out: kept.update(last=out))


REFUSED = {
    skips: 'the forward hook of "a"',
    skips_by_words: 'the forward hook of "a"',
    skips_before: 'the forward pre hook of "a"',
    looks_back: 'the backward hook of "a"',
    closes_over_weight: 'the attribute "f"',
    closes_over_alias: 'the attribute "f"',
    calls_another_function: 'the attribute "f"',
    has_default: 'the attribute "f"',
    has_default_by_word: 'the attribute "f"',
    has_part_of_function: 'the attribute "f"',
    keeps_method_of_a_weight: 'the attribute "f"',
    remembers_results: 'the attribute "f"',
    points_weakly: 'the attribute "f"',
    has_helper: 'the attribute "helper"',
    is_wrapped: 'the attribute "a.forward"',
    fills_a_dictionary: 'the forward hook of "a"',
}


@pytest.mark.parametrize("equip", REFUSED)
@pytest.mark.parametrize("kind", ["kept", "anew", "made"])
def test_functions_that_hold_the_module_are_refused_by_their_place(
    equip: Callable[[Any], None], kind: str
) -> None:
    with pytest.raises(fb.NetError) as error:
        match kind:
            case "kept":
                fb.Net.of(Two(equip), keep_weights=True)
            case "anew":
                fb.Net.of(Two(equip))
            case _:
                fb.Net.of(partial(Two, equip))
    assert error.value.message.startswith(REFUSED[equip]), str(error.value)
    assert "self.method" in error.value.fix


def test_a_module_that_its_own_code_uses_by_a_global_name_is_found_out_by_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ByName()
    monkeypatch.setitem(globals(), "GLOBAL", module)
    net = fb.Net.of(module, keep_weights=True)
    assert "of another module" in uses_others(net, net.init(0), torch.randn(4, 4))


def test_what_a_function_holds_is_named() -> None:
    with pytest.raises(fb.NetError, match="holds the module itself by a function"):
        fb.Net.of(Two(skips))
    with pytest.raises(fb.NetError, match=r'holds the tensor "a\.weight" by'):
        fb.Net.of(Two(closes_over_weight))


def doubled(m: Any) -> None:
    factor = 2.0
    m.a.register_forward_hook(lambda layer, args, out: factor * out)


def by_settings(m: Any) -> None:
    settings = SimpleNamespace(factor=2.0, sizes=[1, 2])
    m.settings, m.sizes = settings, settings.sizes
    m.f = lambda x: settings.factor * x


def keeps_bound_method(m: Any) -> None:
    m.f = m.a.forward


def keeps_part_of_bound_method(m: Any) -> None:
    m.f = partial(m.a.forward)


def keeps_handle(m: Any) -> None:
    m.handle = m.a.register_forward_hook(lambda layer, args, out: 2 * out)


def is_called_by_part(m: Any) -> None:  # as the package accelerate does
    m.a._old_forward = m.a.forward
    m.a.forward = partial(lambda module, x: 2 * module._old_forward(x), m.a)


def normed_as_of_old(m: Any) -> None:
    parametrizations.weight_norm(m.a)


def symmetric(m: Any) -> None:
    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    parametrize.register_parametrization(m.a, "weight", Half())


def hooks_its_state(m: Any) -> None:  # which no forward pass calls
    m._register_load_state_dict_pre_hook(lambda *_: m.a)
    m.register_load_state_dict_post_hook(lambda *_: m.a)


COPIED = [
    *(doubled, by_settings, keeps_bound_method, keeps_part_of_bound_method, keeps_handle),
    *(is_called_by_part, normed_as_of_old, symmetric, hooks_its_state),
]


@pytest.mark.parametrize("equip", COPIED)
def test_what_is_copied_with_its_module_is_right(equip: Callable[[Any], None]) -> None:
    for net in (fb.Net.of(Two(equip), keep_weights=True), fb.Net.of(partial(Two, equip))):
        report = fb.check_net(net, torch.randn(9, 4))
        assert "sequential" in report.engines, str(report)


@pytest.mark.parametrize("keep_weights", [False, True])
def test_a_hook_that_is_a_method_trains_the_copys_own_layers(keep_weights: bool) -> None:
    report = fb.check_net(fb.Net.of(OwnHook(), keep_weights=keep_weights), torch.randn(9, 4))
    assert report.engines == ("sequential", "vectorised"), str(report)


LAYERS: list[Callable[[], nn.Module]] = [
    partial(nn.LSTM, 4, 3, 2, batch_first=True),
    partial(nn.MultiheadAttention, 4, 2, batch_first=True),
    partial(nn.TransformerEncoderLayer, 4, 2, 8, batch_first=True),
    partial(nn.Transformer, 4, 2, 1, 1, 8, batch_first=True),
    partial(nn.BatchNorm1d, 4),
    lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    lambda: fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
]


@pytest.mark.parametrize("make", LAYERS)
def test_layers_of_torch_are_copied(make: Callable[[], nn.Module]) -> None:
    module = make()
    again = fb.Net.of(module, keep_weights=True).make()
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in module.named_parameters()
    }
    assert not {id(p) for p in again.parameters()} & {id(p) for p in module.parameters()}


def test_a_module_with_a_computed_tensor_is_refused_as_no_copy_can_be_made() -> None:
    module = Two(lambda m: prune.random_unstructured(m.a, "weight", 0.5))
    for keep_weights in (False, True):
        with pytest.raises(fb.NetError, match="the module cannot be copied: "):
            fb.Net.of(module, keep_weights=keep_weights)


@pytest.mark.parametrize(
    ("keep", "place", "what"),
    [
        (lambda m: setattr(m, "lock", Lock()), "lock", "_thread.lock"),
        (lambda m: setattr(m.b, "held", {"file": sys.__stderr__}), "b.held", "TextIOWrapper"),
        (lambda m: setattr(m, "rows", (n for n in range(3))), "rows", "generator"),
    ],
)
def test_what_python_cannot_copy_is_named_with_its_place(
    keep: Callable[[nn.Module], None], place: str, what: str
) -> None:
    with pytest.raises(fb.NetError) as caught:
        fb.Net.of(Two(keep), keep_weights=True)
    said = caught.value.message
    assert said.startswith("the module cannot be copied: cannot pickle") and what in said
    assert said.endswith(f', held by the attribute "{place}"')
    assert "__getstate__" in str(caught.value.fix)


def test_a_lock_that_the_module_leaves_out_of_its_copies_is_no_obstacle() -> None:
    class Locked(Two):
        def __init__(self) -> None:
            super().__init__(lambda m: None)
            self.lock = Lock()

        def __getstate__(self) -> dict[str, Any]:
            return {name: value for name, value in vars(self).items() if name != "lock"}

    copied = copy_module(Locked())
    assert not hasattr(copied, "lock") and len(list(copied.parameters())) == 6


def test_a_function_that_copies_a_module_is_found_out_by_a_pass() -> None:
    """Its hook uses a module that no copy of ours was made of."""
    module = Two(skips)
    net = fb.Net.of(lambda: copy.deepcopy(module))
    said = "a parameter of the shape [6, 4] of another module"
    assert said in uses_others(net, net.init(0), torch.randn(4, 4))
    report = fb.check_net(net, torch.randn(9, 4))
    assert report.engines == () and said in str(report)
    with pytest.raises(fb.NetError, match="own parameters"):
        check_before_run(net, torch.randn(9, 4), mapped=False)


def test_a_large_net_that_uses_another_is_found_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.engines.net_check.check.MOST", 10)
    module = Two(skips)
    with pytest.raises(fb.NetError, match="of another module"):
        check_before_run(fb.Net.of(lambda: copy.deepcopy(module)), torch.randn(9, 4), mapped=False)


@pytest.mark.parametrize("make", [Two, OwnHook, partial(Two, doubled), partial(Two, symmetric)])
def test_a_net_that_uses_its_own_parameters_is_told_nothing(make: Any) -> None:
    for net in (fb.Net.of(make), fb.lora(make(), rank=2)):
        assert uses_others(net, net.init(0), torch.randn(4, 4)) == ""


def test_inputs_that_get_a_gradient_in_the_pass_are_no_parameters() -> None:
    def slope(m: Any, hidden: Tensor) -> Tensor:
        probe = hidden.detach().requires_grad_()
        return hidden + torch.autograd.grad(m.o(probe).sum(), probe, create_graph=True)[0] + probe

    net = fb.Net.of(partial(Two, use=slope))
    assert uses_others(net, net.init(0), torch.randn(4, 4)) == ""
