"""What engines have in common: the same code for one client and for a stack of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from torch import Tensor

from fedblocks.core.client import ClientStack
from fedblocks.core.local_round import Orders, StepRunner, local_round, step_by_step, train
from fedblocks.core.method import Method, View
from fedblocks.core.parts import OPTIMIZER, Blocks
from fedblocks.data.sets.text import scored_view
from fedblocks.engines.job import Counts, Evaluated, Job, Trained
from fedblocks.engines.scoring import EvalChunk, score


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
        # [..., scores, 3 + measured]
        scores = score(own, blocks, local, chunks[part], job.words)
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
