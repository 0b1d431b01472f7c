"""Whether an example's loss is its own in batches of all sizes, also where one loss is far above
all others, or far below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fedblocks.core.task import Task
from fedblocks.engines.net_check.sizes import some_sizes

NUMBERS = 500_000  # that all outputs of a batch may have together
TURNS = 32  # small batches of one size
SCALES = (0.1, 1.0, 10.0)  # of outputs
SURE = 12.0  # an output of who is sure
NOISE = 0.1
# relative differences that rounding explains
EXACT = 1e-9
ROUGH = 1e-5


def couples(task: Task, outputs: Tensor, y: Tensor, sizes: Iterable[int]) -> bool:
    """Whether the loss of an example is another in a small batch than in a large one; `outputs`
    are some of a net, and `y` as many targets as the largest batch may have.
    """
    most = max(2, min(len(y), NUMBERS // max(1, outputs[0].numel())))
    asked = some_sizes({1, most, *(size for size in sizes if size < most)})
    y = y[:most]
    turns = torch.arange(most) % len(outputs)
    batches = _made_up(task, outputs[turns], y)
    return any(_couples_in(task, batch, y, asked) for batch in batches)


def _made_up(task: Task, outputs: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Outputs of a net, drawn ones, and such that one example is answered otherwise than all."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=draw, dtype=outputs.dtype)
    yield outputs
    yield from (scale * noise for scale in SCALES)
    right, wrong = (NOISE * noise + answers for answers in _answers(task, outputs, y))
    for most, one in ((right, wrong), (wrong, right)):
        yield torch.cat([one[:1], most[1:]])


def _answers(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Who is sure and right, and who is sure and wrong."""
    known = torch.where(task.scored(y), y, 0)
    if task.kind == "regression":
        return known, known + SURE * (1 + known.abs().max())
    there = task.encode(known, outputs.shape[-1], outputs.dtype)
    return SURE * (2 * there - 1), SURE * (1 - 2 * there)


def _couples_in(task: Task, outputs: Tensor, y: Tensor, sizes: Iterable[int]) -> bool:
    in_double = (outputs.double(), y.double() if y.is_floating_point() else y)
    for (own, targets), tolerance in ((in_double, EXACT), ((outputs, y), ROUGH)):
        try:
            whole = task.label_losses(own, targets)
        except Exception:  # it has numbers of its own, in single precision, or takes no such
            continue
        bearable = tolerance * float(whole.nan_to_num(0, 0, 0).abs().max())
        return any(_is_another(task, own, targets, whole, size, bearable) for size in sizes)
    return False


def _is_another(
    task: Task, outputs: Tensor, y: Tensor, whole: Tensor, size: int, bearable: float
) -> bool:
    """Whether batches of this size have other losses than the whole that they are cut from."""
    ends = range(0, min(len(y), TURNS * size), size)
    pairs = ((outputs[i : i + size], y[i : i + size], whole[i : i + size]) for i in ends)
    if all(_has(task, *pair, bearable) for pair in pairs):
        return False
    return _has(task, outputs, y, whole, bearable)  # else its answers change by themselves


def _has(task: Task, outputs: Tensor, y: Tensor, losses: Tensor, bearable: float) -> bool:
    try:
        again = task.label_losses(outputs, y)
    except Exception:  # of a batch of this size; a run says it
        return True
    if again.numel() != losses.numel():
        return True  # of one example, perhaps, which stands alone
    return torch.allclose(again.flatten(), losses.flatten(), 0, bearable, equal_nan=True)
