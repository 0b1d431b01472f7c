"""The one door that every upload passes, in every engine: what is refused, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.aggregate import Upload, Uploads
from fedblocks.core.parts import Blocks


@dataclass(frozen=True)
class Refusal:
    """One client whose update was not used."""

    client: int
    reason: str  # "not-finite", "bad-weight"
    detail: str


def admit(uploads: Uploads, private: Blocks, ids: Tensor) -> tuple[Tensor, list[Refusal]]:
    """Which clients' updates are used, [clients], and the reasons for the others.

    A client with one bad tensor counts as absent in the whole round: nothing of it is averaged or kept.
    """
    good = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    refusals: list[Refusal] = []
    for name, upload in uploads.items():
        weighty = torch.isfinite(upload.weights).all(1) & (upload.weights >= 0).all(1)
        told = f'weights of block "{name}" are negative or not finite'
        good = _refuse(good, weighty, ids, refusals, "bad-weight", told)
        finite = _finite(upload)
        good = _refuse(good, finite, ids, refusals, "not-finite", f'block "{name}" holds a NaN or an infinity')
    for name, block in private.items():
        finite = torch.stack([torch.isfinite(_norms(v)) for v in block.values()]).all(0)
        good = _refuse(good, finite, ids, refusals, "not-finite", f'private block "{name}" holds a NaN or an infinity')
    return good, refusals


def _finite(upload: Upload) -> Tensor:
    """[clients]. A norm is finite only if every number is, and costs a hundredth of looking at each."""
    checks = [torch.isfinite(_norms(value)) for value in upload.copies.values()]
    return torch.stack(checks).all(0)


def _norms(value: Tensor) -> Tensor:
    wide = value if value.is_floating_point() else value.double()
    norms: Tensor = torch.linalg.vector_norm(wide.reshape(len(wide), -1), dim=1)
    return norms


def _refuse(good: Tensor, passed: Tensor, ids: Tensor, refusals: list[Refusal], reason: str, detail: str) -> Tensor:
    for client in ids[good & ~passed].tolist():
        refusals.append(Refusal(client, reason, detail))
    return good & passed
