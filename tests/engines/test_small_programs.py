"""Every rewrite of a program ends where its own code ends, also on other inputs than those that it
was recorded on, and leaves out what it should. Small programs, each with something that a rewrite
must see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.engines.replay import folding
from fedblocks.engines.replay.folding import folded
from fedblocks.engines.replay.recording import Program, Recorder
from fedblocks.engines.replay.rewriting import in_place, with_buffers
from fedblocks.engines.replay.running import Machine

ONES, MIXED = torch.ones(4), torch.tensor([1.0, 2.0, 1.0, 0.5])
SOURCE = torch.linspace(-1, 2, 16).view(4, 4)
LABELS = torch.arange(12) % 4
PARTLY = torch.where(torch.arange(12) == 11, -100, LABELS)
BIG = torch.linspace(0, 1, 12)
KERNEL = torch.tensor([[[0.5, -1.0]], [[2.0, 0.25]]])


def ones_on_both_sides(x: Tensor, where: Tensor) -> None:
    x.add_((x * 2) * torch.ones_like(x)).add_(x.new_ones(4) * (x * 3))


def product_with_other_numbers(x: Tensor, where: Tensor) -> None:
    x.copy_((x + 1) * MIXED)


def product_that_is_larger(x: Tensor, where: Tensor) -> None:
    x.copy_(((x + 1) * torch.ones(3, 4)).sum(0))


def product_of_what_is_written_later(x: Tensor, where: Tensor) -> None:
    y = x * ONES
    x.add_(1)
    x.mul_(y)


def product_with_a_number(x: Tensor, where: Tensor) -> None:
    x.copy_((x * 2.0) * ONES)


def zeros_that_are_added_to(x: Tensor, where: Tensor) -> None:
    total = x.new_zeros(4)
    total.add_(x)
    x.sub_(total * 0.5).add_(torch.zeros_like(x))


def zeros_and_ones_of_every_kind(x: Tensor, where: Tensor) -> None:
    x.add_(x.new_zeros(4) + torch.zeros_like(x)).mul_(x.new_ones(4) + torch.ones_like(x))


def constants_of_constants(x: Tensor, where: Tensor) -> None:
    x.add_((MIXED.exp() * MIXED).sum())


def constants_too_large_to_keep(x: Tensor, where: Tensor) -> None:
    x.add_((BIG * 2).index_select(0, where[:4]))


def labels_never_left_out(x: Tensor, where: Tensor) -> None:
    x.add_((LABELS.index_select(0, where) != -100).to(x.dtype))


def labels_left_out_elsewhere(x: Tensor, where: Tensor) -> None:
    x.add_((PARTLY[where] != -100).to(x.dtype))


def _slope(x: Tensor, labels: Tensor, factor: Tensor, **how: object) -> None:
    scores = (x[:, None] * SOURCE).detach().requires_grad_()
    losses = F.cross_entropy(scores, labels, reduction="none", **how)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad((losses * factor).sum(), [scores])
    x.sub_(slope.sum(1)).sub_(slope[:, 0])


def slope_of_alike_examples(x: Tensor, where: Tensor) -> None:
    _slope(x, LABELS.index_select(0, where), 2 * ONES)


def slope_of_unlike_examples(x: Tensor, where: Tensor) -> None:
    _slope(x, LABELS.index_select(0, where), MIXED)


def slope_of_labels_that_may_be_left_out(x: Tensor, where: Tensor) -> None:
    _slope(x, PARTLY.index_select(0, where), 2 * ONES)


def slope_of_weighted_classes(x: Tensor, where: Tensor) -> None:
    _slope(x, LABELS.index_select(0, where), 2 * ONES, weight=MIXED)


def slope_of_a_mean(x: Tensor, where: Tensor) -> None:
    scores = (x[:, None] * SOURCE).detach().requires_grad_()
    loss = F.cross_entropy(scores, LABELS.index_select(0, where))
    x.sub_(torch.autograd.grad(loss, [scores])[0].sum(1)).add_(loss.detach())


def relu_of_what_is_read_later(x: Tensor, where: Tensor) -> None:
    y = x - 0.5
    z = y.relu()
    x.add_(y + z)


def relu_of_what_is_not(x: Tensor, where: Tensor) -> None:
    x.copy_((x - 0.5).relu() + 1)


def relu_of_a_view_whose_base_is_read_later(x: Tensor, where: Tensor) -> None:
    y = x - 0.5
    z = y[1:].relu()
    x[1:].add_(z).add_(y[:3])


def relu_of_inputs_and_constants(x: Tensor, where: Tensor) -> None:
    x.add_(x.relu()).add_(MIXED.index_select(0, where % 4).relu())


def results_of_two_tensors(x: Tensor, where: Tensor) -> None:
    values, places = (x * 2).sort(descending=True)
    largest, place = torch.stack([x, values]).max(0)
    x.copy_(largest + places.to(x.dtype) + place.to(x.dtype))


def lists_of_tensors(x: Tensor, where: Tensor) -> None:
    table = torch.stack([x, x + 1, 2 * x])
    x.copy_(torch.cat([table[:, where % 4].sum(0)[:2], x[2:]]))


def views_of_what_stays(x: Tensor, where: Tensor) -> None:
    first, last = x[:2], x.view(2, 2)[1]
    first.add_(last)
    last.mul_(first)


def gradients_of_a_convolution(x: Tensor, where: Tensor) -> None:
    kernel = KERNEL.detach().requires_grad_()
    out = F.conv1d(x.detach().view(1, 1, 4), kernel)
    (grad,) = torch.autograd.grad(out.square().sum(), [kernel])
    x.add_(grad.flatten())


def buffers_that_serve_again(x: Tensor, where: Tensor) -> None:
    y = x.cos()
    seen = y[1:]
    for _ in range(4):
        y = y.sin()
    x[1:].copy_((y[1:] + seen) / 9)


class Case(NamedTuple):
    work: Callable[[Tensor, Tensor], None]
    gone: str = ""  # what a folded program need not do
    overwrites: int = 0  # results in place of an argument
    buffers: int = 0


CASES = [
    Case(ones_on_both_sides, "mul mul new_ones ones_like", 0, 1),
    Case(product_with_other_numbers, "", 0, 2),
    Case(product_that_is_larger, "", 0, 2),
    Case(product_of_what_is_written_later, "", 0, 1),
    Case(product_with_a_number, "mul", 0, 1),
    Case(zeros_that_are_added_to, "zeros_like", 0, 1),
    Case(zeros_and_ones_of_every_kind, "add add new_ones new_zeros ones_like zeros_like", 0, 0),
    Case(constants_of_constants, "exp mul sum", 0, 0),
    Case(constants_too_large_to_keep, "", 0, 2),
    Case(labels_never_left_out, "_to_copy index_select ne", 0, 0),
    Case(labels_left_out_elsewhere, "", 0, 2),
    Case(
        slope_of_alike_examples,
        "expand mul mul mul nll_loss_backward nll_loss_forward ones_like sum",
        0,
        5,
    ),
    Case(slope_of_unlike_examples, "expand mul mul nll_loss_forward ones_like sum", 0, 5),
    Case(
        slope_of_labels_that_may_be_left_out,
        "expand mul mul mul nll_loss_forward ones_like sum",
        0,
        5,
    ),
    Case(slope_of_weighted_classes, "expand mul mul mul nll_loss_forward ones_like sum", 0, 5),
    Case(slope_of_a_mean, "ones_like", 0, 7),
    Case(relu_of_what_is_read_later, "", 0, 2),
    Case(relu_of_what_is_not, "", 1, 2),
    Case(relu_of_a_view_whose_base_is_read_later, "", 0, 1),
    Case(relu_of_inputs_and_constants, "", 1, 1),
    Case(results_of_two_tensors, "", 0, 3),
    Case(lists_of_tensors, "", 0, 3),
    Case(views_of_what_stays),
    Case(gradients_of_a_convolution, "expand mul ones_like pow sum", 0, 1),
    Case(buffers_that_serve_again, "", 0, 5),
]


def recorded(work: Callable[[Tensor, Tensor], None]) -> Program:
    inputs = [torch.tensor([0.3, -0.7, 1.2, 0.1]), torch.arange(4)]
    with Recorder(inputs) as recorder:
        work(*inputs)
    return recorder.program(1)


def names(program: Program) -> list[str]:
    return [operation.call.overloadpacket.__name__ for operation in program.operations]


def ends(program: Program, starts: Sequence[Tensor], orders: Sequence[Tensor]) -> list[Tensor]:
    """Where each client ends; all of them in the memory of one machine, one after the other."""
    machine, reached = Machine(program, {}), []
    for start in starts:
        x = start.clone()
        with torch.inference_mode():
            step = machine.bound([x])
            for where in orders:
                step(where)
        reached.append(x)
    return reached


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.work.__name__)
def test_a_program_ends_where_its_code_does(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_LARGEST", 16 if "slope" in case.work.__name__ else 8)
    starts = [torch.tensor([0.5, -1.5, 0.2, 2.0]), torch.tensor([-0.1, 0.4, 1.0, -3.0])]
    orders = [torch.arange(4), torch.tensor([3, 0, 2, 1]), torch.tensor([11, 5, 6, 8])]
    expected = [start.clone() for start in starts]
    for x in expected:
        for where in orders:
            case.work(x, where)
    plain = recorded(case.work)
    short = folded(plain)
    for program in (plain, short, in_place(short), with_buffers(in_place(short))):
        for ours, theirs in zip(ends(program, starts, orders), expected, strict=True):
            assert torch.equal(ours, theirs)
    gone = Counter(names(plain)) - Counter(names(short))
    overwrites = names(in_place(short)).count("relu_")
    buffers = len(with_buffers(in_place(short)).buffers)
    assert case[1:] == (" ".join(sorted(gone.elements())), overwrites, buffers)
