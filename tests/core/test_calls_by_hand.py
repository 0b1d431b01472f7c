"""How modules are called that take several inputs, and other small things that are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.blocks import Pool
from fedblocks.core.cuts import shared_tensors
from fedblocks.core.decay import DecayGroups, _weights_of, with_groups
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.fields import KEYWORDS, PLACES, WHOLE, Fields, _how_to_call
from fedblocks.core.method import Method
from fedblocks.core.metrics import calibration_error
from fedblocks.core.optimizers import SGD
from fedblocks.core.own_code import _PACKAGE
from fedblocks.core.parts import Value
from fedblocks.core.server import Cohort
from fedblocks.core.state import check_statistics
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.flow.instance_routes import Paced

ROWS = torch.zeros(2, 3)
NAMED, UNNAMED = Fields.of({"a": ROWS, "b": ROWS}), Fields.of((ROWS, ROWS))


def how(forward: Callable[..., Any], fields: Fields) -> str:
    module = nn.Module()
    module.forward = forward
    try:
        return _how_to_call(module, fields)
    except NetError as error:
        return error.message


def optional(x: Any, y: Any, z: Any = 1) -> None: ...
def named_only(*, a: Any, b: Any) -> None: ...
def in_place_only(a: Any, b: Any, /) -> None: ...


@pytest.mark.parametrize(
    ("forward", "named", "unnamed"),
    [
        (lambda b, a: None, KEYWORDS, PLACES),  # by place they would change places
        (lambda a, b, c=1: None, KEYWORDS, PLACES),
        (named_only, KEYWORDS, "the module takes (a, b), and the inputs are input 0, input 1"),
        (in_place_only, PLACES, PLACES),
        (lambda x, y: None, PLACES, PLACES),
        (optional, PLACES, PLACES),
        (lambda **every: None, KEYWORDS, "the module takes (every), and the inputs are input 0,"),
        (lambda *every: None, PLACES, PLACES),
        (lambda x, *rest: None, PLACES, PLACES),
        (lambda x, y, *rest: None, PLACES, PLACES),
        (lambda x: None, WHOLE, WHOLE),
        (lambda x, b=1: None, WHOLE, WHOLE),
        (lambda x, y, z: None, *2 * ("the module takes (x, y, z), and the inputs are",)),
        (lambda x, y, z, *rest: None, *2 * ("the module takes (x, y, z, rest), and",)),
        (lambda a, b, c: None, *2 * ("the module takes (a, b, c), and the inputs are",)),
        (lambda a, b, **more: None, KEYWORDS, PLACES),
    ],
)
def test_fields_are_given_by_name_by_place_or_as_a_whole(
    forward: Callable[..., Any], named: str, unnamed: str
) -> None:
    assert how(forward, NAMED).startswith(named)
    assert how(forward, UNNAMED).startswith(unnamed)


class Renamed(FedAvg):
    """A method without options of its own, and without the decorator."""


def test_a_method_shows_its_options_to_python_also_where_it_adds_none() -> None:
    options = list(inspect.signature(FedAvg).parameters)
    assert list(inspect.signature(Renamed).parameters) == options
    assert options[0] == "net" and "self" not in options


def test_a_cohort_without_new_clients_can_be_asked_for_their_rows() -> None:
    cohort = Cohort(torch.arange(2), torch.ones(2).double(), {}, 6, 0, 0)
    assert torch.arange(6)[cohort.unseen].tolist() == []


def test_a_base_of_which_a_part_has_no_numbers_has_no_hash() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3, device="cpu"), nn.Linear(3, 2))

    with torch.device("meta"):
        apart = fb.lora(make, rank=1, targets="0", head="2")
    assert {value.is_meta for value in apart.base.values()} == {True, False}
    assert apart.base_hash == "" != fb.lora(make, rank=1, targets="0", head="2").base_hash


def test_only_a_parameter_with_several_names_is_shared() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    assert shared_tensors(module) == []
    module[2].weight = module[0].weight
    assert shared_tensors(module) == [["0.weight", "2.weight"]]


@pytest.mark.parametrize(
    ("method", "stays"),
    [(fb.FedAvg, False), (fb.Local, True), (fb.Ditto, True), (fb.FedPer, True)],
)
def test_a_method_keeps_something_on_clients_if_any_block_is_private(
    method: type[Method], stays: bool
) -> None:
    assert method(fb.small_net()).has_personal_state is stays


@pytest.mark.parametrize("statistics", ["average", "local"])
def test_statistics_that_stay_are_a_state_of_their_own(statistics: Any) -> None:
    with_them = fb.Net.of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert fb.FedAvg(with_them, statistics=statistics).has_personal_state is (statistics == "local")
    plain = fb.Net.of(nn.Sequential(nn.Linear(2, 2)))
    assert not fb.FedAvg(plain, statistics=statistics).has_personal_state


def test_confidence_is_compared_with_right_answers_bin_by_bin() -> None:
    """Of 15 bins, 0.05 is in the first, 0.1 in the second and 0.13 too, 0.99 in the last."""
    shares = torch.tensor([0.05, 0.1, 0.13, 0.99]).double()
    there = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    wanted = (0.95 + abs((0 - 0.1) + (1 - 0.13)) + 0.99) / 4
    found = calibration_error(torch.logit(shares)[:, None], there[:, None])
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(("shape", "decays"), [((), False), ((3,), False), ((3, 2), True)])
def test_of_blocks_that_are_no_net_matrices_decay(shape: tuple[int, ...], decays: bool) -> None:
    assert _weights_of(Value(torch.zeros(shape))) == ({"value"} if decays else set())


def test_groups_of_decay_are_made_inside_of_another_optimizer_too() -> None:
    exempt = frozenset({1})
    chosen, all_alike = SGD(weight_decay=0.1, decay="weights"), SGD(weight_decay=0.1)
    assert with_groups(chosen, exempt) == DecayGroups(chosen, exempt)
    assert with_groups(all_alike, exempt) == all_alike
    paced = Paced(chosen, 2, 3.0)
    assert with_groups(paced, exempt) == Paced(DecayGroups(chosen, exempt), 2, 3.0)  # type: ignore[arg-type]
    assert with_groups(Paced(all_alike, 2, 3.0), exempt) == Paced(all_alike, 2, 3.0)


def test_the_package_is_told_from_code_of_others_by_its_folder() -> None:
    assert Path(fb.__file__).resolve().parent == _PACKAGE


@pytest.mark.parametrize(
    ("options", "refused"),
    [({}, False), ({"of": "other"}, True), ({"on_request": True}, True)],
)
def test_statistics_do_not_stay_with_slots_that_change(
    options: dict[str, Any], refused: bool
) -> None:
    net = fb.Net.of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    method: Any = SimpleNamespace(
        net=net, statistics="local", blocks=lambda: {"pool": Pool(net.whole, 2, **options)}
    )
    if refused:
        with pytest.raises(UserError, match='has no meaning for "pool"'):
            check_statistics(method)
    else:
        check_statistics(method)
    method.statistics = "average"
    check_statistics(method)
    method.statistics = "refuse"
    with pytest.raises(UserError, match=r"net has running statistics \(1\)"):
        check_statistics(method)
