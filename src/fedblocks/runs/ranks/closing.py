"""The end of a round on several ranks: weights are exchanged, sums added up in double precision,
and what methods conclude from single uploads is concluded by the first rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.aggregate import merge_groups, reduce_groups
from fedblocks.core.conclusions import conclude
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.reduction import reduce_slots, sum_part, where_written
from fedblocks.core.server import Cohort, own_server
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines.close_round import Admitted
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.uploads import GroupUploads, cap_uploads, describe_group

Means = dict[str, tuple[Params, Tensor]]  # server name -> means, and which slots were written


def close_together(
    ranks: Ranks, experiment: RankExperiment, state: State, admitted: Mapping[str, Admitted]
) -> State:
    """The server's state after a round, the same at every rank."""
    said = ranks.share_tree({group: describe_group(own) for group, own in admitted.items()})
    groups = {
        group: GroupUploads(
            ranks,
            method,
            admitted.get(group),
            [part.get(group) for part in said],
            experiment.data.device,
        )
        for group, method in experiment.methods.items()
        if any(group in part for part in said)
    }
    uploads = cap_uploads(groups, experiment.share)
    for group, own in uploads.items():
        for name, upload in own.items():
            if upload.own and len(upload.ids):  # everybody has the slots of all clients
                own[name] = replace(upload, copies=groups[group].copies(name, True) or {})
    means = _means(ranks, state, groups, uploads)
    reduced = reduce_groups(state, uploads, lambda old, one: means_of(means, old, one))
    return _conclude(ranks, experiment, (state, reduced), groups, uploads)


def means_of(means: Means, old: Params, upload: Upload) -> tuple[Params, Tensor]:
    """What was added up for a block; slots of one client each need no sum."""
    return reduce_slots(old, upload) if upload.own else means[upload.name]


def _means(
    ranks: Ranks, state: State, groups: Mapping[str, GroupUploads], uploads: Mapping[str, Uploads]
) -> Means:
    """The means of all blocks, with one exchange: every rank adds up its own clients' copies."""
    totals: dict[str, Tensor] = {  # server name -> [slots]
        upload.name: upload.weights.sum(0)
        for upload in merge_groups({g: _without_copies(own) for g, own in uploads.items()})
        if not upload.own and len(upload.ids)
    }
    sums: dict[str, Params] = {name: {} for name in totals}
    for group, own in uploads.items():
        for block, upload in own.items():
            if upload.name in totals:
                _add_part(sums[upload.name], groups[group], block, upload, totals[upload.name])
    slots = {(name, k): state.server[name][k] for name, own in sums.items() for k in own}
    _zero_missing(sums, slots)
    if not slots:
        return {}
    flat = torch.cat([sums[name][k].flatten() for name, k in slots])
    ranks.add_up(flat)
    pieces = torch.split(flat, [old.numel() for old in slots.values()])
    means: Means = {name: (dict(state.server[name]), total > 0) for name, total in totals.items()}
    for (name, k), piece in zip(slots, pieces, strict=True):
        old, (new, written) = state.server[name][k], means[name]
        new[k] = where_written(written, piece.view_as(old).to(old.dtype), old)
    return means


def _without_copies(uploads: Uploads) -> Uploads:
    return {name: replace(upload, copies={}) for name, upload in uploads.items()}


def _add_part(
    sums: dict[str, Any], group: GroupUploads, block: str, upload: Upload, total: Tensor
) -> None:
    """Add what this rank has of a block; nothing where it has nothing."""
    for k in group.outline(block):
        sums.setdefault(k, None)
    own = group.weighed(block, upload.weights)
    if own is not None:
        for k, value in sum_part(own, total).items():
            sums[k] = value if sums[k] is None else sums[k] + value


def _zero_missing(
    sums: Mapping[str, dict[str, Any]], slots: Mapping[tuple[str, str], Tensor]
) -> None:
    for (name, k), old in slots.items():
        if sums[name][k] is None:
            sums[name][k] = torch.zeros_like(old, dtype=torch.double)


def _conclude(
    ranks: Ranks,
    experiment: RankExperiment,
    states: tuple[State, State],
    groups: Mapping[str, GroupUploads],
    uploads: dict[str, Uploads],
) -> State:
    """What methods conclude: at the first rank, which tells the others what has changed."""
    before, reduced = states
    methods = experiment.methods
    cohorts = {
        group: experiment.cohort(own.ids.tolist(), before.round) for group, own in groups.items()
    }
    for group, own in groups.items():
        for name in _looked_at(methods[group], before.server, cohorts[group]):
            upload = uploads[group].get(name)
            if upload is not None and not upload.copies:
                copies = _copies(own, name)
                uploads[group][name] = replace(upload, copies=copies)
    if all(type(methods[group]).conclude is Method.conclude for group in groups):
        return reduced
    work = lambda: conclude(methods, before, reduced, uploads, cohorts)
    return _from_first(ranks, reduced, work)


def _looked_at(method: Method, server: Blocks, cohort: Cohort) -> list[str]:
    return sorted(method.single_uploads(own_server(method.blocks(), server), cohort))


def _copies(group: GroupUploads, name: str) -> Params:
    if sum(group.counts):
        return group.copies(name, everywhere=False) or {}
    return {  # everybody was refused
        k: torch.zeros(0, *shape, dtype=getattr(torch, dtype), device=group.device)
        for k, (dtype, shape) in group.outline(name).items()
    }


def _from_first(ranks: Ranks, reduced: State, work: Any) -> State:
    """The server's blocks as the first rank makes them of the reduced ones."""
    ends: list[State] = []

    def at_first() -> Any:
        ends.append(work())
        return {
            name: {k: [str(v.dtype).removeprefix("torch."), list(v.shape)] for k, v in new.items()}
            for name, new in ends[0].server.items()
            if new is not reduced.server.get(name)
        }

    changed = ranks.lead(at_first, lambda message: None)
    server = dict(reduced.server)
    device = next(v.device for block in server.values() for v in block.values())
    for name, outline in changed.items():
        values = ends[0].server[name] if ends else None
        server[name] = {
            k: values[k].contiguous()
            if values is not None
            else torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            for k, (dtype, shape) in outline.items()
        }
        for value in server[name].values():
            if value.numel():
                ranks.broadcast(value)
    return replace(reduced, server=server)
