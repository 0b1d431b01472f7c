"""Adapters beside layers at rest: the model is base + scale * B A, on every engine, and bad input
is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedblocks as fb
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.plan import plan
from fedblocks.data.federation import Parts
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

DOUBLE = torch.float64


class Attended(nn.Module):
    """A token embedding, attention, a 1x1 convolution over steps and a head; none is square."""

    def __init__(self, mask: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.wide = nn.Linear(6, 9)
        self.pixels = nn.Conv2d(9, 5, 1, stride=(1, 2))
        self.statistics = nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, 4)
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.long()
        t = self.tokens(x)
        padding = (x == 0) if self.mask else None
        t = self.norm(t + self.attention(t, t, t, key_padding_mask=padding)[0])
        t = self.wide(t).tanh().transpose(1, 2)[:, :, None]  # [batch, 9, 1, steps]
        t = self.statistics(self.pixels(t)).flatten(2)
        return self.fc(t.mean(-1))


TARGETS = ("tokens", "attention", "wide", "pixels")


def module(mask: bool = False) -> nn.Module:
    torch.manual_seed(5)
    made = Attended(mask).double()
    with torch.no_grad():
        made.statistics.running_mean.normal_()
        made.statistics.running_var.uniform_(0.5, 2)
    return made


def tokens(count: int = 7) -> torch.Tensor:
    x = torch.randint(1, 11, (count, 6), generator=torch.Generator().manual_seed(2))
    x[::2, 4:] = 0  # padding, of some rows
    return x.double()


def noisy(net: fb.LoraNet, seed: int = 0) -> fb.Params:
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=source, dtype=value.dtype)
        for name, value in net.init(0).items()
    }


def by_hand(made: nn.Module, params: fb.Params, scale: float, targets=TARGETS) -> nn.Module:
    """The module with scale * B A in its weights, written out layer by layer."""
    with torch.no_grad():
        for path in targets:
            layer = made.get_submodule(path)
            change = scale * params[f"{path}.lora_B"] @ params[f"{path}.lora_A"]
            if path == "tokens":
                layer.weight += change.T
            elif path == "attention":
                layer.in_proj_weight += change
            elif path == "pixels":
                layer.weight += change[:, :, None, None]
            else:
                layer.weight += change
        made.fc.weight.copy_(params["fc.weight"])
        made.fc.bias.copy_(params["fc.bias"])
    return made.eval()


@pytest.mark.parametrize("mask", [False, True])
def test_the_model_is_the_base_with_the_products_of_the_factors_added(mask):
    net = fb.lora(module(mask), rank=3, alpha=7, targets=TARGETS, head="fc", dtype=DOUBLE)
    params = noisy(net)
    expected = by_hand(module(mask), params, 7 / 3)(tokens())
    torch.testing.assert_close(net(params, tokens()), expected, rtol=1e-12, atol=1e-12)


def test_at_the_start_the_model_is_the_base_bit_for_bit():
    net = fb.lora(module(), rank=2, targets=("wide", "pixels", "tokens"), head="fc", dtype=DOUBLE)
    assert torch.equal(net(net.init(9), tokens()), module().eval()(tokens()))


def test_merged_weights_give_the_same_model_without_adapters():
    net = fb.lora(module(), rank=3, alpha=5, targets=TARGETS, head="fc", dtype=DOUBLE)
    params = noisy(net)
    merged = net.merge(params)
    assert set(merged) == set(net.plain.names)
    torch.testing.assert_close(
        net.plain(merged, tokens()), net(params, tokens()), rtol=1e-12, atol=1e-12
    )


def test_factors_start_as_those_of_peft_do():
    net = fb.lora(module(), rank=2, targets=TARGETS, head="fc", dtype=DOUBLE)
    start, other = net.init(1), net.init(2)
    for path, inputs in (("wide", 6), ("pixels", 9), ("attention", 6)):
        assert not start[f"{path}.lora_B"].any()
        largest = start[f"{path}.lora_A"].abs().max()
        assert 0.5 * inputs**-0.5 < largest <= inputs**-0.5
        assert not torch.equal(start[f"{path}.lora_A"], other[f"{path}.lora_A"])
    assert not start["tokens.lora_A"].any() and start["tokens.lora_B"].all()
    assert start["wide.lora_A"].shape == (2, 6) and start["wide.lora_B"].shape == (9, 2)


def federation() -> fb.Federation:
    source = torch.Generator().manual_seed(8)
    sizes = (9, 4, 7, 5)
    rows = [(tokens(n), torch.randint(0, 4, (n,), generator=source)) for n in sizes]
    parts = [Parts((x.float(), y), (x[:1].float(), y[:1]), (x[:2].float(), y[:2])) for x, y in rows]
    built = fb.Federation.from_parts(parts, classes=4)
    object.__setattr__(built, "x", built.x.double())
    return built


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("optimizer", [fb.SGD(momentum=0.9), fb.Adam()], ids=["sgd", "adam"])
def test_a_stack_of_clients_learns_what_a_loop_over_clients_learns(mask, optimizer):
    states = []
    for engine in (Sequential(replay=False), Vectorised(chunk=3)):
        net = fb.lora(module(mask), rank=2, targets=TARGETS, head="fc", dtype=DOUBLE)
        method = fb.FedPer(net, batch_size=3, lr=0.05, optimizer=optimizer)
        experiment = Experiment.of(method, federation())
        state = experiment.start()
        for _ in range(2):
            state, _ = run_round(experiment, state, range(4), engine)
        experiment.frozen.check()
        states.append(state)
    one, other = states
    start = net.init(fb.core.random.derive(0, "init", 0))
    for name, value in one.server["body"].items():
        torch.testing.assert_close(other.server["body"][name], value, rtol=1e-9, atol=1e-12)
        assert not torch.equal(value[0], start[name]), name
    for client in range(4):
        for name, value in one.private[client]["head"].items():
            kept = other.private[client]["head"][name]
            torch.testing.assert_close(kept, value, rtol=1e-9, atol=1e-12)


def test_one_step_of_a_client_is_that_of_torch_on_the_factors_alone():
    # the oracle: plain autograd through the merged weights, and SGD on A, B and the head
    net = fb.lora(module(), rank=2, alpha=6, targets=TARGETS, head="fc", dtype=DOUBLE)
    data = federation().subset([0])
    method = fb.FedAvg(net, batch_size=100, lr=0.3)
    experiment = Experiment.of(method, data)
    state, _ = run_round(experiment, experiment.start(), [0], Vectorised())
    start = net.init(fb.core.random.derive(0, "init", 0))
    leaves = {k: v.clone().requires_grad_() for k, v in start.items()}
    rows = data.train[0]
    logits = net.plain(net.merge(leaves), data.x[rows])
    nn.functional.cross_entropy(logits, data.y[rows]).backward()
    for name, leaf in leaves.items():
        expected = leaf.detach() - 0.3 * leaf.grad
        torch.testing.assert_close(state.server["model"][name][0], expected, rtol=1e-10, atol=1e-12)


def test_the_base_is_held_once_and_is_in_no_state_or_message():
    net = fb.lora(module(), rank=2, targets=TARGETS, head="fc", dtype=DOUBLE)
    experiment = Experiment.of(fb.FedAvg(net, batch_size=4), federation())
    state, report = run_round(experiment, experiment.start(), range(4), Vectorised())
    base = net.base_on(torch.device("cpu"))
    assert all(base[name].data_ptr() == value.data_ptr() for name, value in net.base.items())
    assert set(state.server["model"]) == set(net.names) and not set(net.names) & set(base)
    trained = sum(v.numel() for v in net.init(0).values())
    assert report.bytes_down["model"][0] == 8 * trained
    assert plan(fb.FedAvg(net)).rows[0]["block"] == "base"
    assert plan(fb.FedAvg(net)).rows[0]["home"] == "everybody, frozen"


def test_a_base_that_moves_is_noticed():
    net = fb.lora(module(), rank=2, targets=TARGETS, head="fc", dtype=DOUBLE)
    experiment = Experiment.of(fb.FedAvg(net, batch_size=4), federation())
    experiment.frozen.check()
    net.base_on(torch.device("cpu"))["wide.weight"][0, 0] += 1e-9
    with pytest.raises(UserError, match='the frozen block "all/base" has changed'):
        experiment.frozen.check()


def test_a_module_that_was_frozen_by_hand_is_a_base_like_any_other():
    frozen = module().requires_grad_(False)
    net = fb.lora(frozen, rank=2, targets="wide", head="fc", dtype=DOUBLE)
    assert net.names == ["wide.lora_A", "wide.lora_B", "fc.weight", "fc.bias"]
    assert not any(value.requires_grad for value in frozen.parameters())


def test_all_is_every_layer_that_fits_but_embeddings_and_the_head():
    assert fb.lora(module(), rank=2, head="fc").targets == ("attention", "wide", "pixels")
    assert fb.lora(module(), rank=2).targets == ("attention", "wide", "pixels", "fc")


def test_targets_are_endings_of_paths():
    nested = nn.ModuleDict({"a": nn.Sequential(nn.Linear(5, 4)), "b": nn.Linear(4, 3)})
    net = nn.Sequential(nested["a"], nn.Sequential(nn.Linear(4, 3)))
    assert fb.lora(net, rank=1, targets="0.0").targets == ("0.0",)
    assert fb.lora(net, rank=1, targets=["1.0", "0"]).targets == ("0.0", "1.0")


def tied() -> nn.Module:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.out = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
            self.out.weight = self.tokens.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.tokens(x.long()).mean(1))

    return Tied()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (module, {"targets": "wyde"}, 'no layer .* matches the target "wyde"'),
        (module, {"targets": "fc", "head": "fc"}, "no layer outside of the head"),
        (module, {"rank": 0}, "rank = 0 leaves no adapter"),
        (
            module,
            {"rank": 6, "targets": "pixels"},
            'rank = 6 is above the size .* "pixels".* 9 to 5',
        ),
        (module, {"alpha": 0.0}, "alpha = 0.0 is not above 0"),
        (module, {"dtype": torch.bfloat16}, "adapters in bfloat16 lose digits"),
        (module, {"targets": "norm"}, 'the target "norm" is a LayerNorm that no adapter fits'),
        (module, {"targets": "out_proj"}, 'is inside the attention "attention"'),
        (module, {"head": "fcc"}, 'the net has no module "fcc"'),
        (tied, {"targets": "tokens", "rank": 2}, "tied layers are not supported"),
        (tied, {"targets": "tokens", "rank": 2, "head": "out"}, "tied layers are not supported"),
    ],
)
def test_bad_input_is_refused_by_name(make, options, message):
    with pytest.raises((UserError, NetError), match=message):
        fb.lora(make(), **options)


def test_the_nearest_names_are_listed():
    with pytest.raises(UserError) as error:
        fb.lora(module(), targets="wyde")
    assert 'did you mean "wide"?' in str(error.value.fix)


def test_a_trained_tensor_without_a_home_is_named():
    net = fb.lora(module(), rank=2, targets="wide", head="fc", dtype=DOUBLE)
    adapters = {name: value for name, value in net.init(0).items() if "lora" in name}
    with pytest.raises(NetError, match=r'the net was called without "fc.weight"'):
        net(adapters, tokens())


class Largest(TorchDispatchMode):
    """The most memory that any tensor has that is made meanwhile, in numbers of its type."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                size = result.untyped_storage().nbytes() // result.element_size()
                self.numbers = max(self.numbers, size)
        return results


@dataclass(frozen=True, eq=False)
class Probe(fb.Method):
    """A head on a body that nobody trains, as a block of the method."""

    def blocks(self):
        return {"body": fb.Frozen(self.net.body), "head": fb.Shared(self.net.head)}

    def predict(self, blocks, x):
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self):
        return [fb.Phase((self.step("head"),), self.epochs)]


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 160), nn.Tanh(), nn.Linear(160, 192), nn.Linear(192, 4))


@pytest.mark.parametrize("kind", ["adapters", "frozen block", "all trained"])
def test_no_client_of_a_stack_has_a_base_of_its_own(kind):
    net = fb.Net.of(wide(), dtype=DOUBLE)
    lora = fb.lora(wide(), rank=2, targets=("0", "2"), head="3", dtype=DOUBLE)
    method = {
        "adapters": lambda: fb.FedAvg(lora, batch_size=2),
        "frozen block": lambda: Probe(net, batch_size=2),
        "all trained": lambda: fb.FedAvg(net, batch_size=2),
    }[kind]()
    experiment = Experiment.of(method, fb.small_federation())
    state = experiment.start()
    job = experiment.training_job("all", range(6), state)
    with Largest() as largest:
        Vectorised(chunk=6).train(job)
    base = 160 * 192  # numbers of the largest layer; every activation is far smaller
    assert (largest.numbers >= 6 * base) == (kind == "all trained")
    assert kind == "all trained" or largest.numbers <= base


def images() -> nn.Module:
    torch.manual_seed(3)
    first = (nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(5, 7, 1), nn.Flatten(), nn.Linear(7, 4))


def test_filters_of_the_base_serve_all_clients_as_one_batch():
    net = fb.lora(images(), rank=2, targets="4", head="6", dtype=DOUBLE)
    assert type(net.template[1]).__name__ == "RestingConv2d"  # and not one for trained filters
    states = []
    for engine in (Sequential(replay=False), Vectorised()):
        experiment = Experiment.of(fb.FedAvg(net, batch_size=4), fb.small_federation())
        state, _ = run_round(experiment, experiment.start(), range(6), engine)
        states.append(state.server["model"])
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-12, atol=1e-12)
    x = fb.small_federation().x
    start = images().double()(x)
    torch.testing.assert_close(net(net.init(0), x), start, rtol=1e-12, atol=1e-12)


def test_the_layers_of_a_net_with_some_adapters_are_those_that_train() -> None:
    net = fb.lora(module(), rank=2, targets=("wide",), head="fc", dtype=DOUBLE)
    assert list(net.layers) == ["wide", "fc"]
    x, y = tokens(12), torch.arange(12) % 4
    data = fb.Federation.from_parts([Parts((x, y), (x, y), (x, y))] * 2, classes=4)
    experiment = Experiment.of(fb.PFedMB(net, branches=2, lr=0.1), data)
    state, report = run_round(experiment, experiment.start(), range(2), Vectorised())
    assert not report.refusals and set(state.server) == {"layers.wide", "layers.fc"}
