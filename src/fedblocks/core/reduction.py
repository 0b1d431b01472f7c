"""The one weighted reduction that makes every aggregation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedblocks.core.parts import Params
from fedblocks.core.uploads import Upload

_PIECE = 1 << 16  # numbers that are made doubles at a time on a CPU: they stay in its cache


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
    on_gpu = all(v.is_cuda and v.dtype == torch.float32 for v in upload.copies.values())
    if on_gpu and not upload.per_slot:
        return _reduce_at_once(old, upload.copies, share, written), written
    mean = {k: _weighted_sum(share, v, upload.per_slot, v.dtype) for k, v in upload.copies.items()}
    new = {k: where_written(written, mean[k], v) for k, v in old.items() if k in mean}
    return {**old, **new}, written


def sum_part(upload: Upload, total: Tensor) -> Params:
    """The part of some clients in the means of all: sum_c w[c, s] copy[c] / total[s], in double
    precision; `total` [slots] is the weight of everybody.
    """
    share = upload.weights / torch.where(total > 0, total, 1)
    return {
        k: _weighted_sum(share, v, upload.per_slot, torch.double) for k, v in upload.copies.items()
    }


def _reduce_at_once(old: Params, copies: Params, share: Tensor, written: Tensor) -> Params:
    """The same with all tensors side by side: on a GPU the launches cost more than the sums."""
    names = [name for name in old if name in copies]
    # [clients, numbers]
    whole = torch.cat([copies[name].reshape(len(share), -1) for name in names], 1)
    # [slots, numbers]
    before = torch.cat([old[name].reshape(len(written), -1) for name in names], 1)
    after = torch.where(written[:, None], (share.T @ whole.double()).to(whole.dtype), before)
    pieces = torch.split(after, [old[name][0].numel() for name in names], 1)
    new = {name: piece.view_as(old[name]) for name, piece in zip(names, pieces, strict=True)}
    return {**old, **new}


def _reduce_by_lane(old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """The same for several federations at once: a lane's means hold no number of another's,
    not even times zero.
    """
    weights = _by_lane(upload.weights, upload.lanes)  # [lanes, clients, slots]
    total = weights.sum(1)  # [lanes, slots]
    share = weights / torch.where(total > 0, total, 1)[:, None]
    written = (total > 0).flatten()
    spec, inner = ("lcs,lcsn->lsn", 2) if upload.per_slot else ("lcs,lcn->lsn", 1)
    new = dict(old)
    for dtype in dict.fromkeys(v.dtype for v in upload.copies.values()):
        copies = {k: v for k, v in upload.copies.items() if k in old and v.dtype == dtype}
        names = [name for name in old if name in copies]
        flat = [copies[name].reshape(*copies[name].shape[:inner], -1) for name in names]
        whole = _by_lane(torch.cat(flat, -1), upload.lanes)  # [lanes, clients, (slots,) numbers]
        # [slots of all lanes, numbers]
        mean = torch.einsum(spec, share, whole.double()).to(dtype).flatten(0, 1)
        pieces = torch.split(mean, [v.shape[-1] for v in flat], 1)
        for name, piece in zip(names, pieces, strict=True):
            new[name] = where_written(written, piece.view_as(old[name]), old[name])
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


def _weighted_sum(share: Tensor, copies: Tensor, per_slot: bool, dtype: torch.dtype) -> Tensor:
    """sum_c share[c, s] copy[c]: [slots, ...], added up in double precision."""
    spec, inner = ("cs,cs...->s...", 2) if per_slot else ("cs,c...->s...", 1)
    if copies.is_cuda or copies.numel() <= _PIECE or copies.dim() == inner:
        return torch.einsum(spec, share, copies.double()).to(dtype)
    flat = copies.flatten(inner)  # [clients, (slots,) numbers]
    width = max(1, _PIECE * flat.shape[-1] // flat.numel())
    # one for all pieces: it stays in the cache
    doubles = flat.new_empty((*flat.shape[:-1], width), dtype=torch.double)
    sums = flat.new_empty(share.shape[1], flat.shape[-1], dtype=dtype)
    for piece, into in zip(torch.split(flat, width, -1), torch.split(sums, width, -1), strict=True):
        values = doubles[..., : piece.shape[-1]].copy_(piece)
        into.copy_(torch.einsum(spec, share, values) if per_slot else share.t() @ values)
    return sums.view(-1, *copies.shape[inner:])


def _own_slots(old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """The same reduction where client c alone writes slot c: no [clients, slots] matrix
    in large federations.
    """
    ids = upload.ids
    writers = upload.weights[:, 0] > 0  # [clients]
    count = len(next(iter(old.values())))
    written = torch.zeros(count, dtype=torch.bool, device=ids.device).index_copy(0, ids, writers)
    new = {
        k: v.index_copy(0, ids, where_written(writers, upload.copies[k], v[ids]))
        for k, v in old.items()
    }
    return new, written


def where_written(written: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(written.view(-1, *[1] * (new.dim() - 1)), new, old)
