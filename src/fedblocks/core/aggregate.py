"""What clients send, and the one weighted reduction that makes every aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedblocks.core.blocks import (
    Federated,
    Mixture,
    PerClient,
    Pool,
    Private,
    Read,
    Selection,
    server_name,
)
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER, Blocks, Params, is_statistic
from fedblocks.core.rules import Rule
from fedblocks.core.server import Cohort, own_server
from fedblocks.core.state import State, count_bytes, statistics_name
from fedblocks.core.trees import concatenate, take

WEIGHT_BYTES = 8  # a weight travels as one double
_PIECE = 1 << 16  # numbers that are made doubles at a time on a CPU: they stay in its cache


@dataclass(frozen=True, eq=False)
class Upload:
    """What a group of clients sends of one block."""

    name: str  # server name
    ids: Tensor  # [clients]
    copies: Params  # [clients, ...], or [clients, slots, ...] if each slot has a copy of its own
    weights: Tensor  # [clients, slots]
    per_slot: bool
    rule: Rule
    own: bool = False  # each client writes the slot that has its number
    # clients of each of several federations side by side, which have slots of their own
    lanes: tuple[int, ...] = ()

    def keep(self, good: Tensor) -> Upload:
        """Only the uploads of some clients."""
        return replace(
            self, ids=self.ids[good], copies=take(self.copies, good), weights=self.weights[good]
        )

    def bytes_up(self) -> Tensor:
        """[clients]: a copy for each slot that is written (one copy if they are the
        same), and the weights.
        """
        one = count_bytes(
            self.copies, rows=self.weights.numel() if self.per_slot else len(self.weights)
        )
        written = (self.weights != 0).sum(1)
        copies = written if self.per_slot else written.clamp(max=1)
        return copies * one + self.weights.shape[1] * WEIGHT_BYTES


Uploads = dict[str, Upload]  # by the method's own name of the block


def uploads_of(
    method: Method,
    blocks: Blocks,
    weights: Mapping[str, Tensor],
    reads: Mapping[str, Read],
    wanted: Mapping[str, Tensor],
    cohort: Cohort,
) -> Uploads:
    """What a group of clients sends after local training."""
    uploads: Uploads = {}
    for name, block in method.blocks().items():
        if not isinstance(block, Federated):
            continue
        read = reads.get(name)
        copies = _without_statistics(method, blocks[block.of or name])
        side_by_side = isinstance(block, Pool) and block.of is None and _shows_slots(read)
        asked = weights.get(name)
        row = _weights(block, read, asked, wanted.get(name), cohort)
        if side_by_side and isinstance(read, Selection) and asked is None:
            copies = _scatter(copies, read.slots, block.size)
        own = isinstance(block, PerClient)
        uploads[name] = Upload(
            server_name(name, block), cohort.ids, copies, row, side_by_side, block.rule, own
        )
    return uploads


def _shows_slots(read: Read | None) -> bool:
    """Whether a client sees several slots side by side."""
    return read is None or (isinstance(read, Selection) and read.slots.dim() == 2)


def _weights(
    block: Federated, read: Read | None, asked: Tensor | None, wanted: Tensor | None, cohort: Cohort
) -> Tensor:
    """[clients, slots]: what the method said, or the number of examples wherever the
    client read.
    """
    size = cohort.sizes[:, None].double()
    if asked is not None:
        return asked.double().view(len(cohort), -1)
    if isinstance(block, PerClient):
        return (size > 0).double()  # a client without data has nothing to say of itself
    if wanted is not None:
        return size * (wanted != 0)
    if isinstance(read, Mixture):
        return size * read.weights.double()
    if isinstance(read, Selection):
        nowhere = torch.zeros(len(cohort), block.size, dtype=torch.double, device=size.device)
        return size * nowhere.scatter(1, read.slots.view(len(cohort), -1), 1.0)
    return size.expand(-1, block.size)


def _scatter(copies: Params, slots: Tensor, size: int) -> Params:
    """[clients, how many, ...] -> [clients, all slots, ...], zero where a client had none."""
    if slots.shape[1] == size and slots.stride(0) == 0:
        return copies
    rows = torch.arange(len(slots), device=slots.device)[:, None]
    return {
        k: v.new_zeros(len(v), size, *v.shape[2:]).index_put((rows, slots), v)
        for k, v in copies.items()
    }


def _without_statistics(method: Method, copies: Params) -> Params:
    return {k: v for k, v in copies.items() if method.statistics != "local" or not is_statistic(k)}


def private_of(method: Method, blocks: Blocks) -> Blocks:
    """What stays on the clients: private blocks, and their own statistics: [clients, ...]."""
    private: Blocks = {name: block for name, block in blocks.items() if name.startswith(OPTIMIZER)}
    for name, block in method.blocks().items():
        if isinstance(block, Private):
            private[name] = blocks[name]
        elif (
            isinstance(block, Federated)
            and method.statistics == "local"
            and not isinstance(block, PerClient)
        ):
            own = {k: v for k, v in blocks[name].items() if is_statistic(k)}
            if own:
                private[statistics_name(name)] = own
    return private


def reduce_slots(old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """The one aggregation kernel: slot s becomes sum_c w[c, s] copy[c] / sum_c w[c, s].

    Returns the means and which slots were written; a slot that nobody wrote keeps its old value.
    Sums run over clients in the order of their ids, in double precision.
    """
    if upload.own:
        return _own_slots(old, upload)
    if upload.lanes:
        return _reduce_by_lane(old, upload)
    total = upload.weights.sum(0)  # [slots]
    written = total > 0
    share = upload.weights / torch.where(written, total, 1)
    if not upload.per_slot and all(
        v.is_cuda and v.dtype == torch.float32 for v in upload.copies.values()
    ):
        return _reduce_at_once(old, upload.copies, share, written), written
    mean = {k: _weighted_sum(share, v, upload.per_slot) for k, v in upload.copies.items()}
    return {k: _where(written, mean[k], v) if k in mean else v for k, v in old.items()}, written


def _reduce_at_once(old: Params, copies: Params, share: Tensor, written: Tensor) -> Params:
    """The same with all tensors side by side: on a GPU the launches cost more than the sums."""
    names = [name for name in old if name in copies]
    # [clients, numbers]
    whole = torch.cat([copies[name].reshape(len(share), -1) for name in names], 1)
    # [slots, numbers]
    before = torch.cat([old[name].reshape(len(written), -1) for name in names], 1)
    after = torch.where(written[:, None], (share.T @ whole.double()).to(whole.dtype), before)
    pieces = torch.split(after, [old[name][0].numel() for name in names], 1)
    return {
        **old,
        **{name: piece.view_as(old[name]) for name, piece in zip(names, pieces, strict=True)},
    }


def _reduce_by_lane(old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """The same for several federations at once: a lane's means hold no number of
    another's, not even times zero.
    """
    weights = _by_lane(upload.weights, upload.lanes)  # [lanes, clients, slots]
    total = weights.sum(1)  # [lanes, slots]
    share = weights / torch.where(total > 0, total, 1)[:, None]
    written = (total > 0).flatten()
    spec, inner = ("lcs,lcsn->lsn", 2) if upload.per_slot else ("lcs,lcn->lsn", 1)
    new = dict(old)
    for dtype in dict.fromkeys(v.dtype for v in upload.copies.values()):
        names = [
            name for name in old if name in upload.copies and upload.copies[name].dtype == dtype
        ]
        flat = [
            upload.copies[name].reshape(*upload.copies[name].shape[:inner], -1) for name in names
        ]
        whole = _by_lane(torch.cat(flat, -1), upload.lanes)  # [lanes, clients, (slots,) numbers]
        # [slots of all lanes, numbers]
        mean = torch.einsum(spec, share, whole.double()).to(dtype).flatten(0, 1)
        for name, piece in zip(
            names, torch.split(mean, [v.shape[-1] for v in flat], 1), strict=True
        ):
            new[name] = _where(written, piece.view_as(old[name]), old[name])
    return new, written


def _by_lane(values: Tensor, lanes: Sequence[int]) -> Tensor:
    """[clients of all lanes, ...] -> [lanes, clients, ...], with zeros where a lane has
    fewer than others.
    """
    most = max(lanes)
    if min(lanes) < most:
        where = [lane * most + i for lane, count in enumerate(lanes) for i in range(count)]
        wide = values.new_zeros(len(lanes) * most, *values.shape[1:])
        values = wide.index_copy(0, torch.tensor(where, device=values.device), values)
    return values.reshape(len(lanes), most, *values.shape[1:])


def _weighted_sum(share: Tensor, copies: Tensor, per_slot: bool) -> Tensor:
    """sum_c share[c, s] copy[c]: [slots, ...], added up in double precision."""
    spec, inner = ("cs,cs...->s...", 2) if per_slot else ("cs,c...->s...", 1)
    if copies.is_cuda or copies.numel() <= _PIECE or copies.dim() == inner:
        return torch.einsum(spec, share, copies.double()).to(copies.dtype)
    flat = copies.flatten(inner)  # [clients, (slots,) numbers]
    width = max(1, _PIECE * flat.shape[-1] // flat.numel())
    # one for all pieces: it stays in the cache
    doubles = flat.new_empty((*flat.shape[:-1], width), dtype=torch.double)
    sums = flat.new_empty(share.shape[1], flat.shape[-1])
    for piece, into in zip(torch.split(flat, width, -1), torch.split(sums, width, -1), strict=True):
        values = doubles[..., : piece.shape[-1]].copy_(piece)
        into.copy_(torch.einsum(spec, share, values) if per_slot else share.t() @ values)
    return sums.view(-1, *copies.shape[inner:])


def _own_slots(old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """The same reduction where client c alone writes slot c: no [clients, slots] matrix
    in large federations.
    """
    ids, writers = upload.ids, upload.weights[:, 0] > 0
    count = len(next(iter(old.values())))
    written = torch.zeros(count, dtype=torch.bool, device=ids.device).index_copy(0, ids, writers)
    return {
        k: v.index_copy(0, ids, _where(writers, upload.copies[k], v[ids])) for k, v in old.items()
    }, written


def aggregate(
    methods: Mapping[str, Method],
    state: State,
    groups: Mapping[str, Uploads],
    cohorts: Mapping[str, Cohort],
) -> State:
    """The server's side at the end of a round: reduce every block, apply its rule, let
    methods conclude.
    """
    return conclude(methods, state, reduce_groups(state, groups), groups, cohorts)


def reduce_groups(state: State, groups: Mapping[str, Uploads]) -> State:
    """The next state before methods conclude: every block reduced, and its rule applied."""
    server, memory = dict(state.server), dict(state.memory)
    for upload in _merge_groups(groups):
        if len(upload.ids):
            name = upload.name
            memory[name], server[name] = _apply_rule(
                upload.rule, state.memory[name], state.server[name], upload
            )
    return replace(state, round=state.round + 1, server=server, memory=memory)


def conclude(
    methods: Mapping[str, Method],
    before: State,
    after: State,
    groups: Mapping[str, Uploads],
    cohorts: Mapping[str, Cohort],
) -> State:
    """What each method makes of its blocks once they are reduced."""
    server = dict(after.server)
    for group, uploads in groups.items():
        layout = methods[group].blocks()
        old, new = own_server(layout, before.server), own_server(layout, server)
        concluded = methods[group].conclude(new, old, uploads, cohorts[group])
        server |= {server_name(n, layout[n]): v for n, v in concluded.items()}
    return replace(after, server=server)


def _apply_rule(rule: Rule, memory: Blocks, old: Params, upload: Upload) -> tuple[Blocks, Params]:
    mean, written = reduce_slots(old, upload)
    new_memory, new = rule.apply(memory, old, mean)
    if new is mean and not new_memory:
        return new_memory, new
    kept = {
        n: {k: _where(written, v, memory[n][k]) for k, v in block.items()}
        for n, block in new_memory.items()
    }
    return kept, {k: _where(written, v, old[k]) for k, v in new.items()}


def _merge_groups(groups: Mapping[str, Uploads]) -> list[Upload]:
    """Uploads to the same server name as one, clients in the order of their ids."""
    by_name: dict[str, list[Upload]] = {}
    for uploads in groups.values():
        for upload in uploads.values():
            by_name.setdefault(upload.name, []).append(upload)
    return [
        uploads[0] if len(uploads) == 1 else _concatenate(uploads) for uploads in by_name.values()
    ]


def _concatenate(uploads: list[Upload]) -> Upload:
    ids = torch.cat([upload.ids for upload in uploads])
    order = ids.argsort()
    copies = take(concatenate([upload.copies for upload in uploads]), order)
    lanes = tuple(map(sum, zip(*(upload.lanes for upload in uploads), strict=True)))
    weights = torch.cat([upload.weights for upload in uploads])[order]
    return replace(uploads[0], ids=ids[order], copies=copies, weights=weights, lanes=lanes)


def _where(written: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(written.view(-1, *[1] * (new.dim() - 1)), new, old)
