"""How answers of a method are compared, and with which rows it is asked: numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.client import ClientStack, RowSource
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.engines import behaviour
from fedblocks.engines.behaviour import difference
from fedblocks.engines.steadiness import (
    Steadiness,
    _joined,
    _largest,
    _pairs,
    _unlike_rows,
    _with_rows,
)

DOUBLE = Steadiness("Own", torch.float64, is_padded=True)
SINGLE = Steadiness("Own", torch.float32, is_padded=True)


@pytest.mark.parametrize(
    ("steadiness", "near", "far"), [(DOUBLE, 0.9e-8, 1.1e-8), (SINGLE, 0.9e-3, 1.1e-3)]
)
def test_answers_are_the_same_up_to_a_share_of_their_largest_number(
    steadiness: Steadiness, near: float, far: float
) -> None:
    """A share of 1e-9 in double precision and of 1e-4 in any other, of -10."""
    answer = {"w": torch.tensor([-10.0, 0.0], dtype=torch.float64), "none": torch.zeros(0)}
    moved = lambda by: {**answer, "w": answer["w"] + torch.tensor([0.0, by], dtype=torch.float64)}
    assert steadiness._is_same(answer, moved(near))
    assert not steadiness._is_same(answer, moved(far))
    assert not steadiness._is_same([torch.zeros(1), answer], [torch.zeros(1), moved(far)])


def test_undefined_numbers_are_like_each_other_and_unlike_all_others() -> None:
    nan, one = torch.tensor([torch.nan, 1.0]), torch.tensor([1.0, 1.0])
    assert SINGLE._is_same(nan, nan.clone()) and not SINGLE._is_same(nan, one)
    assert _largest(torch.tensor([-3.0, 2.0, torch.nan, torch.inf, -torch.inf])) == 3.0
    assert _largest(torch.zeros(0)) == 0.0


def test_small_and_half_numbers_are_compared_in_double_precision_without_their_history() -> None:
    half = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    whole = torch.tensor([3, 4])
    ((a, b), (c, d)) = _pairs((half, whole), (half, whole))
    assert {t.dtype for t in (a, b, c, d)} == {torch.float64}
    assert not (a.requires_grad or b.requires_grad)


def test_rows_that_both_answers_have_are_compared_and_what_has_no_rows_is_not() -> None:
    long, short = torch.arange(6.0).view(3, 2), torch.arange(4.0).view(2, 2)
    for one, other in ((long, short), (short, long)):
        ((a, b),) = _pairs(one, other)
        assert a.tolist() == b.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert _pairs(torch.zeros(2, 3), torch.zeros(2, 4)) == []
    assert _pairs(torch.zeros(()), torch.zeros(2)) == _pairs(torch.zeros(2), torch.zeros(())) == []
    assert _pairs({"a": torch.zeros(1)}, {}) == _pairs(torch.zeros(1), [1]) == []
    assert _pairs([torch.zeros(1)], {"a": torch.zeros(1)}) == []


def test_gradients_are_joined_in_double_precision_without_those_that_are_not_there() -> None:
    joined = _joined([torch.ones(1, 2), None, torch.tensor([3.0])])
    assert joined.tolist() == [1.0, 1.0, 3.0] and joined.dtype == torch.float64
    assert _joined([None]).tolist() == []


def client_of(y: Tensor, rows: list[int], task: Task = CLASSIFICATION) -> ClientStack:
    size, few = torch.tensor(float(len(rows))), torch.tensor(float(min(len(rows), 2)))
    tensors: dict[str, Any] = {
        "rows": torch.tensor(rows),
        "size": size,
        "validation_rows": torch.tensor(rows[:3]),
        "validation_size": few,
    }
    source = RowSource(torch.zeros(len(y), 1), y, task)
    return ClientStack(source, tensors, 0, True, lambda fn: fn, False, {})


def test_rows_unlike_each_other_go_from_the_least_to_the_largest_known_target() -> None:
    """Of 0 to 6, the places 0, 2, 4 and 6 of the sorted targets; one is left out."""
    y = torch.tensor([5, 0, -100, 3, 6, 1, 4, 2])
    assert y[_unlike_rows(client_of(y, [0]))].tolist() == [0, 2, 4, 6]
    assert _unlike_rows(client_of(torch.tensor([1, 0]), [0])).tolist() == [1, 0]
    unknown = torch.tensor([-100, -100])
    assert sorted(_unlike_rows(client_of(unknown, [0])).tolist()) == [0, 1]


def test_of_rows_with_several_targets_those_count_whose_targets_are_all_known() -> None:
    y = torch.tensor([[4.0, 1.0], [torch.nan, 2.0], [2.0, torch.nan], [3.0, 0.0]])
    assert _unlike_rows(client_of(y, [0], Task("regression"))).tolist() == [3, 0]


def test_a_client_is_asked_with_eight_of_its_rows_and_forty_that_are_padding() -> None:
    local = client_of(torch.arange(20), list(range(3, 15)))
    few = _with_rows(local, None).tensors
    assert few["rows"].tolist() == list(range(3, 11)) and few["size"] == 8
    assert few["validation_rows"].tolist() == [3, 4, 5] and few["validation_size"] == 2
    padded = _with_rows(local, torch.tensor(17)).tensors
    assert padded["rows"].tolist() == [*range(3, 11), *[17] * 40] and padded["size"] == 8
    assert padded["validation_rows"].tolist() == [3, 4, 5, *[17] * 40]
    assert padded["validation_size"] == 2
    assert local.tensors["size"] == 12


NET = Net.of(lambda: nn.Linear(1, 1))


def behaviour_with(**changes: Any) -> behaviour.Behaviour:
    views = {"personal": [1000.0, 0.0], "global": [float("nan"), float("inf")]}
    return {"start": ["a"], "views": views, "losses": {"1.1": 2.0}, "courses": {}, **changes}


def said_of(expected: str) -> str:
    said = f'from the same start it gives another {expected} for client "Ann"'
    return said if expected else ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"losses": {"1.1": 2.0019}}, ""),  # a thousandth of 2 is 0.002
        ({"losses": {"1.1": 2.0021}}, "loss"),
        ({"losses": {"1.1": 1.9979}}, "loss"),
        ({"losses": {"1.1": float("nan")}}, "loss"),
        ({"losses": {"1.2": 2.0}}, "loss"),
        ({"losses": {}}, "loss"),
    ],
)
def test_a_loss_behaves_as_before_up_to_a_thousandth(
    changes: dict[str, Any], expected: str
) -> None:
    assert difference(behaviour_with(), behaviour_with(**changes), NET, "Ann") == said_of(expected)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("personal", "global_", "expected"),
    [
        ([1000.9, 0.9], [NAN, INF], ""),  # a thousandth of the largest number of all views is 1
        ([1000.0, 1.1], [NAN, INF], "output"),
        ([1000.0, -1.1], [NAN, INF], "output"),
        ([1000.0, 0.0], [NAN, -INF], "output"),
        ([1000.0, 0.0], [INF, INF], "output"),
        ([1000.0, 0.0], [NAN, 1.0], "output"),
        ([1000.0, NAN], [NAN, INF], "output"),
        ([1000.0], [NAN, INF], "output"),
    ],
)
def test_outputs_behave_as_before_number_by_number(
    personal: list[float], global_: list[float], expected: str
) -> None:
    now = behaviour_with(views={"personal": personal, "global": global_})
    assert difference(behaviour_with(), now, NET, "Ann") == said_of(expected)


def test_outputs_of_another_start_say_something_only_where_seeds_make_the_start() -> None:
    now = behaviour_with(start=["b"], losses={"1.1": 5.0})
    kept = Net.of(nn.Linear(1, 1), keep_weights=True)
    assert difference(behaviour_with(), now, kept, "Ann") == ""
    assert difference(behaviour_with(), now, NET, "Ann") == said_of("loss")
    same_start = behaviour_with(losses={"1.1": 5.0})
    assert difference(behaviour_with(), same_start, kept, "Ann") == said_of("loss")


def test_sixteen_of_many_outputs_are_written_down_from_the_first_to_the_last() -> None:
    """Every second of 31, and all of a few."""
    assert behaviour._spread(torch.arange(31.0)) == [float(2 * i) for i in range(16)]
    assert behaviour._spread(torch.arange(3.0)) == [0.0, 1.0, 2.0]


def test_the_largest_number_of_answers_leaves_out_what_is_none() -> None:
    inf, nan = float("inf"), float("nan")
    assert _largest(torch.tensor([nan, 0.25, -0.5])) == 0.5
    assert _largest(torch.tensor([inf, -inf, 0.25])) == 0.25
    assert _largest(torch.tensor([nan, inf])) == 0.0 == _largest(torch.zeros(0))


def only_many(blocks: Any, x: Tensor) -> Tensor:
    """Fails on a single example, which is said elsewhere."""
    return x if len(x) > 1 else x[5]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (lambda blocks, x: 2 * x, ""),
        (only_many, ""),
        (lambda blocks, x: x.mul_(2), "changes its input: others would get another x"),
        (lambda blocks, x: x + torch.rand(()), "<lambda>|Own"),
        (lambda blocks, x: x - x.mean(0), "<lambda>|Own"),
    ],
    ids=["fits", "fails alone", "writes", "random", "company"],
)
def test_a_prediction_is_refused_if_it_writes_changes_or_depends_on_others(
    view: Any, said: str
) -> None:
    x = torch.arange(1.0, 9.0).double().view(4, 2)
    outputs = view({}, x.clone())
    if said:
        with pytest.raises(UserError, match=said):
            DOUBLE.check_view(view, {}, x, outputs)
    else:
        DOUBLE.check_view(view, {}, x, outputs)
