"""Options: where limits end, what is said of wrong ones, and clients that have their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import fedblocks as fb
from fedblocks.core.checks import Checked, OptionError, UnknownOption, checked
from fedblocks.core.client import ClientStack, RowSource, Step
from fedblocks.core.errors import UserError
from fedblocks.core.hooks import is_own, noting, telling
from fedblocks.core.introspection import REQUIRED, Option, options_of
from fedblocks.core.local_round import PhaseRun, loss_of, rates_of, run_step
from fedblocks.core.lora_origin import modules_in
from fedblocks.core.optimizers import SGD, Adam, Optimizer
from fedblocks.core.option_types import fits, in_words, members
from fedblocks.core.options import Above, AtLeast, AtMost, Below, Conflict, Help, Length, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.phase_functions import begin_of, rests_of
from fedblocks.core.phases import Phase, Update
from fedblocks.core.schedules import Cosine, Exponential, Milestones, Ramp, at


def test_limits_hold_up_to_where_they_say() -> None:
    edges = [
        (limit.holds(1), limit.holds(2), limit.holds(3), limit.words)
        for limit in (AtLeast(2), AtMost(2), Above(2), Below(2.5))
    ]
    assert edges == [
        (False, True, True, "at least 2"),
        (True, True, False, "at most 2"),
        (False, False, True, "above 2"),
        (True, True, False, "below 2.5"),
    ]
    assert [Positive().holds(n) for n in (-1, 0, 1e-9)] == [False, False, True]


def test_lengths_hold_from_the_least_to_the_most() -> None:
    both, one = Length(2, 3), Length(1)
    assert [both.holds(n) for n in (1, 2, 3, 4)] == [False, True, True, False]
    assert [one.holds(n) for n in (0, 1, 99)] == [False, True, True]
    assert [both.words, one.words, Length(2).words] == [
        "2 to 3 items",
        "at least 1 item",
        "at least 2 items",
    ]


def test_values_are_of_the_types_that_are_asked_for() -> None:
    word = Literal["a", 1]
    taken = [
        (int, 2), (float, 2), (float, 0.5), (bool, True), (str, "a"), (None, None), (word, "a"),
        (word, 1), (int | None, None), (int | str, "x"), (tuple[int, ...], [1, 2]),
        (tuple[int, str], (1, "a")), (list[float], [1, 0.5]), (Sequence[int], ()),
        (Optimizer, SGD()), (dict[str, int], "whatever"),
    ]  # fmt: skip
    wrong = [
        (int, True), (int, 0.5), (float, True), (float, "1"), (bool, 1), (str, 1), (None, 0),
        (word, True), (word, "b"), (int | None, "x"), (tuple[int, ...], (1, "a")),
        (tuple[int, str], (1,)), (tuple[int, str], ("a", 1)), (list[float], 0.5), (Optimizer, SGD),
        (Optimizer, "sgd"), (Sequence[int], "12"),
    ]  # fmt: skip
    assert all(fits(kind, value) for kind, value in taken)
    assert not any(fits(kind, value) for kind, value in wrong)
    assert members(int | None) == (int, type(None)) and members(int) == (int,)


def test_types_are_told_in_words() -> None:
    words = {
        int: "a whole number",
        tuple[int, ...]: "a list of whole numbers",
        tuple[int, int]: "a list of 2 whole numbers",
        list[int | str]: "a list of whole numbers or texts",
        list[list[float]]: "a list of lists of numbers",
        Literal["a", "b"]: '"a" or "b"',
        Optimizer: "an optimizer",
        list[Optimizer]: "a list of optimizers",
        dict: "a value or a list",
    }
    assert {kind: in_words(kind) for kind in words} == words


def option(kind: Any, *marks: Any) -> Option:
    return Option("it", kind, marks, None)


def test_what_is_wrong_with_a_value_is_told() -> None:
    rate = option(float, Above(0), AtMost(1), Help("a share", usual="0.5"))
    assert rate.wrong(1) is None and rate.is_numeric and rate.choices == ()
    assert rate.wrong(0) == (
        "must be above 0 and at most 1",
        "give a number, above 0 and at most 1, e.g. 0.5 (a share)",
    )
    assert (rate.wrong(math.inf) or ("",))[0] == "must be finite"
    assert (rate.wrong("x") or ("",))[0] == "must be a number"
    words = option(Literal["mean", "sum"])
    assert words.wrong("men") == (
        'must be "mean" or "sum"',
        'did you mean "mean"? Or choose one of mean, sum',
    )
    assert words.choices == ("mean", "sum") and not words.is_numeric
    pair = option(tuple[int, ...], Length(2, 3), AtLeast(1))
    assert pair.wrong([1, 2]) is None and (pair.wrong([1]) or ("",))[0] == "must have 2 to 3 items"
    assert (pair.wrong([1, 0]) or ("",))[0] == "must be at least 1"
    assert pair.words == "a list of whole numbers of 2 to 3 items, at least 1"
    falls = option(float | fb.Schedule, Positive())
    assert falls.wrong(Ramp(1.0, 0.5, 3)) is None
    assert (falls.wrong(Ramp(1.0, 0.0, 3)) or ("",))[0] == "must be above 0 in every round"
    assert falls.wrong(Cosine(1.0)) is None  # its end is after the last round


@dataclass(frozen=True)
class Record(Checked):
    first: Annotated[int, AtLeast(1)]
    second: Annotated[float, Help("x")] = 0.5
    third: list[int] = field(default_factory=lambda: [7])

    def conflicts(self) -> list[Conflict]:
        return [Conflict("second", "is too much", "use less")] if self.second > self.first else []


def test_a_record_checks_its_options_and_those_that_it_does_not_have() -> None:
    found = options_of(Record)
    assert [found[n].default for n in found] == [REQUIRED, 0.5, [7]]
    assert found["second"].about == "x" and found["first"].limits == (AtLeast(1),)
    assert Record(1, 1.0).second == 1.0
    with pytest.raises(OptionError) as refused:
        Record(0)
    assert refused.value.message == "Record.first = 0: must be at least 1"
    assert (refused.value.option, refused.value.why) == ("first", "must be at least 1")
    with pytest.raises(OptionError, match=r"Record.second = 2.5: is too much"):
        Record(2, 2.5)
    with pytest.raises(UnknownOption, match='Record has no option "secnd"') as unknown:
        Record(1, secnd=2)  # type: ignore[call-arg]
    assert unknown.value.option == "secnd" and '"second"' in unknown.value.fix


def test_a_function_checks_the_options_that_it_describes() -> None:
    @checked
    def scale(x: Any, by: Annotated[int, AtLeast(2)] = 2, *more: Any, **others: Any) -> Any:
        return x * by

    assert scale(3) == 6 and scale("a", 2) == "aa"
    with pytest.raises(OptionError, match=r"scale\.by = 1: must be at least 2"):
        scale(3, by=1)
    assert list(options_of(scale)) == ["x", "by"]


def test_schedules_at_their_turns() -> None:
    steps = Milestones(8.0, (2, 5), 0.5)
    assert [steps(n) for n in (0, 1, 2, 4, 5)] == [8.0, 8.0, 4.0, 4.0, 2.0]
    assert steps.turns == (0, 2, 5) and steps(torch.tensor(5)).item() == 2.0
    assert Exponential(1.0, 0.25, 2)(1) == 0.5 and Exponential(1.0, 0.25, 2)(9) == 0.25
    assert Ramp(1.0, 3.0, 0.5).over(8).rounds == 4 and Ramp(1.0, 3.0, 0.1).over(2).rounds == 1
    # 0.29 x 100 is 28.999999999999996 in binary
    assert Ramp(1.0, 3.0, 0.29).over(100).rounds == 29
    assert (
        Ramp(1.0, 3.0, 4).over(9).rounds == 4 and Ramp(1.0, 3.0, 4)(torch.tensor(9)).item() == 3.0
    )
    warm = Cosine(4.0, 1.0, 5, warmup=1)
    assert [warm(n) for n in (0, 1, 3, 5, 9)] == pytest.approx([2.0, 4.0, 2.5, 1.0, 1.0])
    assert [float(warm(torch.tensor(n))) for n in (0, 3)] == pytest.approx([2.0, 2.5])
    assert warm.turns == (0, 1, 4)
    with pytest.raises(UserError, match="does not know how many rounds"):
        Ramp(1.0, 2.0)(1)
    for wrong in ({"rounds": 1.5}, {"rounds": 2, "warmup": 2}):
        with pytest.raises(OptionError):
            Cosine(1.0, **wrong)  # type: ignore[arg-type]
    assert [at(2, 0), at(steps, 2)] == [2.0, 4.0]


def test_momentum_is_needed_to_look_ahead() -> None:
    with pytest.raises(OptionError, match="has no effect without momentum"):
        SGD(nesterov=True)
    assert SGD(momentum=0.9, nesterov=True).nesterov
    assert SGD().memory([torch.ones(1)]) == {}
    assert [m[0].tolist() for m in Adam().memory([torch.ones(1)]).values()] == [[0.0], [0.0]]


# clients of one stack that differ in an option


@dataclass(frozen=True, eq=False)
class Course:
    """Two phases of two updates; every function holds the option and tells its place."""

    strength: float = 1.0
    augment: Any = None

    def phases(self) -> list[Phase]:
        return [
            Phase(tuple(self.update(p, u) for u in range(2)), begin=self.begun(p)) for p in (0, 1)
        ]

    def update(self, phase: int, turn: int) -> Update:
        number, by = 10.0 * (2 * phase + turn + 1), self.strength
        return Update(
            ("a",),
            lambda blocks, batch: (blocks["a"]["w"] * number * by).sum(),
            1.0,
            project=lambda blocks: {"a": {"w": blocks["a"]["w"] * 0 + number + by}},
            rests=lambda blocks, client: {"a": torch.as_tensor(number + by > 99)},
        )

    def begun(self, phase: int) -> Any:
        by = self.strength
        return lambda blocks: {"a": {"w": blocks["a"]["w"] * 0 + phase + by}}


def lanes() -> ClientStack:
    """Two clients: the first has strength 1, the second 100."""
    two = torch.tensor([1.0, 1.0])
    own = dict.fromkeys(("rows", "validation_rows"), torch.zeros(2, 1).long())
    own |= dict.fromkeys(("size", "validation_size"), two)
    own |= dict.fromkeys(("id", "key", "steps"), torch.tensor([0, 1]))
    options = {"strength": torch.tensor([1.0, 100.0])}
    tensors = {**own, "tags": {}, "options": options, "optimizers": {}}
    method: Any = Course()
    source = RowSource(torch.zeros(1, 1), torch.zeros(1).long())
    return ClientStack(source, tensors, 0, True, vmap, method=method)


def test_functions_are_those_of_the_phase_and_update_with_the_options_of_each_client() -> None:
    local, blocks = lanes(), {"a": {"w": torch.zeros(2)}}
    phases = Course().phases()
    begun = local.each(begin_of(phases[1], 1, local))(local.tensors, blocks)
    assert begun["a"]["w"].tolist() == [2.0, 101.0]
    rests = local.each(rests_of(phases[0].updates[1].rests, 0, 1, local))  # type: ignore[arg-type]
    assert rests(local.tensors, blocks)["a"].tolist() == [False, True]  # 20 + 1, 20 + 100
    phase = replace(phases[1], updates=tuple(replace(u, rests=None) for u in phases[1].updates))
    stretch = PhaseRun(
        phase,
        1,
        blocks,
        blocks,
        local,
        [{}, {}],
        rates_of(phase, 0),
        [set(), set()],
        [set(), set()],
    )
    batch = {"x": torch.zeros(2, 1, 1), "y": torch.zeros(2, 1).long(), "mask": torch.ones(2, 1)}
    batch |= {"index": torch.zeros(2, 1).long(), "key": torch.tensor([1, 2])}
    step = Step(torch.zeros(2, 1).long(), True, 2)
    ones: Blocks = {"a": {"w": torch.ones(2)}}
    for place, number in enumerate((30.0, 40.0)):
        value, _ = local.each(loss_of(place, stretch, step))(ones, batch, local.tensors)
        assert value.tolist() == [number, number * 100]
    run_step(stretch, step, 1, torch.tensor([1, 2]))
    assert blocks["a"]["w"].tolist() == [41.0, 140.0]  # as the last update projects


def test_a_method_of_the_package_is_not_ones_own() -> None:
    class Own(fb.FedAvg):
        pass

    method = Own(fb.small_net())
    assert is_own(method) and not is_own(fb.FedAvg(fb.small_net())) and not is_own(None)
    with (
        pytest.raises(UserError, match=r"Own.writes failed: ValueError: odd"),
        telling(method, "writes"),
    ):
        raise ValueError("odd")
    with (
        pytest.raises(ValueError, match="odd") as plain,
        noting(fb.FedAvg(fb.small_net()), "writes"),
    ):
        raise ValueError("odd")
    assert vars(plain.value) == {}


def test_a_net_with_adapters_holds_its_base_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    net = fb.lora(module, rank=1, targets="0", head="1")
    (kept,) = modules_in(net.plain.make)
    held: Tensor = kept[0].weight  # type: ignore[index, assignment]
    assert held.data_ptr() == net.base["0.weight"].data_ptr() != module[0].weight.data_ptr()
