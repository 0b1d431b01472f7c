"""How functions of methods are asked again, and what those of phases may return."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase, Update
from fedblocks.core.task import Task
from fedblocks.engines import behaviour, devices, steadiness
from fedblocks.engines.steadiness import Steadiness
from fedblocks.engines.tried_phases import TriedFunction, TriedRests, tried_phases
from fedblocks.engines.unwritten import nothing_written, without_statistics

PADDED, PLAIN = (Steadiness("Own", torch.float64, padded) for padded in (True, False))


class Client:
    """Calls a hook with the number of padded rows that it has."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def call(self, hook: Any, *args: Any) -> Any:
        return hook(self.row, *args)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadiness, "_with_rows", lambda local, row: Client(row))
    monkeypatch.setattr(steadiness, "_unlike_rows", lambda local: torch.tensor([5, 6]))


def finish(row: Any, blocks: Any) -> Any:
    """A function of a method."""
    return {"a": blocks["w"] * 2}


def named(function: Any) -> Any:
    """Called as one of a method is."""
    function.__name__ = "finish"
    return function


def test_a_good_hook_is_asked_twice_and_once_for_each_padded_row() -> None:
    asked: list[Any] = []

    def note(row: Any, blocks: Any) -> Any:
        asked.append(None if row is None else int(row))
        blocks["w"].add_(1)  # of a copy
        return {"a": blocks["w"] * 2}

    blocks = {"w": torch.zeros(2)}
    PADDED.check_hook(named(note), None, blocks)  # type: ignore[arg-type]
    assert asked == [None, None, 5, 6] and blocks["w"].tolist() == [0.0, 0.0]
    asked.clear()
    PLAIN.check_hook(named(note), None, blocks)  # type: ignore[arg-type]
    assert asked == [None, None]


def test_a_hook_of_the_library_is_not_asked_at_all() -> None:
    class Local:
        def call(self, hook: Any, *args: Any) -> Any:
            raise AssertionError("asked")

    stand: Any = SimpleNamespace(__func__=Method.finish, __name__="finish")
    PADDED.check_hook(stand, Local(), {})  # type: ignore[arg-type]


def test_a_hook_that_changes_its_answer_or_counts_padding_is_refused() -> None:
    blocks = {"w": torch.ones(2, dtype=torch.float64)}
    changing = named(lambda row, blocks: torch.rand(2))
    with pytest.raises(UserError, match="a function in Own gives another result") as caught:
        PLAIN.check_hook(changing, None, blocks)  # type: ignore[arg-type]
    assert "uniform(client.key, shape)" in caught.value.fix
    counting = named(lambda row, blocks: blocks["w"] + (0 if row is None else int(row) - 5))
    PLAIN.check_hook(counting, None, blocks)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"depends on rows of client\.x and client\.y") as caught:
        PADDED.check_hook(counting, None, blocks)  # type: ignore[arg-type]
    assert "client.mask" in caught.value.fix and "never pads" in caught.value.fix


def test_a_hook_that_fails_on_few_rows_or_on_padding_is_let_be() -> None:
    def fails(when: Any) -> Any:
        def hook(row: Any, blocks: Any) -> Any:
            if (row is None) is when:
                raise ValueError("odd")
            return torch.zeros(1)

        return named(hook)

    for when in (True, False):
        PADDED.check_hook(fails(when), None, {})  # type: ignore[arg-type]


def test_functions_are_asked_twice_with_copies() -> None:
    given: list[Tensor] = []

    def function(blocks: dict[str, Tensor]) -> Tensor:
        given.append(blocks["w"])
        return blocks["w"].add_(1)

    w = torch.zeros(1)
    PLAIN.check_function(function, {"w": w})
    assert len(given) == 2 and w.item() == 0
    with pytest.raises(UserError, match=r"Own\.finish gives another result") as caught:
        PLAIN.check_answers(finish, torch.zeros(1), torch.ones(1))
    assert caught.value.fix == "keep what changes in blocks"
    with pytest.raises(UserError, match="a function in Own gives another"):
        PLAIN.check_answers(lambda: 0, torch.zeros(1), torch.ones(1))


def loss(blocks: Any, batch: Any) -> Any:
    """Never called: stand-ins give its gradients."""


@pytest.mark.parametrize(
    ("own", "again", "padded", "said"),
    [
        (PADDED, 1.0, 1.0, ""),
        (PADDED, 2.0, 1.0, "Own.loss gives another result"),
        (PADDED, 1.0, 6.0, "Own.loss depends on rows of batch that are padding"),
        (PADDED, 1.0, 5.0, "Own.loss depends on rows of batch that are padding"),
        (PLAIN, 1.0, 6.0, ""),
        (PLAIN, 2.0, 1.0, "Own.loss gives another result"),
    ],
)
def test_the_gradient_of_a_loss_is_the_same_again_and_beside_little_and_much_padding(
    monkeypatch: pytest.MonkeyPatch, own: Steadiness, again: float, padded: float, said: str
) -> None:
    asked: list[Any] = []

    def gradients(*args: Any) -> Any:
        rows = None if args[-1] is None else args[-1].tolist()
        asked.append((*args[:4], rows))
        is_told = rows is not None and padded in rows  # the others give the usual gradient
        return [None, torch.tensor([again if rows is None else padded if is_told else 1.0])]

    monkeypatch.setattr(steadiness, "_gradients", gradients)
    other = Update(("a",), lambda blocks, batch: 0, 0.1)  # type: ignore[arg-type, return-value]
    phase = Phase((other, Update(("a",), loss, 0.1)))
    stretch: Any = SimpleNamespace(phase=phase, local=None)
    step: Any = SimpleNamespace(index=torch.arange(3))
    check = lambda: own.check_loss(1, stretch, step, "key", [torch.ones(1), None])  # type: ignore[arg-type]
    if said:
        with pytest.raises(UserError, match=said):
            check()
    else:
        check()
    assert [args[:4] for args in asked] == [(1, stretch, step, "key")] * len(asked)
    in_turn = [None, [6] * 4, [5] * 3]  # the second kind of padding has as many rows as the batch
    most = 1 if own is PLAIN or again != 1 else 2 if padded == 6 else 3
    assert [args[4] for args in asked] == in_turn[:most]


def test_functions_of_a_phase_are_looked_at_and_the_rest_of_it_stays() -> None:
    same = lambda blocks: blocks
    update = Update(("a",), loss, 0.1, project=same, rests=lambda blocks, client: {})
    plain = Update(("b",), loss, 0.1)
    phases = [Phase((plain,), epochs=3), Phase((update, plain), begin=same)]
    first, second = tried_phases(phases, "Own.phases", PLAIN)
    assert first == phases[0] and second.updates[1] == plain
    where = "of phase 2 of Own.phases"
    begin: Any = second.begin
    project: Any = second.updates[0].project
    rests: Any = second.updates[0].rests
    assert (begin.where, begin.may_write, begin.train) == (f"`begin` {where}", False, ("a", "b"))
    assert (project.where, project.may_write) == (f"`project` {where}", True)
    assert (project.train, rests.train, rests.where) == (("a",), ("a",), f"`rests` {where}")
    assert begin.steadiness is project.steadiness is PLAIN


BLOCKS = {"a": {"w": torch.zeros(3, 2), "v": torch.zeros(3)}, "b": {"w": torch.zeros(1)}}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({}, ""),
        ({"a": torch.tensor(True)}, ""),
        ({"a": torch.ones(3, dtype=torch.bool)}, ""),
        (3, "an int"),
        ({"b": torch.tensor(True)}, 'returns "b", which is not trained there'),
        ({"a": torch.zeros(())}, '"a" is float32, not a tensor of bool'),
        ({"a": True}, '"a" is True, not a tensor of bool'),
        ({"a": torch.ones(2, dtype=torch.bool)}, '"a" is [2] for tensors of [3, 2]'),
        ({"a": torch.ones(3, 2, dtype=torch.bool)}, '"a" is [3, 2] for tensors of [3]'),
    ],
)
def test_blocks_rest_by_one_truth_or_one_for_each_slot(result: Any, said: str) -> None:
    rests = TriedRests(lambda blocks, client: result, "`rests`", ("a",))
    if not said:
        assert rests(BLOCKS, None) == result  # type: ignore[arg-type]
        return
    with pytest.raises(UserError, match=re.escape(said)):
        rests(BLOCKS, None)  # type: ignore[arg-type]


def test_a_function_that_says_what_rests_may_not_write() -> None:
    blocks = {"a": {"w": torch.zeros(1)}}
    rests = TriedRests(lambda own, client: own["a"]["w"].add_(1) and {}, "`rests`", ("a",))  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match='`rests` writes into "w" of block "a", which it is only'):
        rests(blocks, None)  # type: ignore[arg-type]


def changed(**more: Any) -> dict[str, Any]:
    return {"a": {key: value + 1 for key, value in BLOCKS["a"].items()}, **more}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda blocks: changed(), ""),
        (lambda blocks: changed(b=dict(blocks["b"])), ""),
        (lambda blocks: 3, "an int"),
        (lambda blocks: {}, 'leaves out block "a"'),
        (lambda blocks: {"a": {"w": torch.zeros(3, 2)}}, 'returns block "a" without "v"'),
        (lambda blocks: changed(b={"w": torch.zeros(1)}), 'returns a new block "b", which is not'),
        (lambda blocks: changed(c={"w": torch.zeros(1)}), 'returns a new block "c", which is not'),
    ],
)
def test_a_function_gives_new_values_to_what_is_trained_alone(function: Any, said: str) -> None:
    tried = TriedFunction(function, "`begin`", ("a",), PLAIN)
    if not said:
        assert torch.equal(tried(BLOCKS)["a"]["w"], torch.ones(3, 2))
        return
    with pytest.raises(UserError, match=re.escape(said)):
        tried(BLOCKS)


def test_a_function_may_write_into_working_copies_only() -> None:
    def function(blocks: Any) -> Any:
        blocks["a"]["w"].add_(1)
        return blocks

    for may_write in (True, False):
        blocks = {"a": {"w": torch.zeros(1)}}
        tried = TriedFunction(function, "`begin`", ("a",), PLAIN, may_write)
        if may_write:
            assert tried(blocks)["a"]["w"].item() == 1.0
        else:
            with pytest.raises(UserError, match="`begin` writes into"):
                tried(blocks)
    with pytest.raises(UserError, match="gives another result"):
        TriedFunction(lambda own: {"a": {"w": torch.rand(1)}}, "`begin`", ("a",), PLAIN)(blocks)


def test_what_is_written_is_named_with_whose_it_is() -> None:
    server, other = {"s": {"w": torch.zeros(1)}}, {"o": {"v": torch.zeros(1)}}
    with nothing_written("it", server, other):
        pass
    for blocks, whose in ((server, "all read"), (other, "it is only given to read")):
        ((name, block),) = blocks.items()
        ((key, value),) = block.items()
        said = f'it writes into "{key}" of block "{name}", which {whose}'
        with pytest.raises(UserError, match=said), nothing_written("it", server, other):
            value.add_(1)
    kept = without_statistics({"a": {"w": server["s"]["w"], "bn.running_var": torch.zeros(1)}})
    assert kept == {"a": {"w": server["s"]["w"]}}


def test_outputs_are_written_down_in_evaluation_of_the_task_and_without_gradients() -> None:
    heard: list[Any] = []

    def view(blocks: Any, x: Tensor) -> Tensor:
        now = mode.current()
        heard.append((now.training, now.mapped, now.task, torch.is_grad_enabled()))
        return x

    task = Task("regression")
    data: Any = SimpleNamespace(
        task=task, train=[[7, 8, 9]], inputs=lambda rows: torch.tensor(rows, dtype=torch.float32)
    )
    method: Any = SimpleNamespace(views=lambda: {"personal": view})
    assert behaviour._outputs(method, data, {}) == {"personal": [7.0, 8.0]}
    assert heard == [(False, False, task, False)]


def test_the_only_gpu_of_a_machine_has_the_number_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert devices.find_device("cuda").type == "cuda" and chosen == []
    assert devices.find_device("cuda:0").index == 0 and chosen == [torch.device("cuda:0")]
    with pytest.raises(UserError, match="there is no cuda:1: torch finds 1 of them") as caught:
        devices.find_device("cuda:1")
    assert caught.value.fix == "use at most cuda:0"
