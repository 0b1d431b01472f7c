"""What engines have in common: the same code for one client and for a stack of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.client import Local, Mapped
from fedblocks.core.local_round import Orders, Runner, local_round, step_by_step, train
from fedblocks.core.method import View
from fedblocks.core.parts import OPTIMIZER, Blocks
from fedblocks.core.phases import IGNORE, summed_losses
from fedblocks.core.server import requested
from fedblocks.engines.job import Counts, Job, Trained

PIECE = 512  # test examples in one forward pass

Piece = tuple[Tensor, Tensor]  # rows [..., examples] of the source, and which of them are real


def train_locally(
    job: Job, local: Local, sent: Blocks, orders: Orders, pieces: Sequence[Piece], runner: Runner = step_by_step
) -> Trained:
    """One round of one client or of a stack; with pieces of test data, also how the models did before aggregation."""
    blocks, wanted, down = _second_download(job, local, sent)
    blocks, weights = local_round(job.method, job.phases, blocks, local, orders, runner)
    counts = {"local": score(job.method.predict, blocks, local, pieces)} if pieces else {}
    kept = {name: b for name, b in blocks.items() if name in job.kept_blocks or name.startswith(OPTIMIZER)}
    return Trained(kept, weights, wanted, down, counts)


def evaluate_locally(
    job: Job, local: Local, sent: Blocks, orders: Orders, pieces: Sequence[Piece], runner: Runner = step_by_step
) -> Counts:
    """Every view of the models, after adaptation."""
    blocks, _, _ = _second_download(job, local, sent)
    blocks = train(job.phases, local.call(job.method.prepare, blocks), local, orders, runner)
    return {name: score(view, blocks, local, pieces) for name, view in job.method.views().items()}


def _second_download(job: Job, local: Local, blocks: Blocks) -> tuple[Blocks, dict[str, Tensor], dict[str, Tensor]]:
    """The pools that wait for a request: what a client asks for, and what that costs."""
    if not job.sent.on_request:
        return blocks, {}, {}
    wanted: dict[str, Tensor] = local.call(job.method.wants, blocks)
    more = {name: requested(slots, wanted[name]) for name, slots in job.sent.on_request.items()}
    down = {name: (wanted[name] != 0).sum(-1) * job.bytes_per_slot[name] for name in more}
    return {**blocks, **more}, wanted, down


@torch.no_grad()
def score(view: View, blocks: Blocks, local: Local, pieces: Sequence[Piece]) -> Tensor:
    """[3] or [clients, 3]: correct answers, scored labels, sum of losses."""
    totals = torch.zeros(*local.tensors["size"].shape, 3, dtype=torch.double, device=local.source.x.device)
    for rows, real in pieces:
        totals += local.each(_counts(view, local))(blocks, rows, real)
    return totals


def _counts(view: View, local: Local) -> Mapped:
    def counts(blocks: Blocks, rows: Tensor, real: Tensor) -> Tensor:
        x, y = local.source.x[rows], local.source.y[rows]
        with mode.mode(training=False, mapped=local.mapped, mask=real if local.mapped else None):
            logits = view(blocks, x)
        losses, labels = summed_losses(logits, y)
        right = ((logits.argmax(-1) == y) & (y != IGNORE)).flatten(1).sum(1) if y.dim() > 1 else logits.argmax(-1) == y
        counted = [torch.where(real > 0, value.double(), 0) for value in (right, labels, losses)]
        return torch.stack([value.sum() for value in counted])

    return counts


def pieces_of(rows: Tensor, sizes: Tensor) -> list[Piece]:
    """Padded test rows, [..., examples], cut into pieces that one forward pass takes."""
    real = (torch.arange(rows.shape[-1], device=rows.device) < sizes[..., None]).double()
    return list(zip(torch.split(rows, PIECE, -1), torch.split(real, PIECE, -1), strict=True))
