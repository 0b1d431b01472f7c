"""Nets as people write them: for each, on which engines it trains as in plain PyTorch,
or why it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from net_zoo import ZOO, Species
from net_zoo.architectures import Signal
from net_zoo.species import BOTH, ONE, classify, dense, hidden
from torch import nn

import fedblocks as fb
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.net_check.trial import examples_for

ROWS = {row.name: row for rows in ZOO.values() for row in rows}


def net_of(row: Species) -> fb.Net:
    return fb.Net.of(row.make, input_shape=row.input_shape, output=row.output)


def verdict_on(row: Species) -> tuple[tuple[str, ...], str]:
    """The engines on which a net is right, and what is said of another."""
    try:
        report = fb.check_net(net_of(row))
    except fb.UserError as error:
        return (), error.message
    assert not report.unclear, str(report)
    wrong = next((e for e in BOTH if e not in report.engines), None)
    return report.engines, "" if wrong is None else report.why_not(wrong)


@pytest.mark.parametrize("name", ROWS)
def test_a_net_of_the_zoo_trains_as_in_plain_pytorch_or_is_refused(name: str) -> None:
    row = ROWS[name]
    engines, text = verdict_on(row)
    assert engines == row.engines, text
    assert row.says in text and bool(row.says) == bool(text), text


def engines_of_a_run(row: Species) -> tuple[str, ...]:
    """The engines that a run would let train a net."""
    try:
        net = net_of(row)
        check_before_run(net, examples_for(net), mapped=False)
    except fb.UserError:
        return ()
    return ONE if net.unmappable else BOTH


@pytest.mark.parametrize("name", ROWS)
def test_a_run_knows_on_which_engines_a_net_is_right(name: str) -> None:
    # also of nets with layers of torch alone, which it does not check
    assert engines_of_a_run(ROWS[name]) == ROWS[name].engines


@pytest.mark.parametrize("group", ZOO)
def test_a_net_stands_in_the_zoo_once(group: str) -> None:
    names = [row.name for row in ZOO[group]]
    assert all(ROWS[name] in ZOO[group] for name in names) and len(set(names)) == len(names)


TRAINS, EVALUATES = (
    "three clients train as in plain PyTorch",
    "they are evaluated as in plain PyTorch",
)
REPEATS, ISOLATES = (
    "a client trains alike before and after others",
    "another client's data change nothing",
)
LEAVES = "a forward pass leaves nothing behind"
WRONG = {
    "a mean of the last batch, used in the next": (TRAINS, REPEATS, ISOLATES),
    "Python's `random`": (TRAINS, REPEATS),
    "NumPy's `random`": (TRAINS, REPEATS),
    "an operator of aten": (LEAVES,),
    "attention that asks whether it trains": (EVALUATES,),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_net_is_found(name: str) -> None:
    report = fb.check_net(net_of(ROWS[name]))
    wrong = {one.says for one in report.findings if "sequential" in one.wrong}
    assert wrong >= set(WRONG[name]), str(report)
    with pytest.raises(fb.NetError, match="would not train as in plain PyTorch"):
        report.require("sequential")


def test_a_check_takes_at_most_two_seconds_of_a_processor_and_nothing_the_second_time() -> None:
    check._reports.clear()
    begun = time.process_time()
    report = fb.check_net(fb.Net.of(Signal, input_shape=(2, 9)))
    middle = time.process_time()
    again = fb.check_net(fb.Net.of(Signal, input_shape=(2, 9)))  # another object, the same code
    assert again == report and middle - begun < 2 and time.process_time() - middle < 0.1


def hooked() -> nn.Module:
    layer = nn.Linear(5, 3)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def class_of(scale: Callable[[nn.Module], float]) -> type[nn.Module]:
    """A class as it is written again in a notebook: only one of its methods is another."""
    return type("Mine", (nn.Linear,), {"scale": scale})


def test_a_net_with_other_hooks_or_other_methods_is_checked_anew() -> None:
    one, two = class_of(lambda module: 1.0), class_of(lambda module: 2.0)
    makes = (partial(nn.Linear, 5, 3), hooked, partial(one, 5, 3), partial(two, 5, 3))
    reports = [check.check_training(fb.Net.of(make), torch.ones(17, 5)) for make in makes]
    assert len({id(report) for report in reports}) == 4


def test_a_module_that_runs_into_infinity_by_itself_is_neither_right_nor_wrong() -> None:
    report = fb.check_net(
        fb.Net.of(dense(lambda m, x: m.fc(torch.log(hidden(m, x)))), input_shape=(5,))
    )
    assert "not finite" in report.unclear and report.engines == BOTH
    report.require("vectorised")


def test_inputs_must_come_from_somewhere() -> None:
    net = fb.Net.of(dense(classify))
    with pytest.raises(fb.NetError, match="nothing says what the inputs"):
        fb.check_net(net)
    assert fb.check_net(net, torch.ones(2, 5), torch.zeros(2, dtype=torch.long)).engines == BOTH
