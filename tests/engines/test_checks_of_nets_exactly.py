"""Which checks a net gets before a run and what is said of them, with stand-ins for each."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.forward_errors import IN_RANGE
from fedblocks.engines.net_check import check, company, properties
from fedblocks.engines.net_check.report import Finding, NetReport
from fedblocks.layers.replacement import BatchNorm

DATA = torch.zeros(3, 2)


def net_of(size: int = 5, **more: Any) -> Any:
    return SimpleNamespace(
        size=lambda: size, template=nn.Identity(), constant_names=[], unmappable=[], fields=None,
        dtype=torch.float32, init=lambda seed: {"seed": seed}, make=nn.Identity, output=None,
        **more,
    )  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checks that were made, in their order."""
    made: list[str] = []
    for name in ("require_numbers", "require_new_modules", "_require_seeded"):
        monkeypatch.setattr(check, name, lambda net, name=name: made.append(name))
    monkeypatch.setattr(check, "require_merging", lambda net, data: made.append("require_merging"))
    monkeypatch.setattr(check, "_mixes", lambda net, data: made.append("_mixes") or "mixes")
    monkeypatch.setattr(check, "_outside", lambda net, data: made.append("_outside") or "outside")
    for name in ("_check_all", "_check_passes"):
        monkeypatch.setattr(
            check, name, lambda net, data, mapped, name=name: made.append(name) or str(mapped)
        )
    monkeypatch.setattr(
        check, "_keep_from_stacks", lambda net, why, mapped: f"{why}, {mapped}" if why else ""
    )
    return made


def test_a_net_of_torchs_layers_is_asked_for_its_start_and_for_mixing(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "needs_guard", lambda template, names: False)
    assert check.check_before_run(net_of(), DATA, True) == "mixes, True"
    assert calls == ["require_numbers", "require_new_modules", "_require_seeded", "_mixes"]


@pytest.mark.parametrize(("size", "which"), [(10**6, "_check_all"), (10**6 + 1, "_check_passes")])
def test_a_net_of_own_code_is_tried_whole_up_to_a_million_parameters(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, size: int, which: str
) -> None:
    monkeypatch.setattr(check, "needs_guard", lambda template, names: True)
    assert check.check_before_run(net_of(size), DATA, False) == "False; outside"
    first = ["require_merging", "require_numbers", "require_new_modules"]
    assert calls == [*first, which, "_outside"]


def test_a_report_is_required_of_the_engine_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = NetReport((Finding("it fits", {"vectorised": "too wide"}),))
    monkeypatch.setattr(check, "_report_on", lambda *given: wrong)
    with pytest.raises(NetError, match="it fits: too wide"):
        check._check_all(net_of(), DATA, True)
    net = net_of()
    said = check._check_all(net, DATA, False)
    assert said.startswith("the net Identity runs one client after another: ")
    assert net.unmappable == ["Identity"]
    monkeypatch.setattr(check, "_report_on", lambda *given: NetReport(unclear="it is odd"))
    assert check._check_all(net_of(), DATA, True) == (
        "the net Identity could not be checked against plain PyTorch: it is odd"
    )
    monkeypatch.setattr(check, "_report_on", lambda *given: NetReport())
    assert check._check_all(net_of(), DATA, True) == ""


def test_a_net_that_is_wrong_in_a_stack_is_refused_there_and_told_once_elsewhere() -> None:
    assert check._keep_from_stacks(net_of(), "", True) == ""
    with pytest.raises(NetError, match="in a stack of clients: it mixes"):
        check._keep_from_stacks(net_of(), "it mixes", True)
    net = net_of()
    assert check._keep_from_stacks(net, "it mixes", False)
    assert check._keep_from_stacks(net, "it mixes", False) == ""
    assert check._keep_from_stacks(net, "it mixes", True) == ""  # it is known


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the checks of a large net find."""
    passes = ("left_behind", "writes_to_inputs", "computes_anew", "uses_others", "swallows_errors")
    found = dict.fromkeys(passes, "")

    def finding(name: str) -> Any:
        def find(net: Any, params: Any, x: Any) -> str:
            assert params == {"seed": 0} and x == "inputs"
            if isinstance(found[name], Exception):
                raise found[name]  # type: ignore[misc]
            return found[name]

        return find

    for name in found:
        monkeypatch.setattr(check, name, finding(name))
    found |= {"mixes": "", "sequential": "", "vectorised": ""}
    trial: Any = SimpleNamespace(as_it_is=lambda net, x: trial, for_another_engine=lambda: trial)
    monkeypatch.setattr(check, "NetTrial", trial)
    first_steps = lambda trial, engine: ("steps", found[engine]) if found[engine] else ("", "")
    monkeypatch.setattr(check, "unlike_first_steps", first_steps)
    monkeypatch.setattr(check, "inputs_like", lambda net, data: "inputs")
    monkeypatch.setattr(check, "mixes_examples", lambda net, data: found["mixes"])
    return found


LARGE = (
    "the training of the net Identity was not compared with plain PyTorch: it has more than "
    "1,000,000 parameters, and only a few steps of one client were tried"
)
LARGER = LARGE.replace("a few steps of one client were", "its forward pass was")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("left_behind", check.NOTHING_LEFT),
        ("writes_to_inputs", check.INPUTS_KEPT),
        ("computes_anew", check.ONCE),
        ("uses_others", check.OWN),
        ("sequential", "steps"),
    ],
)
def test_what_passes_of_a_large_net_show_is_refused(
    large: dict[str, Any], name: str, says: str
) -> None:
    large[name] = "odd"
    with pytest.raises(NetError, match=f"{says}: odd"):
        check._check_passes(net_of(), DATA, False)


def test_a_large_net_is_kept_from_stacks_and_its_training_is_not_compared(
    large: dict[str, Any],
) -> None:
    assert check._check_passes(net_of(), DATA, True) == LARGE
    large["swallows_errors"] = "it swallows"
    after = "the net Identity runs one client after another"
    assert check._check_passes(net_of(), DATA, False) == f"{LARGE}; {after}: it swallows"
    large["mixes"] = "it mixes"
    assert check._check_passes(net_of(), DATA, False) == f"{LARGE}; {after}: it mixes"
    large |= {"mixes": "", "swallows_errors": "", "vectorised": "it differs"}
    assert check._check_passes(net_of(), DATA, False) == f"{LARGE}; {after}: steps: it differs"
    large["left_behind"] = ValueError("of drawn numbers")
    assert check._check_passes(net_of(), DATA, False) == LARGER
    large["left_behind"] = UserError("no", "fix")
    with pytest.raises(UserError, match="no"):
        check._check_passes(net_of(), DATA, False)


def test_steps_of_a_still_larger_net_are_not_compared(
    large: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    large |= {"sequential": "it differs", "vectorised": "it differs"}
    net = net_of()
    monkeypatch.setattr(check, "MOST_TO_COMPARE", net.size())
    with pytest.raises(NetError, match="steps: it differs"):
        check._check_passes(net, DATA, False)
    monkeypatch.setattr(check, "MOST_TO_COMPARE", net.size() - 1)
    assert check._check_passes(net, DATA, False) == LARGER


def test_what_is_kept_outside_is_told_and_errors_and_warnings_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "inputs_like", lambda net, data: "inputs")

    def keeps(net: Any, params: Any, x: Any) -> str:
        assert params == {"seed": 0} and x == "inputs"
        warnings.warn("slow", stacklevel=1)
        return kept

    kept = ""
    monkeypatch.setattr(check, "keeps_outside", keeps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check._outside(net_of(), DATA) == ""
        kept = '"COUNT"'
        said = check._outside(net_of(), DATA)
    assert said.startswith('the forward pass of the net Identity changes "COUNT", which is outside')
    monkeypatch.setattr(check, "inputs_like", lambda net, data: 1 / 0)
    assert check._outside(net_of(), DATA) == ""


def test_layers_over_the_batch_need_a_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = iter([NetReport(refusal="no"), NetReport((Finding("it", {"vectorised": "is odd"}),))])
    monkeypatch.setattr(check, "mixes_examples", lambda net, data: "it mixes")
    monkeypatch.setattr(check, "_report_on", lambda *given: next(reports))
    assert check._mixes(net_of(), DATA) == "it mixes"
    net = net_of()
    net.template = BatchNorm(2, track_running_stats=False)
    assert properties.is_over_batch(net.template)
    assert check._mixes(net, DATA) == "" and check._mixes(net, DATA).endswith("it: is odd")


def test_a_report_is_kept_by_code_shape_and_types_unless_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    report = NetReport()

    def compare(net: Any, x: Any, y: Any) -> NetReport:
        made.append(tuple(x.shape))
        return report

    monkeypatch.setattr(check, "_check", compare)
    monkeypatch.setattr(check, "_reports", {})
    net = net_of()
    assert check.check_training(net, torch.zeros(2, 3)) is report
    assert check.check_training(net, torch.zeros(9, 3)) is report and made == [(2, 3)]
    check.check_training(net, torch.zeros(2, 4))
    check.check_training(net, torch.zeros(2, 3).double())
    net.dtype = torch.float64
    check.check_training(net, torch.zeros(2, 3))
    assert len(made) == 4
    report = NetReport(refusal="of these inputs")
    for _ in range(2):
        check.check_training(net, torch.zeros(2, 5))
    assert len(made) == 6


def test_an_error_of_a_check_is_a_refusal_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error: Exception = UserError("no", "do this")

    def fail(net: Any, x: Any, y: Any) -> NetReport:
        warnings.warn("slow", stacklevel=1)
        raise error

    monkeypatch.setattr(check, "_compare_all", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check._check(net_of(), DATA, None) == NetReport(refusal="no", fix="do this")
    error = ValueError("odd. More of it")
    said = check._check(net_of(), DATA, None)
    assert said.refusal.startswith("the module cannot take inputs of shape [2]: odd")
    assert said.fix == "try it on a few examples in plain PyTorch"
    monkeypatch.setattr(check, "range_seen", lambda error, x, fields: "0 to 9")
    said = check._check(net_of(), DATA, None)
    assert said.refusal.endswith("; it was given 0 to 9") and said.fix == IN_RANGE


def test_an_error_of_a_property_is_the_modules_own_or_one_of_mapping() -> None:
    def failing(error: Exception) -> Any:
        def find(trial: Any, engine: str) -> str:
            raise error

        return find

    reason = lambda engine, error: check._reason("trial", engine, failing(error))  # type: ignore[arg-type]
    with pytest.raises(NetError, match="the module fails: odd"):
        reason("sequential", ValueError("odd"))
    assert reason("vectorised", ValueError("odd")) == "cannot be mapped over clients (odd)"
    assert reason("sequential", UserError("no", "fix")) == "cannot be mapped over clients (no)"
    for engine in ("sequential", "vectorised"):
        with pytest.raises(NetError, match="net"):
            reason(engine, NetError("net", "fix"))
    found = {"sequential": "", "vectorised": "wrong"}
    trials: Any = dict.fromkeys(found)
    by_engine = lambda trial, engine: found[engine]
    assert check._wrong(trials, "it is fast", by_engine) == {"vectorised": "wrong"}
    assert check._wrong(trials, properties.OWN, by_engine) == {}  # asked once, of the module
    asked = lambda trial, engine: f"on {engine}"
    assert {*check._wrong(trials, properties.OWN, asked).values()} == {"on sequential"}


# of 9: 0.1 of 1 + 9
@pytest.mark.parametrize(("ours", "wrong"), [(9.9, False), (10.1, True), (7.9, True), (8.1, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_examples_in_other_company_differ_beyond_a_share(
    ours: float, wrong: bool, sign: int
) -> None:
    net: Any = NetOf(lambda params, x: sign * torch.full((len(x), 1), ours))
    usual = sign * torch.full((4, 1), 9.0)
    said = company._compare(net, {}, torch.zeros(4, 2), [3, 1], usual, 0.1)
    assert said == (company.DEPENDS if wrong else "")


class NetOf:
    """A function in the place of a net without layers."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, params: Any, x: Tensor) -> Tensor:
        outputs: Tensor = self.function(params, x)
        return outputs

    def _on(self, device: torch.device) -> Any:
        return SimpleNamespace(module=nn.Identity())


def test_other_company_that_fails_or_changes_shapes_is_told() -> None:
    usual = torch.zeros(4, 1)
    compare = lambda function: company._compare(
        NetOf(function), {}, torch.zeros(4, 2), [2], usual, 0.1  # type: ignore[arg-type]
    )  # fmt: skip
    assert compare(lambda params, x: x[:, 0]) == "of 1 rows it makes [1]"
    assert compare(lambda params, x: 1 / 0) == "a batch of 1 fails (division by zero)"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-5]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([torch.nan, 2.0]), torch.tensor([torch.nan, 2.0]), True),
    ],
)
def test_two_starts_by_one_seed_may_differ_by_rounding(
    one: torch.Tensor, other: torch.Tensor, same: bool
) -> None:
    starts = iter([{"w": one}, {"w": other}])
    net: Any = SimpleNamespace(init=lambda seed: next(starts))
    assert (properties.unlike_starts(net) == "") == same
