"""What engines have in common: the same code for one client and for a stack of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.client import ClientStack, Mapped
from fedblocks.core.local_round import Orders, StepRunner, local_round, step_by_step, train
from fedblocks.core.method import Method, View
from fedblocks.core.parts import OPTIMIZER, Blocks
from fedblocks.core.phases import IGNORE, summed_losses
from fedblocks.data.sets.text import left_out, scored_view, scores_of
from fedblocks.engines.job import Counts, Evaluated, Job, Trained

CHUNK = 512  # test examples in one forward pass

OwnView = Callable[[dict[str, Any]], View]  # a client's tensors -> its view
EvalChunk = tuple[Tensor, Tensor]  # rows [..., examples] of the source, and which of them are real


def train_locally(
    job: Job,
    local: ClientStack,
    sent: Blocks,
    orders: Orders,
    chunks: Sequence[EvalChunk],
    runner: StepRunner = step_by_step,
) -> Trained:
    """One round of one client or of a stack; with chunks of test data, also how the
    models did before aggregation.
    """
    blocks, wanted, down = _second_download(job, local, sent)
    blocks, weights = local_round(job.method, job.phases, blocks, local, orders, runner)
    counts: Counts = {}
    if chunks:
        view = lambda client: local.own(job.method.predict, client, lambda own: own.predict)
        counts["local"] = score(view, blocks, local, chunks, {})[..., 0, :]
    matters = job.kept_blocks
    kept = {n: b for n, b in blocks.items() if n in matters or n.startswith(OPTIMIZER)}
    return Trained(kept, weights, wanted, down, counts)


def evaluate_locally(
    job: Job,
    local: ClientStack,
    sent: Blocks,
    orders: Orders,
    chunks: Mapping[str, Sequence[EvalChunk]],
    runner: StepRunner = step_by_step,
) -> Evaluated:
    """Every view of the models on every part of the data, after one adaptation."""
    blocks = adapt(job, local, sent, orders, runner)
    counts: dict[str, Counts] = {part: {} for part in chunks}
    for part, (name, view) in product(chunks, job.method.views().items()):
        own = partial(local.own, view, find=partial(_view_of, name))
        scores = score(own, blocks, local, chunks[part], job.words)  # [..., scores, 3]
        counts[part] |= {
            scored_view(name, kind): scores[..., k, :] for k, kind in enumerate(job.scores)
        }
    return Evaluated(counts, local.call(job.method.portrait, blocks))


def _view_of(name: str, method: Method) -> View:
    return method.views()[name]


def adapt(
    job: Job, local: ClientStack, sent: Blocks, orders: Orders, runner: StepRunner = step_by_step
) -> Blocks:
    """The blocks that evaluation uses: what was sent and kept, after `prepare` and adaptation."""
    blocks, _, _ = _second_download(job, local, sent)
    return train(job.phases, local.call(job.method.prepare, blocks), local, orders, runner)


def _second_download(
    job: Job, local: ClientStack, blocks: Blocks
) -> tuple[Blocks, dict[str, Tensor], dict[str, Tensor]]:
    """The pools that wait for a request: what a client asks for, and what that costs."""
    if not job.sent.on_request:
        return blocks, {}, {}
    wanted: dict[str, Tensor] = local.call(job.method.wants, blocks)
    more = job.requested(wanted, local)
    down = {name: (wanted[name] != 0).sum(-1) * job.bytes_per_slot[name] for name in more}
    return {**blocks, **more}, wanted, down


@torch.no_grad()
def score(
    view: OwnView,
    blocks: Blocks,
    local: ClientStack,
    chunks: Sequence[EvalChunk],
    words: Mapping[str, Any],
) -> Tensor:
    """[scores, 3] or [clients, scores, 3]: correct answers, scored labels, sum of
    losses; three scores of words.
    """
    shape = (*local.tensors["size"].shape, len(scores_of(words)), 3)
    totals = torch.zeros(shape, dtype=torch.double, device=local.source.x.device)
    own = {"options": local.tensors["options"]}
    for rows, real in chunks:
        totals += local.each(_counts(view, local, words))(own, blocks, rows, real)
    return totals


def _counts(view: OwnView, local: ClientStack, words: Mapping[str, Any]) -> Mapped:
    def counts(client: dict[str, Any], blocks: Blocks, rows: Tensor, real: Tensor) -> Tensor:
        x, y = local.source.x[rows], local.source.y[rows]
        with mode.mode(training=False, mapped=local.mapped, mask=real if local.mapped else None):
            logits = view(client)(local.whole(blocks), x)
            kept = [
                torch.where(left_out(y, words, kind), IGNORE, y) if words else y
                for kind in scores_of(words)
            ]
            return torch.stack([_count(logits, labels, real) for labels in kept])

    return counts


def _count(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    losses, labels = summed_losses(logits, y)
    right = logits.argmax(-1) == y
    if y.dim() > 1:
        right = (right & (y != IGNORE)).flatten(1).sum(1)
    counted = [torch.where(real > 0, value.double(), 0) for value in (right, labels, losses)]
    return torch.stack([value.sum() for value in counted])


def chunks_of(rows: Tensor, sizes: Tensor) -> list[EvalChunk]:
    """Padded test rows, [..., examples], cut into chunks that one forward pass takes."""
    real = (torch.arange(rows.shape[-1], device=rows.device) < sizes[..., None]).double()
    return list(zip(torch.split(rows, CHUNK, -1), torch.split(real, CHUNK, -1), strict=True))
