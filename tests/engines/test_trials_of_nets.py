"""By what a module is known again, on what it is tried, and that trying leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.fields import Fields
from fedblocks.core.local_round import PhaseRun, step_key, train
from fedblocks.core.net import Net
from fedblocks.core.template import tensor_places
from fedblocks.engines import behaviour
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.inspection import code_of, loose_tensors, plain_attributes
from fedblocks.engines.net_check.properties import _takes_one
from fedblocks.engines.net_check.trial import SEED, NetTrial, examples_for
from fedblocks.engines.processes import workers
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import one_client
from fedblocks.engines.steadiness import _gradients
from fedblocks.methods import METHODS
from fedblocks.testing.federations import small_federation


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.rate, self.names = 0.5, ["a"]
        self.turn = _times(1)
        self.loose = {"x": [torch.zeros(1)]}

    def forward(self, x: Tensor) -> Tensor:
        return self.turn(self.inner(x))


class Above(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def _times(factor: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def _plus(module: nn.Module, args: Any, output: Any = None) -> None:
    return None


def _minus(module: nn.Module, args: Any, output: Any = None) -> None:
    print("another")


def _hooked(add: str, hook: Callable[..., None]) -> Callable[[Layer], None]:
    return lambda layer: getattr(layer.inner, add)(hook)


def _set(name: str, value: Any) -> Callable[[Layer], None]:
    return lambda layer: setattr(layer, name, value)


HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
CHANGES: dict[str, Callable[[Layer], None]] = {
    "another number": _set("rate", 0.25),
    "a longer list": _set("names", ["a", "b"]),
    "another function": _set("turn", torch.relu),
    "what a function closes over": _set("turn", _times(2)),
    "a loose tensor": _set("loose", {"x": [torch.ones(1)]}),
    "a buffer": lambda layer: layer.register_buffer("more", torch.zeros(1)),
    "a parameter": lambda layer: layer.register_parameter("more", nn.Parameter(torch.zeros(1))),
    "another layer": _set("inner", nn.Linear(2, 2, bias=False)),
    **{f"a {name}": _hooked(name, _plus) for name in HOOKS},
}


def code(change: Callable[[Layer], None] | None = None, kind: type[Layer] = Layer) -> list[Any]:
    layer = kind()
    if change is not None:
        change(layer)
    return list(code_of(layer))


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_with_a_change_is_another_one(change: str) -> None:
    assert code() == code() and code(CHANGES[change]) == code(CHANGES[change])
    assert code(CHANGES[change]) != code()


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_known_by_what_they_do(name: str) -> None:
    assert code(_hooked(name, _plus)) != code(_hooked(name, _minus))


def test_classes_above_a_module_are_a_part_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code(kind=Above)
    monkeypatch.setattr(Layer, "forward", lambda self, x: x)
    assert code(kind=Above) != before


def test_attributes_and_loose_tensors_are_named_by_their_place() -> None:
    whole = nn.Sequential(Layer())
    whole.flag = True
    assert plain_attributes(whole) == {
        "flag": True,
        "0.rate": 0.5,
        "0.names": 1,
        "0.inner.in_features": 2,
        "0.inner.out_features": 2,
    }
    whole.keeps = (nn.Linear(1, 1).requires_grad_(False).weight, [nn.Linear(1, 1)])
    assert [*loose_tensors(whole)] == [
        "keeps[0]",
        "keeps[1][0].weight",
        "keeps[1][0].bias",
        "0.loose['x'][0]",
    ]


def test_a_net_is_tried_on_numbers_or_on_its_own_tokens_for_three_clients() -> None:
    """7 + 2 + 8 examples; tokens are below the number of embeddings, and reach the last."""
    usual = examples_for(Net.of(lambda: nn.Linear(3, 2)), (3,))
    draw = torch.Generator().manual_seed(SEED)
    assert torch.equal(usual, torch.randn(17, 3, generator=draw))
    tokens = examples_for(Net.of(lambda: nn.Sequential(nn.Embedding(5, 2))), (4,))
    assert tokens.shape == (17, 4) and tokens.dtype == torch.long
    assert (int(tokens.min()), int(tokens.max())) == (0, 4)


def test_few_examples_are_repeated_and_given_targets_go_along() -> None:
    x, y = torch.arange(8.0).view(4, 2), torch.tensor([0, 1, 1, 0])
    trial = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), x, y)
    assert trial.x.tolist() == [x[i % 4].tolist() for i in range(17)]
    assert trial.y.tolist() == [int(y[i % 4]) for i in range(17)] and trial.classes == 3
    drawn = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), x, None).y
    draw = torch.Generator().manual_seed(SEED)
    assert torch.equal(drawn, torch.randint(0, 3, (17,), generator=draw))


def test_a_trial_with_other_data_keeps_those_of_the_first_client() -> None:
    trial = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), torch.randn(21, 2), None)
    other = trial.with_other_data()
    assert torch.equal(other.x[:7], trial.x[:7]) and torch.equal(other.y, trial.y)
    assert torch.equal(other.x[7:], trial.x[7:].flip(0))


def test_computing_a_loss_again_leaves_statistics_and_tensors_as_they_are() -> None:
    """A pass in training writes running statistics, and gradients need leaves: copies of both."""
    net = Net.of(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)),
        dtype=torch.float64,
    )
    experiment = Experiment.of(METHODS["fedavg"](net, batch_size=4), small_federation())
    job = experiment.training_job("all", [0], experiment.start())
    local, sent, orders = one_client(job, 0)
    looked_at: list[int] = []

    def look(stretch: PhaseRun, order: Any) -> None:
        before = {k: v.clone() for k, v in stretch.blocks["model"].items()}
        key = step_key(stretch, 1)
        for again in (
            lambda: _gradients(0, stretch, order[0], key, None),
            lambda: _gradients(0, stretch, order[0], key, torch.tensor([1, 0])),
            lambda: behaviour._loss(0, stretch, order[0]),
        ):
            again()
            for name, value in stretch.blocks["model"].items():
                assert torch.equal(value, before[name]) and not value.requires_grad, name
            looked_at.append(1)

    train(job.phases, local.call(job.method.prepare, sent), local, orders, look)
    assert len(looked_at) == 3


def test_outputs_at_the_start_are_those_of_evaluation() -> None:
    """Dropout lets everything through, and statistics are not those of the batch."""
    net = Net.of(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4)),
        dtype=torch.float64,
    )
    data = small_federation()
    method, start = METHODS["fedavg"](net), net.init(0)
    module = net.make().double().eval()
    module.load_state_dict(start, strict=False)
    said = behaviour._outputs(method, data, {"model": start})
    expected = module(data.x[torch.as_tensor(data.train[0][:2])]).flatten()
    assert {*said} == {*method.views()}
    for numbers in said.values():
        assert numbers == pytest.approx(expected.tolist())


def test_a_trial_is_finite_if_every_number_is() -> None:
    trial = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), torch.randn(21, 2), None)
    assert trial.is_finite()
    fine, odd = {"w": torch.ones(2)}, {"w": torch.ones(2), "b": torch.tensor([1.0, torch.nan])}
    loop: Any = None
    for wanted, finite in (([fine, fine], True), ([fine, odd], False), ([odd, fine], False)):
        vars(trial)["loops"] = [(loop, own) for own in wanted]
        assert trial.is_finite() == finite


def test_inputs_of_several_fields_are_drawn_alike_in_every_check() -> None:
    fields = Fields(shapes=((2,), (3,)), whole=(True, True), names=("tokens", "mask"))
    net: Any = SimpleNamespace(fields=fields, input_shape=(5,))
    torch.manual_seed(8)
    first = examples_for(net)
    torch.manual_seed(9)
    assert torch.equal(first, examples_for(net)) and first.dtype == fields.dtype
    assert first.shape == (17, 5) and first.unique().tolist() == [0, 1]


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        workers.os, "sched_getaffinity", lambda pid: asked.append(pid) or {3, 5, 6}, raising=False
    )
    assert workers.cores() == 3 and asked == [0]  # 0: this process
    monkeypatch.delattr(workers.os, "sched_getaffinity")
    for count, cores in ((7, 7), (None, 1)):
        monkeypatch.setattr(workers.os, "cpu_count", lambda count=count: count)
        assert workers.cores() == cores


def test_a_tensor_is_found_at_every_place_that_holds_it_and_at_each_once() -> None:
    """A layer that is registered twice has one place; a shared weight has one in each layer."""
    shared = nn.Linear(2, 2)
    tied = nn.Linear(2, 2, bias=False)
    tied.weight = shared.weight
    places = tensor_places(nn.ModuleDict({"a": shared, "again": shared, "tied": tied}))
    assert {*places} == {"a.weight", "a.bias", "again.weight", "again.bias", "tied.weight"}
    both = [(shared._parameters, "weight"), (tied._parameters, "weight")]
    for name in ("a.weight", "again.weight", "tied.weight"):
        assert len(places[name]) == 2
        for (owner, key), (wanted, wanted_key) in zip(places[name], both, strict=True):
            assert owner is wanted and key == wanted_key
    assert len(places["a.bias"]) == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_engines_and_plain_torch_drop_the_same_numbers_of_every_client(engine: str) -> None:
    make = lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(21, 4, generator=torch.Generator().manual_seed(0))
    trial = NetTrial.of(Net.of(make), x, None)
    for ours, theirs in zip(trial.train(engine), trial.wanted(), strict=True):
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=trial.tolerance)
    assert trial.losses(engine) == pytest.approx(trial.wanted_losses())


def test_a_net_that_fails_on_a_single_example_is_told_where_clients_are_stacked() -> None:
    def takes(answer: Any) -> Any:
        net: Any = lambda start, x: answer(x)
        return SimpleNamespace(
            net=net, starts=[{}], x=torch.zeros(4, 2), y=torch.zeros(4, 5), classes=3
        )

    fits = lambda x: torch.zeros(len(x), 5, 3)
    squeezed = lambda x: torch.zeros(len(x), 5, 3).squeeze(0)
    fails: Any = lambda x: [][0]
    assert _takes_one(takes(fits), "vectorised") == ""
    assert _takes_one(takes(squeezed), "vectorised") == "of one example it makes [5, 3]"
    assert "it fails on a batch of one example" in _takes_one(takes(fails), "vectorised")
    for answer in (fits, squeezed, fails):
        assert _takes_one(takes(answer), "sequential") == ""


@pytest.mark.parametrize("with_labels", [False, True])
def test_a_net_without_a_column_of_outputs_is_told_to_return_one(with_labels: bool) -> None:
    inputs = torch.randn(20, 6)
    net = Net.of(lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
    report = check.check_net(net, inputs, inputs[:, 0] if with_labels else None)
    assert report.refusal == "the net turns 17 inputs of shape [6] into [17], not [17, outputs]"
    assert report.fix == "let the net return [batch, 1], without a squeeze or flatten at its end"


class Total(nn.Linear):
    """One number for a whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_a_net_that_returns_one_number_for_all_is_told_to_return_some_for_each() -> None:
    report = check.check_net(Net.of(lambda: Total(6, 1)), torch.randn(20, 6))
    assert report.refusal == "the net turns 17 inputs of shape [6] into [], not [17, outputs]"
    assert report.fix == "let the net return [batch, outputs]: some numbers for each example"


def test_a_report_is_on_numbers_that_are_the_same_each_time_or_on_tokens_of_the_data() -> None:
    seen: list[torch.Tensor] = []
    unclear = [True, False]

    def report(net: Any, x: torch.Tensor) -> Any:
        seen.append(x)
        return SimpleNamespace(unclear=unclear.pop(0) if unclear else False)

    plain: Any = SimpleNamespace(fields=None)
    data, before = torch.full((9, 3), 1e6), torch.get_rng_state()
    check._report_on(plain, data, report)
    drawn = torch.randn((check.EXAMPLES, 3), generator=torch.Generator().manual_seed(0))
    assert torch.equal(seen[0], drawn) and torch.equal(seen[1], data[: check.EXAMPLES])
    assert torch.equal(torch.get_rng_state(), before)
    check._report_on(plain, data, report)
    check._report_on(plain, data.long(), report)
    check._report_on(SimpleNamespace(fields=3), data, report)  # type: ignore[arg-type]
    assert torch.equal(seen[2], drawn) and len(seen) == 5
    assert torch.equal(seen[3], data.long()[: check.EXAMPLES])
    assert torch.equal(seen[4], data[: check.EXAMPLES])
