"""What a program holds when a few operations were written down, slot by slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedblocks.engines.replay import reads
from fedblocks.engines.replay.folding import _uniform, is_closed, renamed, written
from fedblocks.engines.replay.program import (
    Layout,
    Program,
    RecordedCall,
    Ref,
    _freeing,
    _split,
    arranged,
    needed,
)
from fedblocks.engines.replay.recording import Recorder, _version
from fedblocks.engines.replay.rewriting import _are_new, _last_uses, _writing, in_place
from fedblocks.engines.replay.running import Machine, _only, _parts, ready, run

aten = torch.ops.aten


def call(kernel: Any, *args: Any, outs: tuple[int, ...] = (), **kwargs: Any) -> RecordedCall:
    return RecordedCall(kernel, args, tuple(kwargs.items()), outs)


ADD, RELU, CAT, VIEW = aten.add.Tensor, aten.relu.default, aten.cat.default, aten.view.default


def test_tensors_in_lists_and_by_name_are_read_however_deep() -> None:
    one = call(CAT, (Ref(3), (Ref(4), 7)), 0, out=Ref(5), other=(Ref(6),))
    assert one.reads == {3, 4, 5, 6}
    assert call(ADD, 1, 2).reads == frozenset()


def test_tensors_that_are_written_to_are_known_by_place_and_by_name() -> None:
    assert written(call(aten.add_.Tensor, Ref(1), Ref(2), outs=(1,))) == {1}
    assert written(call(aten.add.out, Ref(1), Ref(2), out=Ref(3))) == {3}
    assert written(call(ADD, Ref(1), Ref(2), outs=(3,))) == frozenset()


def test_other_names_are_put_into_every_place() -> None:
    one = call(CAT, (Ref(1), Ref(2)), 5, out=Ref(1), outs=(1, 4))
    other = renamed(one, {1: 8, 5: 9})
    assert other.args == ((Ref(8), Ref(2)), 5) and other.kwargs == (("out", Ref(8)),)
    assert other.outs == (8, 4) and other.call is CAT


def test_operations_that_nobody_needs_are_left_out_from_the_end() -> None:
    dead = call(ADD, Ref(0), Ref(0), outs=(1,))
    only_for_dead = call(RELU, Ref(0), outs=(2,))
    unread = call(ADD, Ref(2), Ref(0), outs=(3,))
    used = call(RELU, Ref(0), outs=(4,))
    acts = call(aten.add_.Tensor, Ref(0), Ref(4), outs=(0,))
    asks = call(aten.linalg_cholesky_ex.default, Ref(0), outs=(5, 6))
    silent = call(RELU, Ref(4))
    every = [dead, only_for_dead, unread, used, acts, asks, silent]
    assert needed(every) == [used, acts, asks, silent]


def test_views_of_what_stays_come_first_and_views_of_these() -> None:
    view = call(VIEW, Ref(0), (2,), outs=(1,))
    again = call(VIEW, Ref(1), (1, 2), outs=(2,))
    made = call(RELU, Ref(2), outs=(3,))
    moving = call(VIEW, Ref(3), (2,), outs=(4,))
    steady = {0}
    assert _split([view, again, made, moving], steady) == ((view, again), [made, moving])
    assert steady == {0}


def test_memory_is_given_back_after_the_last_use() -> None:
    first = call(RELU, Ref(0), outs=(1,))
    second = call(ADD, Ref(1), Ref(0), outs=(2,))
    third = call(aten.add_.Tensor, Ref(0), Ref(2), outs=(0,))
    freed = _freeing([first, second, third], {0})
    assert [operation.done for operation in freed] == [(), (1,), (2,)]
    assert [operation.call for operation in freed] == [RELU, ADD, aten.add_.Tensor]


def test_a_program_has_only_constants_that_it_reads() -> None:
    layout = Layout((2,), (1,), torch.float32)
    empty = Program((), (), (0,), 1, {}, {}, (layout,) * 6, tuple(range(6)))
    act = call(aten.add_.Tensor, Ref(0), Ref(3), outs=(0,))
    constants = {3: torch.ones(2), 4: torch.zeros(2)}
    whole = arranged(empty, [call(VIEW, Ref(3), (2,), outs=(5,)), act], constants)
    assert [*whole.constants] == [3] and [one.call for one in whole.operations] == [act.call]
    assert whole.first == () and whole.operations[0].done == ()


def test_what_was_written_down_is_slots_in_their_order() -> None:
    x, constant = torch.zeros(2), torch.ones(2)
    with Recorder([x]) as recorder:
        x.add_(torch.cat([constant, constant])[:2])
    assert recorder.inputs == (0,) and [*recorder._constants()] == [1]
    assert recorder._constants()[1] is constant
    program = recorder.program(steady=1)
    assert program is not None and [*program.constants] == [1]
    assert program.written_down == tuple(recorder.operations)
    (cat, *_, add) = program.written_down
    assert cat.call is CAT and cat.reads == {1} and cat.outs == (2,) and add.outs == (0,)
    assert program.layouts[2] == Layout((4,), (1,), torch.float32)
    assert program.storages[2] == 2 == program.storages[3]  # a view has the memory of its base
    assert recorder.repeats(program)
    other = replace(program, inputs=(1,))
    assert not recorder.repeats(other)
    recorder.repeatable = False
    assert not recorder.repeats(program) and recorder.program(steady=1) is None


def test_the_version_of_a_tensor_is_how_often_it_was_written_to() -> None:
    x = torch.zeros(1)
    x.add_(1).add_(1)
    assert _version(x) == 2
    with torch.inference_mode():
        assert _version(torch.zeros(1)) == 0


def test_a_detached_tensor_has_the_slot_of_its_own() -> None:
    x = torch.ones(2)
    with Recorder([x]) as recorder:
        y = x.detach()
        y.mul_(3)
    (mul,) = recorder.operations
    assert mul.reads == {0} and mul.outs == (0,)


def program_of(function: Any, *inputs: torch.Tensor) -> Program:
    with Recorder([*inputs]) as recorder:
        function(*inputs)
    program = recorder.program(steady=len(inputs))
    assert program is not None
    return program


def test_a_result_that_overwrites_its_argument_shares_its_memory() -> None:
    def function(x: torch.Tensor) -> None:
        x.add_((x * 2).relu())

    program = program_of(function, torch.zeros(2))
    assert program.storages == (0, 1, 2)
    short = in_place(program)
    assert short.storages == (0, 1, 1)
    relu = short.operations[1]
    assert relu.call is aten.relu_.default and relu.outs == (1,) and relu.args == (Ref(1),)
    assert [one.done for one in short.operations][-1] == (1,)


def test_the_last_use_of_memory_is_that_of_all_its_slots() -> None:
    def function(x: torch.Tensor) -> None:
        y = x * 2
        x.add_(y.view(2, 1).view(2))
        x.add_(1)

    program = program_of(function, torch.zeros(2))
    last = _last_uses(program)
    assert last == {0: 4, 1: 3} and {*program.storages} == {0, 1}


def test_only_new_tensors_without_gaps_go_to_buffers() -> None:
    variant = _writing(ADD)
    assert variant is aten.add.out and _writing(aten.add_.Tensor) is None
    dense, gaps = Layout((2, 2), (2, 1), torch.float32), Layout((2, 2), (4, 1), torch.float32)
    program = Program((), (), (), 0, {}, {}, (dense, gaps, dense), (0, 1, 0))
    new = lambda *outs: _are_new(program, call(ADD, outs=outs), variant)
    assert new(0) and not new(1) and not new(2) and not new() and not new(0, 0)


def test_programs_that_write_to_constants_or_draw_leave_a_trace() -> None:
    x, constant = torch.zeros(2), torch.zeros(2)
    assert is_closed(program_of(lambda x: x.add_(constant), x))
    assert not is_closed(program_of(lambda x: constant.add_(x), x))
    assert not is_closed(program_of(lambda x: x.add_(torch.rand(2)), x))


def test_calls_are_made_ready_with_places_for_their_tensors() -> None:
    whole = replace(call(CAT, (Ref(1), Ref(2)), 0, outs=(3,)), done=(1,))
    made = ready(whole)
    assert made.args == (None, 0) and made.tensors == () and made.lists == ((0, (1, 2)),)
    assert made.kwargs == {} and made.named == () and made.outs == (3,) and made.done == (1,)
    plain = ready(call(aten.add.out, Ref(1), Ref(2), alpha=2, out=Ref(3)))
    assert plain.tensors == ((0, 1), (1, 2)) and plain.named == (("out", 3),)
    assert plain.kwargs == {"alpha": 2} and plain.lists == ()
    sizes = ready(call(VIEW, Ref(0), (2, 1), outs=(1,)))
    assert sizes.args == (None, [2, 1]) and sizes.lists == ()


def test_calls_are_run_on_a_memory_which_they_free() -> None:
    memory: dict[int, Any] = {1: torch.tensor([1.0]), 2: torch.tensor([2.0]), 3: torch.zeros(1)}
    first = replace(call(CAT, (Ref(1), Ref(2)), 0, outs=(4,)), done=(1,))
    second = call(aten.add.out, Ref(2), Ref(2), alpha=3, out=Ref(3))
    third = call(aten.max.dim, Ref(4), 0, outs=(5, 6))
    run([ready(first), ready(second), ready(third)], memory)
    assert memory[4].tolist() == [1.0, 2.0] and memory[3].item() == 8.0 and memory[1] is None
    assert (memory[5].item(), memory[6].item()) == (2.0, 1)
    assert _only([None, memory[2]]) is memory[2]


def test_parts_of_a_program_are_calls_on_what_stays_and_rows_of_others() -> None:
    layout = Layout((2,), (1,), torch.float32)
    stays = call(aten.add_.Tensor, Ref(0), Ref(5), outs=(0,))
    first, second = call(RELU, Ref(0), outs=(1,)), call(RELU, Ref(1), outs=(2,))
    third = call(aten.add_.Tensor, Ref(0), Ref(2), outs=(0,))
    program = Program(
        (), (stays, first, second, stays, third), (0,), 1, {5: torch.ones(2)}, {},
        (layout,) * 6, tuple(range(6)),
    )  # fmt: skip
    parts = _parts(program)
    assert [len(part) if isinstance(part, list) else part.call for part in parts] == [
        aten.add_.Tensor, 2, aten.add_.Tensor, 1,
    ]  # fmt: skip


def test_a_machine_reads_only_the_other_inputs_that_its_program_needs() -> None:
    x, index, key = torch.zeros(2), torch.tensor([1, 0]), torch.zeros(1)
    with Recorder([x, index, key]) as recorder:
        x.add_(torch.arange(2.0)[index])
    program = recorder.program(steady=1)
    assert program is not None
    machine = Machine(program, {})
    assert machine.takes(0) and not machine.takes(1)
    other = torch.zeros(2)
    step = machine.bound([other])
    step(torch.tensor([1, 1]), None)
    assert other.tolist() == [1.0, 1.0] and not machine.direct


@pytest.mark.parametrize(
    ("values", "same"), [([], False), ([2.0, 2.0], True), ([2.0, 3.0], False), ([3.0, 2.0], False)]
)
def test_numbers_are_uniform_if_there_are_some_and_all_alike(
    values: list[float], same: bool
) -> None:
    assert _uniform(torch.tensor(values)) is same


def test_what_python_reads_of_tensors_is_known_by_the_name_of_the_call() -> None:
    one = torch.zeros(2)
    assert reads._reads("tensor", ([1, [one]],), {}) and reads._reads("tensor", (), {"data": [one]})
    assert not reads._reads("tensor", (one,), {}) and not reads._reads("tensor", ([1],), {})
    assert reads._reads("tensor_split", (one, one), {})
    assert reads._reads("tensor_split", (one,), {"indices": one})
    assert not reads._reads("tensor_split", (one, 2), {})
    assert reads._reads("item", (one,), {}) and not reads._reads("add", (one,), {})


def test_operations_show_numbers_by_masks_lengths_and_tags() -> None:
    x, mask = torch.zeros(2), torch.tensor([True, False])
    index = aten.index.Tensor
    assert reads.shows_numbers(index, (x, [None, mask]))
    assert reads.shows_numbers(index, (x, [mask.to(torch.uint8)]))
    assert not reads.shows_numbers(index, (x, [None, torch.tensor([0])]))
    assert reads.shows_numbers(aten._pack_padded_sequence.default, ())
    assert reads.shows_numbers(aten.nonzero.default, (x,))
    assert reads.shows_numbers(aten._local_scalar_dense.default, (x,))
    assert not reads.shows_numbers(ADD, (x, x))
