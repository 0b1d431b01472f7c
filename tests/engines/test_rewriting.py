"""Programs are made faster by rewrites that change no bit, or are dropped. Operations
are counted, never timed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedblocks.engines.replay import rewriting
from fedblocks.engines.replay.folding import folded
from fedblocks.engines.replay.recording import Program, Recorder
from fedblocks.engines.replay.rewriting import fastest, in_place, with_buffers
from fedblocks.engines.replay.running import Machine

aten = torch.ops.aten
LABELS = torch.arange(40) % 5


def weights() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 8), torch.randn(6), torch.randn(5, 6), torch.randn(5)]


SOURCE = torch.randn(40, 8)


def step(params, where, labels=LABELS) -> None:
    """A step of SGD as a method writes it, with the mask of a full batch."""
    leaves = [p.detach().requires_grad_() for p in params]
    x, y = SOURCE.index_select(0, where), labels.index_select(0, where)
    logits = F.linear(F.relu(F.linear(x, *leaves[:2])), *leaves[2:])
    losses, mask = F.cross_entropy(logits, y, reduction="none"), x.new_ones(len(where))
    scored = (y != -100).to(x.dtype)
    loss = (losses * mask).sum() / (scored * mask).sum().clamp(min=1)
    torch._foreach_add_(list(params), torch.autograd.grad(loss, leaves), alpha=-0.1)


def recorded(work, *inputs, steady: int) -> Program:
    with Recorder(inputs) as recorder:
        work()
    return recorder.program(steady)


def dense(labels=LABELS) -> tuple[Program, list[torch.Tensor]]:
    inputs = [*weights(), torch.arange(4)]
    return recorded(lambda: step(inputs[:4], inputs[4], labels), *inputs, steady=4), inputs


def names(program: Program) -> list[str]:
    return [str(operation.call).removeprefix("aten.") for operation in program.operations]


def test_a_step_of_a_dense_net_is_its_products_and_little_else() -> None:
    machine = fastest(*dense(), {})
    assert names(machine.program) == [
        "index_select.out",
        "index_select.out",
        "addmm.out",
        "relu_.default",
        "addmm.out",
        "_log_softmax.out",
        "index_select.out",
        "_log_softmax_backward_data.out",
        "mm.out",
        "mm.out",
        "sum.IntList_out",
        "threshold_backward.grad_input",
        "mm.out",
        "sum.IntList_out",
        "_foreach_add_.List",
    ]
    assert machine.direct and all(not isinstance(part, list) for part in machine.parts)


@pytest.mark.parametrize("left_out", [-1, 17])
def test_the_faster_program_ends_where_the_plain_steps_end(left_out: int) -> None:
    """Also where a label that is left out comes only after the steps that it was tried on."""
    labels = torch.where(torch.arange(40) == left_out, -100, LABELS)
    program, inputs = dense(labels)
    ours, theirs = ([p.clone() for p in inputs[:4]] for _ in range(2))
    run = fastest(program, inputs, {}).bound(ours)
    for begin in range(0, 40, 4):
        where = torch.arange(begin, begin + 4)
        with torch.inference_mode():
            run(where)
        step(theirs, where, labels)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_labels_that_may_be_left_out_are_looked_at_in_every_step() -> None:
    program, inputs = dense(torch.where(torch.arange(40) == 17, -100, LABELS))
    machine = fastest(program, inputs, {})
    assert machine.direct and "ne.Scalar_out" in names(machine.program)


@pytest.mark.parametrize("break_it", ["wrong", "refused"])
def test_a_rewrite_that_changes_a_bit_is_dropped(monkeypatch, break_it) -> None:
    def broken(program: Program) -> Program:
        operations = list(program.operations)
        place = next(n for n, o in enumerate(operations) if o.call is aten._foreach_add_.List)
        alpha = -0.1 * (1 + 1e-6) if break_it == "wrong" else "none"
        operations[place] = replace(operations[place], kwargs=(("alpha", alpha),))
        return replace(program, operations=tuple(operations))

    program, inputs = dense()
    before = [t.clone() for t in inputs]
    monkeypatch.setattr(rewriting, "with_buffers", lambda found: broken(with_buffers(found)))
    machine = fastest(program, inputs, {})
    assert machine.program is program and not machine.direct
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))  # tried on copies


def test_a_program_that_writes_to_what_it_was_not_given_stays_as_it_is_and_is_not_tried() -> None:
    total, x = torch.zeros(3), torch.ones(3)
    program = recorded(lambda: x.add_(total.add_(1)), x, steady=1)
    assert fastest(program, [x], {}).program is program and total.tolist() == [1, 1, 1]


def test_a_program_that_draws_from_the_generator_of_torch_stays_as_it_is_and_is_not_tried() -> None:
    x = torch.randn(4)
    program = recorded(lambda: x.add_(torch.rand(4)), x, steady=1)
    before = torch.get_rng_state()
    assert fastest(program, [x], {}).program is program and torch.equal(
        torch.get_rng_state(), before
    )


def test_constants_are_computed_once_but_not_those_that_are_written_to() -> None:
    x, three = torch.randn(4), torch.tensor(3.0)

    def work() -> None:
        count = torch.zeros_like(x)
        count.add_(x)  # not zero any more
        x.mul_(three.sqrt() * 2).add_(count * torch.ones_like(x))

    short = folded(recorded(work, x, steady=1))
    assert names(short) == [
        "zeros_like.default",
        "add_.Tensor",
        "mul_.Tensor",
        "mul.Tensor",
        "add_.Tensor",
    ]


def test_an_argument_that_is_needed_later_is_not_overwritten() -> None:
    x, other = torch.randn(4), torch.randn(4)

    def work() -> None:
        y = x + 1
        z = y.relu()
        w = y + z  # reads y once more
        x.copy_(w.relu())
        other.copy_(other.relu() + other)

    program = in_place(folded(recorded(work, x, other, steady=2)))
    assert (
        Counter(names(program))["relu.default"] == 2
        and Counter(names(program))["relu_.default"] == 1
    )


def test_a_buffer_serves_again_once_nobody_needs_its_content() -> None:
    x = torch.randn(4)

    def work() -> None:
        y = x.exp()
        seen = y[1:]  # a view: holds the memory of y
        for _ in range(5):
            y = y.sin()
        x[1:].copy_(y[1:] + seen)

    program = with_buffers(recorded(work, x, steady=1))
    assert len([slot for slot in program.buffers if program.layouts[slot].shape == (4,)]) == 3
    # what writes into a buffer makes no new result
    into = [o for o in (*program.first, *program.operations) if dict(o.kwargs).get("out")]
    assert into and all(operation.outs == () for operation in into)
    ours, theirs = x.clone(), x.clone()
    Machine(program, {}).bound([ours])()
    Machine(recorded(work, x, steady=1), {}).bound([theirs])()
    assert torch.equal(ours, theirs)
