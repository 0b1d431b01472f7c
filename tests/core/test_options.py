"""Options check themselves: what is wrong is told with the class, the option and a fix,
whoever wrote the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytest
from torch import nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length, Positive
from fedblocks.core.schedules import Exponential, Milestones
from fedblocks.methods import METHODS
from fedblocks.methods.fedavg import FedAvg
from fedblocks.nets import cnn, mlp


def net() -> Net:
    return Net.of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))


WRONG: list[tuple[str, str, Any, str]] = [
    ("flow_v2", "policy_dropout", 2, "FlowV2.policy_dropout = 2: must be at least 0 and below 1"),
    ("flow", "router_pace", 0, "Flow.router_pace = 0: must be above 0"),
    ("fedmn", "modules", (2, 0), "FedMN.modules = [2, 0]: must be at least 1"),
    ("fedmn", "modules", (2,), "FedMN.modules = [2]: must have at least 2 items"),
    ("fedavg", "lr", "fast", 'FedAvg.lr = "fast": must be a number or a schedule'),
    ("fedavg", "lr", True, "FedAvg.lr = true: must be a number or a schedule"),
    ("fedavg", "lr", SGD, "must be a number or a schedule"),
    ("fedavg", "lr", math.nan, "FedAvg.lr = NaN: must be finite"),
    ("fedavg", "lr", math.inf, "FedAvg.lr = Infinity: must be finite"),
    ("fedavg", "lr", lambda round: 0.0, "must be above 0 in every round"),
    ("fedavg", "epochs", 1.5, "FedAvg.epochs = 1.5: must be a whole number"),
    ("fedavg", "epochs", None, "FedAvg.epochs = null: must be a whole number"),
    ("fedavg", "optimizer", SGD, "must be an optimizer"),
    ("fedavg", "optimizer", "sgd", 'FedAvg.optimizer = "sgd": must be an optimizer'),
    ("fedavg", "keep_optimizer", 1, "FedAvg.keep_optimizer = 1: must be true or false"),
    ("pfedmb", "branches", True, "PFedMB.branches = true: must be a whole number"),
    ("pfedmb", "branched", "0", 'PFedMB.branched = "0": must be a list of texts'),
    ("pfedmb", "averaging", "mean", 'PFedMB.averaging = "mean": must be "alpha" or "plain"'),
    ("pfedmb", "drop_below", 1.0, "PFedMB.drop_below = 1.0: must be at least 0 and below 1"),
    (
        "heur_fedamp",
        "own_share",
        -0.1,
        "HeurFedAMP.own_share = -0.1: must be at least 0 and at most 1",
    ),
]


@pytest.mark.parametrize(("name", "option", "value", "told"), WRONG)
def test_a_wrong_option_is_told_with_its_class_its_name_and_a_fix(
    name: str, option: str, value: Any, told: str
) -> None:
    with pytest.raises(UserError) as caught:
        METHODS[name](net(), **{option: value})
    assert told in caught.value.message and f".{option} = " in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(momentum=1.0),
        lambda: SGD(nesterov=True),
        lambda: Adam(betas=(0.9, 1.0)),
        lambda: Adam(eps=0),
        lambda: Milestones(0.1, rounds=(0,)),
        lambda: Milestones(0.1, rounds=(3,), factor=-1),
        lambda: Exponential(1.0, 0.0, 5),
        lambda: mlp((4,), 2, hidden=(0,)),
        lambda: cnn((1, 8, 8), 2, channels=(4,)),
    ],
)
def test_optimizers_schedules_and_nets_check_themselves(make: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=r"^(SGD|Adam|Milestones|Exponential|mlp|cnn)\.\w+ = "):
        make()


def test_right_values_pass_whatever_their_numbers_are_made_of() -> None:
    FedAvg(net(), lr=np.float32(0.1), epochs=np.int64(2), batch_size=1)
    FedAvg(net(), lr=Milestones(0.1, (3,)))
    METHODS["fedmn"](net(), modules=[2, 2], temperature=Exponential(1.0, 0.1, 5))


def test_a_schedule_is_checked_where_it_turns() -> None:
    @dataclass(frozen=True)
    class Falling:
        turns = (0, 9)

        def __call__(self, round: Any) -> Any:
            return 0.5 - 0.1 * round

    with pytest.raises(UserError, match=r"lr = .*must be above 0 in every round"):
        FedAvg(net(), lr=Falling())


@dataclass(frozen=True, eq=False)
class Theirs(FedAvg):
    """Somebody else's method, whose `__post_init__` knows of no other."""

    share: Annotated[float, AtLeast(0), Below(1), Help("of something")] = 0.5
    kept: Annotated[tuple[int, ...], Positive(), Length(1, 3)] = (1,)
    plain: float = 1.0
    layers: int = 1

    def __post_init__(self) -> None:
        if self.share > 0.8:
            raise ArithmeticError("their own check")

    def conflicts(self) -> list[Conflict]:
        if self.layers > len(self.net.layers):
            return [Conflict("layers", "the net has fewer", "use fewer", with_net=True)]
        return (
            [Conflict("plain", "does not go with layers", "use 1")]
            if self.plain == self.layers + 1
            else []
        )


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("share", 2, "Theirs.share = 2: must be at least 0 and below 1"),
        ("kept", (1, 2, 3, 4), "Theirs.kept = [1, 2, 3, 4]: must have 1 to 3 items"),
        ("kept", (1, 0), "Theirs.kept = [1, 0]: must be above 0"),
        ("plain", math.nan, "Theirs.plain = NaN: must be finite"),
        ("plain", "1", 'Theirs.plain = "1": must be a number'),
        ("plain", 2, "Theirs.plain = 2: does not go with layers"),
        ("lr", 0, "Theirs.lr = 0: must be above 0"),
    ],
)
def test_a_method_of_others_is_checked_before_its_own_code_runs(
    option: str, value: Any, told: str
) -> None:
    with pytest.raises(UserError) as caught:
        Theirs(net(), **{option: value})
    assert caught.value.message == told


def test_their_own_code_runs_after_the_checks_and_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ArithmeticError, match="their own check"):
        Theirs(net(), share=0.9)
    with pytest.raises(UserError, match="share"):
        replace(Theirs(net()), share=7.0)


def test_an_option_that_does_not_fit_the_net_is_an_error_of_the_net() -> None:
    with pytest.raises(NetError, match=r"Theirs\.layers = 3: the net has fewer"):
        Theirs(net(), layers=3)


def test_a_type_that_cannot_be_looked_up_is_anything_and_the_others_are_checked() -> None:
    class Local:
        pass

    @dataclass(frozen=True, eq=False)
    class Odd(FedAvg):
        odd: Local | None = None
        count: Annotated[int, AtLeast(1)] = 1

    assert Odd(net(), odd=Local()).odd
    with pytest.raises(UserError, match=r"Odd\.count = 0: must be at least 1"):
        Odd(net(), count=0)


def test_a_checked_function_keeps_its_name_and_refuses_only_what_it_describes() -> None:
    @checked
    def half(of: Annotated[float, Positive()], plain: int = 1) -> float:
        return of / 2

    assert half(3, plain="whatever") == 1.5 and half.__name__ == "half"  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"half\.of = -1: must be above 0"):
        half(of=-1)
