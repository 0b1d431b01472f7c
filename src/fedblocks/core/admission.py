"""The one door that every upload passes, in every engine: what is refused, and why.

Cheapest first: names, dtypes and shapes against the server's slots; weights against what clients
may ask for; norms, which are finite only if every number is. A message from a network is checked
for envelope and size before it becomes an upload (`fedblocks.flower.wire.admission`); everything
else stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedblocks.core.parts import Blocks, Params
from fedblocks.core.uploads import Upload, Uploads

_NOT_FINITE = "holds a NaN, an infinity or numbers too large to be squared"


@dataclass(frozen=True)
class Refusal:
    """One client whose update was not used."""

    client: int
    # "names", "dtype", "shape", "bad-weight", "not-finite"; more of them where messages travel
    reason: str
    detail: str


@dataclass(frozen=True, eq=False)
class UploadCheck:
    """One thing that was looked at."""

    reason: str
    detail: str
    passed: Tensor  # [clients]


@dataclass(frozen=True, eq=False)
class Examination:
    """Everything that was looked at in some clients' uploads; a GPU may still be busy with it."""

    checks: list[UploadCheck]
    ids: Tensor  # [clients]
    passed: Tensor  # [checks, clients]
    whole: Examination | None = None  # that this is a part of: asked first, once for all parts

    @staticmethod
    def of(checks: list[UploadCheck], ids: Tensor) -> Examination:
        if not checks:
            everybody = torch.ones(1, len(ids), dtype=torch.bool, device=ids.device)
            return Examination(checks, ids, everybody)
        return Examination(checks, ids, torch.stack([check.passed for check in checks]))

    def is_clean(self) -> bool:
        """Whether everybody passed everything; waits for the device."""
        return (self.whole is not None and self.whole._all_passed) or self._all_passed

    @cached_property
    def _all_passed(self) -> bool:
        return bool(self.passed.all())

    def judge(self) -> tuple[Tensor, list[Refusal]]:
        """Who passed everything, [clients], and the first reason for each of the
        others; a GPU is asked once.
        """
        admitted = self.passed.all(0)
        if admitted.all():
            return admitted, []
        refusals: list[Refusal] = []
        for client, column in zip(self.ids.tolist(), self.passed.T.tolist(), strict=True):
            if not all(column):
                first = self.checks[column.index(False)]
                refusals.append(Refusal(client, first.reason, first.detail))
        return admitted, refusals


def admit(
    uploads: Uploads,
    private: Blocks,
    ids: Tensor,
    limits: Tensor | None = None,
    slots: Mapping[str, Params] | None = None,
) -> tuple[Tensor, list[Refusal]]:
    """Which clients' updates are used, [clients], and the reasons for the others.

    `limits` [clients] are the largest weights that they may ask for, `slots` the blocks that they
    write. A client with one bad tensor counts as absent in the whole round: nothing of it is
    averaged or kept.
    """
    return examine(uploads, private, ids, limits, slots).judge()


def examine(
    uploads: Uploads,
    private: Blocks,
    ids: Tensor,
    limits: Tensor | None = None,
    slots: Mapping[str, Params] | None = None,
) -> Examination:
    """Look at what `admit` judges by; on a GPU this is queued, and nobody waits."""
    checks: list[UploadCheck] = []
    for name, upload in uploads.items():
        wrong = None if slots is None else misfit(name, upload, slots[upload.name])
        if wrong is not None:
            checks.append(UploadCheck(*wrong, torch.zeros_like(ids, dtype=torch.bool)))
            continue
        checks += weight_checks(name, upload.weights, limits)
        if upload.copies:
            checks.append(finite_check(f'block "{name}"', upload.copies))
    checks += [finite_check(f'private block "{name}"', own) for name, own in private.items() if own]
    return Examination.of(checks, ids)


def fitting(uploads: Uploads, slots: Mapping[str, Params]) -> bool:
    """Whether all copies are as the slots that they are to replace."""
    return all(misfit(name, upload, slots[upload.name]) is None for name, upload in uploads.items())


def misfit(name: str, upload: Upload, slots: Params) -> tuple[str, str] | None:
    """Reason and detail if copies are not as the slots that they are to replace;
    nothing is computed.
    """
    inner = 2 if upload.per_slot else 1  # dimensions before those of one slot
    if unknown := sorted(upload.copies.keys() - slots.keys()):
        return "names", f'block "{name}" has no tensor "{unknown[0][:80]}"'
    weights = upload.weights.shape[1:]
    if not upload.own and weights != (len(next(iter(slots.values()))),):
        return "shape", f'block "{name}" has other slots than {list(weights)} weights'
    for key, copy in upload.copies.items():
        if copy.dtype != slots[key].dtype:
            return "dtype", f'"{key}" of block "{name}" is {copy.dtype}, not {slots[key].dtype}'
        if copy.shape[inner:] != slots[key].shape[1:] or len(copy) != len(upload.ids):
            actual, wanted = list(copy.shape[inner:]), list(slots[key].shape[1:])
            return "shape", f'"{key}" of block "{name}" has shape {actual}, not {wanted}'
    return None


def finite_check(what: str, copies: Params) -> UploadCheck:
    """Every number of these copies, [clients, ...], is finite."""
    return UploadCheck("not-finite", f"{what} {_NOT_FINITE}", _are_finite(copies))


def weight_checks(name: str, weights: Tensor, limits: Tensor | None) -> list[UploadCheck]:
    """Weights [clients, slots] are finite, not negative, and not above what each client
    may ask for.
    """
    sound = torch.isfinite(weights).all(1) & (weights >= 0).all(1)
    checks = [
        UploadCheck("bad-weight", f'weights of block "{name}" are negative or not finite', sound)
    ]
    if limits is not None:
        modest = (weights <= limits[:, None]).all(1)
        detail = f'block "{name}" asks for more weight than the client has labels'
        checks.append(UploadCheck("bad-weight", detail, modest))
    return checks


def cap_groups(groups: Mapping[str, Uploads], share: float) -> dict[str, Uploads]:
    """Cut weights so that no client decides more than a share of any slot; a share of 1 changes
    nothing.

    Groups that write the same slots are taken together: the share is one of what all of them write.
    """
    places: dict[str, list[tuple[str, str]]] = {}  # server name -> group and block
    for group, uploads in groups.items():
        for block, upload in uploads.items():
            places.setdefault(upload.name, []).append((group, block))
    result = {group: dict(uploads) for group, uploads in groups.items()}
    for where in places.values() if share < 1 else ():
        together = [groups[group][block] for group, block in where]
        if together[0].own:
            continue
        # [clients, slots]
        weights = cap_weights(torch.cat([upload.weights for upload in together]), share)
        parts = torch.split(weights, [len(upload.ids) for upload in together])
        for (group, block), upload, part in zip(where, together, parts, strict=True):
            result[group][block] = replace(upload, weights=part)
    return result


def cap_weights(weights: Tensor, share: float) -> Tensor:
    """Cut the largest of the weights, [clients, slots], to a level at which they are the share that
    is allowed.

    Where fewer than 1 / share clients write a slot no level will do, and all that write it count
    the same.
    """
    ranked = weights.sort(0, descending=True).values  # [clients, slots]
    rest = weights.sum(0) - ranked.cumsum(0)  # [k, slots]: without the k + 1 largest
    cut = torch.arange(1, len(weights) + 1, dtype=weights.dtype, device=weights.device)[:, None]
    # k x level = share x (k x level + rest)
    level = share * rest / (1 - cut * share).clamp(min=1e-12)
    after = torch.cat([ranked[1:], torch.zeros_like(ranked[:1])])
    right = (cut * share < 1) & (rest > 0) & (after <= level)
    least = torch.where(weights > 0, weights, torch.inf).amin(0)
    top = torch.where(right.any(0), level.gather(0, right.int().argmax(0)[None])[0], least)
    return torch.where(ranked[0] <= share * weights.sum(0), weights, torch.minimum(weights, top))


def _are_finite(copies: Params) -> Tensor:
    """[clients]: whether a client's numbers have a finite norm, which costs a hundredth of looking
    at each of them.

    A NaN or an infinity makes the norm one, too, and so do numbers whose squares overflow when they
    are added up: in float32 a norm from 1.8e19 on.
    """
    if all(value.is_cuda and value.dtype == torch.float32 for value in copies.values()):
        flat = [value.reshape(len(value), -1) for value in copies.values()]
        return torch.isfinite(_norms(torch.cat(flat, 1)))  # one launch for all of them
    by_tensor = torch.stack([_norms(value) for value in copies.values()], 1)  # [clients, tensors]
    return torch.isfinite(_norms(by_tensor))


def _norms(value: Tensor) -> Tensor:
    wide = value if value.is_floating_point() else value.double()
    norms: Tensor = torch.linalg.vector_norm(wide.reshape(len(wide), -1), dim=1)
    return norms
