"""How well models do on some examples: what is counted of every task, and the metrics that need a
client's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.client import ClientStack, Mapped
from fedblocks.core.errors import UserError
from fedblocks.core.hooks import noting
from fedblocks.core.losses import IGNORE
from fedblocks.core.method import View
from fedblocks.core.metrics import Keep, Metric
from fedblocks.core.parts import Blocks
from fedblocks.core.task import Task
from fedblocks.data import Federation
from fedblocks.data.sets.text import left_out, scores_of

CHUNK = 512  # test examples in one forward pass, at most
NUMBERS = 2**24  # that their outputs may have together: large vocabularies have smaller chunks

OwnView = Callable[[dict[str, Any]], View]  # a client's tensors -> its view
EvalChunk = tuple[Tensor, Tensor]  # rows [..., examples] of the source, and which of them are real
Kept = list[dict[Keep, Tensor]]  # of each way to count, what metrics remember: [..., examples, ...]


def chunk_of(data: Federation) -> int:
    """How many test examples one forward pass takes."""
    numbers = math.prod(data.task.output_shape(data.y, data.classes))
    return max(1, min(CHUNK, NUMBERS // max(1, numbers)))


def chunks_of(rows: Tensor, sizes: Tensor, chunk: int) -> list[EvalChunk]:
    """Padded test rows, [..., examples], cut into chunks that one forward pass takes."""
    real = (torch.arange(rows.shape[-1], device=rows.device) < sizes[..., None]).double()
    return list(zip(torch.split(rows, chunk, -1), torch.split(real, chunk, -1), strict=True))


@torch.no_grad()
def score(
    view: OwnView,
    blocks: Blocks,
    local: ClientStack,
    chunks: Sequence[EvalChunk],
    words: Mapping[str, Any],
) -> Tensor:
    """[scores, 3 + measured] or [clients, scores, 3 + measured]: right labels, scored labels, sum
    of losses, and the task's metrics that need outputs; three scores of words.
    """
    shape = (*local.tensors["size"].shape, len(scores_of(words)), 3)
    totals = torch.zeros(shape, dtype=torch.double, device=local.source.x.device)
    memory: list[Kept] = []
    own = {"options": local.tensors["options"]}
    for rows, real in chunks:
        counts, kept = local.each(_counts(view, local, words))(own, blocks, rows, real)
        totals += counts
        memory.append([{keep: value.cpu() for keep, value in own.items()} for own in kept])
    task = local.source.task
    if not task.measured:
        return totals
    return torch.cat([totals, _measure(local, chunks, memory, words).to(totals)], -1)


def score_outputs(task: Task, outputs: Tensor, y: Tensor) -> tuple[float, ...]:
    """The same of one client's outputs in hand: right labels, scored labels, sum of losses, and
    the metrics that need outputs.
    """
    y = y if task.of_classes else y.to(outputs.dtype)  # as in training
    counts = _count(task, outputs, y, torch.ones(len(y), device=y.device))
    kept = {metric.keep: metric.memory(outputs, y) for metric in task.measured}
    return (*counts.tolist(), *_measure_one(task, kept, y).tolist())


def _counts(view: OwnView, local: ClientStack, words: Mapping[str, Any]) -> Mapped:
    task = local.source.task
    keeps = {metric.keep: metric for metric in task.measured}

    def counts(
        client: dict[str, Any], blocks: Blocks, rows: Tensor, real: Tensor
    ) -> tuple[Tensor, Kept]:
        x, y = local.source.x[rows], local.source.y[rows]
        mask = real if local.mapped else None
        with (
            noting(local.method, "predict"),
            mode.mode(training=False, mapped=local.mapped, mask=mask, task=task),
        ):
            outputs = view(client)(local.whole(blocks), x)
            targets = _targets(y, words)
            kept = [
                {keep: metric.memory(outputs, labels) for keep, metric in keeps.items()}
                for labels in targets
            ]
            return torch.stack([_count(task, outputs, labels, real) for labels in targets]), kept

    return counts


def _targets(y: Tensor, words: Mapping[str, Any]) -> list[Tensor]:
    """The labels, as each way to count sees them."""
    return [
        torch.where(left_out(y, words, kind), IGNORE, y) if words else y
        for kind in scores_of(words)
    ]


def _count(task: Task, outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
    losses, labels = task.summed_losses(outputs, y)
    right = task.right_answers(outputs, y)
    counted = [torch.where(real > 0, value.double(), 0) for value in (right, labels, losses)]
    return torch.stack([value.sum() for value in counted])


def _measure(
    local: ClientStack,
    chunks: Sequence[EvalChunk],
    memory: Sequence[Kept],
    words: Mapping[str, Any],
) -> Tensor:
    """[scores, measured] or [clients, scores, measured], each client by itself."""
    along = 1 if local.mapped else 0
    rows, real = (torch.cat(values, along) for values in zip(*chunks, strict=True))
    ways = []
    for way, y in enumerate(_targets(local.source.y[rows].cpu(), words)):
        own = [chunk[way] for chunk in memory]
        kept = {keep: torch.cat([chunk[keep] for chunk in own], along) for keep in own[0]}
        ways.append(_measure_way(local, kept, y, real.cpu() > 0))
    return torch.stack(ways, along)


def _measure_way(
    local: ClientStack, kept: Mapping[Keep, Tensor], y: Tensor, real: Tensor
) -> Tensor:
    task, ids = local.source.task, local.tensors["id"]
    if not local.mapped:
        with _naming_client(ids):
            return _measure_one(task, {k: value[real] for k, value in kept.items()}, y[real])
    values = []
    for c in range(len(y)):
        with _naming_client(ids[c]):
            own = {k: value[c][real[c]] for k, value in kept.items()}
            values.append(_measure_one(task, own, y[c][real[c]]))
    return torch.stack(values)


@contextmanager
def _naming_client(client: Tensor) -> Iterator[None]:
    """An error of a metric says whose examples it was given."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error.message}, for client {int(client)}", error.fix) from error


def _measure_one(task: Task, kept: Mapping[Keep, Tensor], y: Tensor) -> Tensor:
    """The metrics of one client that need its outputs: [measured]; none if nothing is scored."""
    scored = task.scored(y)
    if not scored.any():
        return torch.full((len(task.measured),), torch.nan, dtype=torch.double)
    if task.of_classes:
        kept = {keep: value[scored] for keep, value in kept.items()}
        y = y[scored]
    else:
        y = y.double()
    values = [_value(metric, kept[metric.keep].double(), y) for metric in task.measured]
    return torch.tensor(values, dtype=torch.double)


def _value(metric: Metric, kept: Tensor, y: Tensor) -> float:
    """A model whose outputs are no numbers is as bad as can be, and not left out."""
    if kept.isnan().any():
        return -math.inf if metric.better == "higher" else math.inf
    return metric.value(kept, y)
