"""Pieces of checks, plans and scores that are looked at by nothing else as closely."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.engines import plans
from fedblocks.engines.behaviour import _keeps_weights
from fedblocks.engines.lanes import side_by_side
from fedblocks.engines.net_check import check, merging, properties
from fedblocks.engines.net_check.report import Finding, NetReport, precision_note
from fedblocks.engines.net_check.seeding import _is_no_start
from fedblocks.engines.replay.folding import _uniform
from fedblocks.engines.scoring import _measure_one


def effects(plain: Any, ours: Any, theirs: Any) -> bool:
    """Of three outputs of a net, one for each variant of its parameters."""
    outputs = iter([plain, ours, theirs])
    net: Any = lambda params, x: next(outputs)
    return merging._have_other_effects(net, torch.zeros(1), [{}, {}, {}], False)


def test_effects_are_measured_by_the_largest_output_and_in_double_precision() -> None:
    """1e-4 of (1 + 99) is 0.01; 2^24 + 2 and 2^24 differ by 2, which is little of them."""
    theirs = torch.tensor([0.0, 99.0])
    assert not effects(theirs, theirs + 0.009, theirs)
    assert effects(theirs, theirs + 0.011, theirs)
    assert not effects(theirs, theirs + 0.009, torch.tensor([99.0, 0.0]).flip(0))
    half = torch.tensor([60_000.0], dtype=torch.float16)
    # the change, 120,000, is infinite in half precision, and so would be what is bearable
    assert effects(-half, half * 0.5, half)


@pytest.mark.parametrize("where", ["ours", "theirs"])
def test_outputs_of_which_one_is_not_finite_are_told_elsewhere(where: str) -> None:
    odd, fine = torch.tensor([torch.inf, 5.0]), torch.tensor([0.0, 0.0])
    pair = (odd, fine) if where == "ours" else (fine, odd)
    assert not effects(fine, *pair)


def test_numbers_of_a_start_are_judged_from_thirty_two_on() -> None:
    start = torch.linspace(-1, 1, 32)
    assert _is_no_start(1.6 * start, start) and not _is_no_start(1.4 * start, start)
    assert not _is_no_start(1.6 * start[1:], start[1:])


def test_a_single_number_is_uniform() -> None:
    assert _uniform(torch.tensor([3.0]))


def test_metrics_of_a_client_without_targets_are_undefined_in_double_precision() -> None:
    task = Task("regression", metrics=("mae", "r2"))
    values = _measure_one(task, {}, torch.full((2, 1), torch.nan))
    assert values.isnan().all() and values.dtype == torch.double and len(values) == 2


class FirstWeights:
    """Knows which of the starts and which inputs a check is given."""

    net = "net"
    starts = ("first", "second")
    x = tuple(range(9))


def test_passes_are_those_of_the_first_client_on_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    finds = {
        "left_behind": properties._keeps_to_itself,
        "writes_to_inputs": properties._keeps_inputs,
        "computes_anew": properties._computes_once,
        "swallows_errors": properties._fails_alone,
    }
    for name, find in finds.items():
        monkeypatch.setattr(properties, name, lambda *args: args)
        wanted = ("net", "first", (0, 1, 2, 3))
        assert find(FirstWeights(), "vectorised") == wanted, name  # type: ignore[arg-type, comparison-overlap]
    assert properties._fails_alone(FirstWeights(), "sequential") == ""  # type: ignore[arg-type]


def test_a_report_remarks_that_a_module_ignores_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = SimpleNamespace(is_finite=lambda: True, for_another_engine=lambda: None)
    monkeypatch.setattr(check, "NetTrial", SimpleNamespace(of=lambda net, x, y: trial))
    monkeypatch.setattr(check, "PROPERTIES", {"it fits": lambda own, engine: ""})
    alike = [Finding("it is alike", {})]
    monkeypatch.setattr(check, "findings_on_adapters", lambda net, x: alike)
    ignores = True
    monkeypatch.setattr(check, "ignores_seed", lambda net: ignores)
    report = check._compare_all("net", "x", None)  # type: ignore[arg-type]
    assert report.remark == check.IGNORES_SEED
    assert [(one.says, one.wrong) for one in report.findings] == [
        ("it fits", {}),
        ("it is alike", {}),
    ]
    ignores = False
    assert check._compare_all("net", "x", None).remark == ""  # type: ignore[arg-type]
    trial.is_finite = lambda: False
    unclear = check._compare_all("net", "x", None)  # type: ignore[arg-type]
    assert unclear == NetReport(unclear=unclear.unclear) and "not finite" in unclear.unclear


@pytest.mark.parametrize("loses", [True, False])
def test_digits_that_are_lost_are_told(loses: bool) -> None:
    net: Any = SimpleNamespace(loses_digits=loses, dtype=torch.float32, template=nn.Identity())
    said = "the net Identity is made in float64 and trains in float32"
    assert precision_note(net).startswith(said) is loses and bool(precision_note(net)) is loses


def test_a_start_that_is_the_same_for_two_seeds_is_kept() -> None:
    seeds: list[int] = []
    net: Any = SimpleNamespace(init=lambda seed: seeds.append(seed) or {"w": torch.zeros(1)})
    assert _keeps_weights(net) and seeds == [0, 1]
    assert not _keeps_weights(Net.of(lambda: nn.Linear(1, 1)))


def test_batches_of_everybody_are_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(plans.Roster, "batches", lambda self, member: drawn.append(member))
    origins: Any = [(0, 0, 7), (0, 0, 9)]
    plans.Roster(None, [], "train", origins, None, torch.device("cpu")).draw()  # type: ignore[arg-type]
    assert drawn == [0, 1]


def test_lanes_are_alike_if_all_have_the_groups_of_the_first_and_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "fitting", lambda uploads, server: uploads == server)

    def lane(*groups: str, fits: bool = True) -> Any:
        own = {group: SimpleNamespace(uploads=fits) for group in groups}
        return ({}, SimpleNamespace(server=True), own, 1.0)

    alike = side_by_side._are_alike
    assert alike([lane("a", "b"), lane("a", "b")])
    assert not alike([lane("a")]) and not alike([lane(), lane()])
    assert not alike([lane("a"), lane("a", "b")]) and not alike([lane("a", "b"), lane("a")])
    assert not alike([lane("a"), lane("a", fits=False)])
    assert not alike([lane("a", fits=False), lane("a")])
    assert not alike([lane(), lane("a")])
