"""A rehearsal refuses what a function of a method returns if no round can use it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import NetError, UserError
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.rehearsal import Rehearsal
from fedblocks.engines.round import Experiment
from fedblocks.methods.ditto import Ditto
from fedblocks.testing.federations import small_federation, small_net


def rehearse(**functions: Any) -> str:
    """What is said of Ditto with some other functions; nothing: they will do."""
    method = type("Odd", (Ditto,), functions)(small_net())
    experiment = Experiment.of(method, small_federation(), 0)
    try:
        Rehearsal(experiment, "all", [0, 1], experiment.start(), False).play()
    except UserError as error:
        return error.message
    return ""


def changed(blocks: Any, name: str, change: Any) -> Any:
    return {**blocks, name: {key: change(value) for key, value in blocks[name].items()}}


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({}, ""),
        ({"wants": lambda self, blocks, client: {"none": torch.ones(1)}}, "Odd.wants"),
        ({"wants": lambda self, blocks, client: 3}, "Odd.wants"),
        ({"prepare": lambda self, blocks, client: 3}, "Odd.prepare"),
        (
            {"prepare": lambda self, b, client: changed(b, "personal", lambda v: v[None])},
            "Odd.prepare",
        ),
        (
            {"prepare": lambda self, b, client: changed(b, "shared", torch.Tensor.int)},
            "Odd.prepare",
        ),
        ({"finish": lambda self, b, start, client: [b]}, "Odd.finish"),
        (
            {"finish": lambda self, b, start, client: changed(b, "personal", lambda v: v[None])},
            "Odd.finish",
        ),
        ({"finish": lambda self, b, start, client: {**b, "more": b["shared"]}}, "Odd.finish"),
        ({"finish": lambda self, b, start, client: {"shared": b["shared"]}}, "Odd.finish"),
        ({"writes": lambda self, b, client: {"none": torch.ones(1)}}, "Odd.writes"),
        ({"writes": lambda self, b, client: {"shared": "much"}}, "Odd.writes"),
        ({"predict": lambda self, b, x: x.sum()}, "Odd.predict"),
    ],
    ids=range(13),
)
def test_an_answer_that_no_round_can_use_is_refused_by_the_name_of_its_function(
    functions: dict[str, Any], said: str
) -> None:
    message = rehearse(**functions)
    assert message.startswith(said) if said else not message


def test_an_experiment_is_of_methods_with_a_sound_structure() -> None:
    odd = type("Odd", (Ditto,), {"blocks": lambda self: {}})(small_net())
    with pytest.raises(UserError, match=r"Odd\.blocks returns no block"):
        Experiment.of(odd, small_federation(), 0)


def test_a_plain_net_that_starts_with_nan_is_refused_before_a_run() -> None:
    def make() -> nn.Module:
        module = nn.Linear(6, 4)
        with torch.no_grad():
            module.weight[1, 2] = float("nan")  # a single one
        return module

    with pytest.raises(NetError, match="starts with NaN"):
        check_before_run(fb.Net.of(make), torch.zeros(4, 6), False)
    same = nn.Linear(6, 4)
    with pytest.raises(NetError, match="returns the same module each time"):
        check_before_run(fb.Net.of(lambda: same), torch.zeros(4, 6), False)
    assert check_before_run(fb.Net.of(lambda: nn.Linear(6, 4)), torch.zeros(4, 6), False) == ""
