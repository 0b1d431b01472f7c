"""What a report on a net says and raises, when a start looks trained, and lanes side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError
from fedblocks.core.net import Net
from fedblocks.core.rules import Average, MovingAverage, ServerAdagrad
from fedblocks.engines.job import Trained
from fedblocks.engines.lanes.joined import spoil
from fedblocks.engines.lanes.side_by_side import RuleOfEach
from fedblocks.engines.net_check.check import check_net
from fedblocks.engines.net_check.properties import _registers
from fedblocks.engines.net_check.report import Finding, NetReport
from fedblocks.engines.net_check.seeding import _is_no_start, ignores_seed, looks_trained

RIGHT = Finding("it trains", {})
HALF = Finding("it stays", {"vectorised": "it moves"})
WRONG = Finding("it counts", {"sequential": "by two", "vectorised": "by three"})
WOULD_NOT = "the net would not train as in plain PyTorch; this does not hold: "


@pytest.mark.parametrize(
    ("report", "engines", "why", "text"),
    [
        (
            NetReport((RIGHT,)),
            ("sequential", "vectorised"),
            ("", ""),
            "right   it trains\nright on: sequential, vectorised",
        ),
        (
            NetReport((RIGHT, HALF), remark="odd"),
            ("sequential",),
            ("", "this does not hold: it stays: it moves"),
            "right   it trains\nWRONG   it stays\n          sequential: right\n"
            "          vectorised: it moves\nnote    odd\nright on: sequential",
        ),
        (
            NetReport((HALF, WRONG)),
            (),
            ("this does not hold: it counts: by two", "this does not hold: it stays: it moves"),
            "WRONG   it stays\n          sequential: right\n          vectorised: it moves\n"
            "WRONG   it counts\n          sequential: by two\n          vectorised: by three\n"
            "right on: no engine",
        ),
        (NetReport(refusal="no", fix="yes"), (), ("no", "no"), "refused: no\n  fix: yes"),
        (
            NetReport(unclear="NaN"),
            ("sequential", "vectorised"),
            ("", ""),
            "could not be checked: NaN",
        ),
    ],
)
def test_a_report_says_which_engines_are_right_and_why_others_are_not(
    report: NetReport, engines: tuple[str, ...], why: tuple[str, str], text: str
) -> None:
    assert report.engines == engines and str(report) == text
    assert (report.why_not("sequential"), report.why_not("vectorised")) == why


def test_a_report_raises_what_is_wrong_on_an_engine_and_names_the_other() -> None:
    for engine in ("sequential", "vectorised"):
        NetReport((RIGHT,)).require(engine)
    NetReport((HALF,)).require("sequential")
    cases = [
        (NetReport((HALF,)), f"{WOULD_NOT}it stays: it moves", 'use engine = "sequential"'),
        (
            NetReport((WRONG,)),
            f"{WOULD_NOT}it counts: by three",
            "change the module; `check_net` shows all",
        ),
        (NetReport(refusal="no", fix="yes"), "no", "yes"),
    ]
    for report, message, fix in cases:
        with pytest.raises(NetError) as error:
            report.require("vectorised")
        assert (error.value.message, error.value.fix) == (message, fix)


@pytest.mark.parametrize(
    ("largest", "numbers", "trained"),
    [(1.5, 32, False), (1.6, 32, True), (-1.6, 32, True), (1.6, 31, False)],
)
def test_numbers_half_as_large_again_as_a_start_are_none(
    largest: float, numbers: int, trained: bool
) -> None:
    """Of 32 numbers or more, whatever their signs: the largest of a start is -1 here."""
    start = torch.linspace(-1, 0.5, numbers)
    value = torch.zeros(numbers)
    value[3] = largest
    assert _is_no_start(value, start) == trained


def test_where_all_starts_are_the_same_any_other_number_is_none() -> None:
    assert not _is_no_start(torch.ones(2), torch.ones(2))
    assert _is_no_start(torch.tensor([1.0, 1.1]), torch.ones(2))
    norm = nn.LayerNorm(3)
    assert not looks_trained(norm)
    with torch.no_grad():
        norm.bias[1] = 0.1
    assert looks_trained(norm)


def _seeded_itself() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(2, 2)


class _Half(nn.Module):
    """Draws one of its layers by a seed of its own, and goes on with the common randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        torch.manual_seed(7)
        self.second = nn.Linear(2, 2)


def test_a_module_ignores_the_seed_if_nothing_in_it_depends_on_it() -> None:
    assert ignores_seed(Net.of(_seeded_itself))
    assert not ignores_seed(Net.of(lambda: nn.Linear(2, 2)))
    assert not ignores_seed(Net.of(_Half))


class _Loose(nn.Module):
    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.values = list(values)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: _Loose(torch.ones(2)), ""),
        (lambda: _Loose(torch.randn(2)), "is drawn, and neither a parameter nor a buffer"),
        (lambda: _Loose(torch.zeros(1), torch.randn(2)), "is drawn, and neither"),
        (lambda: _Loose(nn.Parameter(torch.ones(2))), "a parameter that no module has registered"),
    ],
)
def test_what_a_module_draws_and_does_not_register_is_named(make: Any, wrong: str) -> None:
    trial: Any = SimpleNamespace(net=Net.of(make))
    said = _registers(trial, "sequential")
    assert wrong in said and bool(said) == bool(wrong)


class _Diverges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / 0


class _Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_net_that_diverges_or_fails_in_plain_torch_is_told_so() -> None:
    diverges = check_net(Net.of(_Diverges), torch.ones(8, 2))
    assert diverges.unclear == "in plain PyTorch, too, it ends in numbers that are not finite"
    fails = check_net(Net.of(_Fails), torch.ones(8, 2))
    assert fails.refusal.startswith("the module cannot take inputs of shape [2]: ")
    assert fails.fix == "try it on a few examples in plain PyTorch"


def test_what_some_clients_learned_is_spoilt_and_nothing_else() -> None:
    blocks = {"a": {"w": torch.ones(3, 2), "count": torch.tensor([1, 2, 3])}}
    blocks["b"] = {"v": torch.ones(3)}
    trained = Trained(blocks, {"a": torch.ones(3, 1)}, {}, {}, {})
    spoilt = spoil(trained, [False, True, False])
    assert spoilt.blocks["a"]["w"].isnan().tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert spoilt.blocks["b"]["v"].isnan().tolist() == [False, True, False]
    assert spoilt.blocks["a"]["count"].tolist() == [1, 2, 3]
    assert spoilt.weights["a"].tolist() == [[1.0]] * 3
    assert trained.blocks["b"]["v"].tolist() == [1.0] * 3
    assert spoil(trained, [False] * 3) is trained


def test_lanes_with_rules_of_their_own_move_as_each_alone() -> None:
    """Two slots of a lane that goes half of the way, one of a lane that goes all of it."""
    rules = RuleOfEach((MovingAverage(0.5), Average()), (2, 1))
    old, mean = {"w": torch.tensor([0.0, 2.0, 4.0])}, {"w": torch.tensor([1.0, 4.0, 8.0])}
    assert rules.memory(old) == {}
    memory, new = rules.apply({}, old, mean)
    assert memory == {} and new["w"].tolist() == [0.5, 3.0, 8.0]


def test_lanes_with_rules_of_their_own_remember_as_each_alone() -> None:
    """Adagrad: v = tau^2 + 1, a step of lr / (sqrt(v) + tau); rates and taus differ by lane."""
    one, two = ServerAdagrad(lr=0.5, tau=0.5), ServerAdagrad(lr=1.0, tau=2.0)
    rules, old = RuleOfEach((one, two), (1, 2)), {"w": torch.zeros(3)}
    memory = rules.memory(old)
    assert memory["second"]["w"].tolist() == [0.25, 4.0, 4.0]
    memory, new = rules.apply(memory, old, {"w": torch.ones(3)})
    assert memory["second"]["w"].tolist() == [1.25, 5.0, 5.0]
    assert memory["first"]["w"].tolist() == [1.0, 1.0, 1.0]
    expected = [0.5 / (1.25**0.5 + 0.5), *[1.0 / (5**0.5 + 2)] * 2]
    assert new["w"].tolist() == pytest.approx(expected)
