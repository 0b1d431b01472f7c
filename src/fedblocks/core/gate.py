"""The one door that every upload passes, in every engine: what is refused, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.aggregate import Uploads
from fedblocks.core.parts import Blocks, Params


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
    checks: list[tuple[str, str, Tensor]] = []  # reason, detail, which clients pass
    for name, upload in uploads.items():
        weighty = torch.isfinite(upload.weights).all(1) & (upload.weights >= 0).all(1)
        checks.append(("bad-weight", f'weights of block "{name}" are negative or not finite', weighty))
        if upload.copies:
            checks.append(("not-finite", f'block "{name}" holds a NaN or an infinity', _finite(upload.copies)))
    for name, block in ((name, block) for name, block in private.items() if block):
        checks.append(("not-finite", f'private block "{name}" holds a NaN or an infinity', _finite(block)))
    if not checks:
        return torch.ones(len(ids), dtype=torch.bool, device=ids.device), []
    passed = torch.stack([check[2] for check in checks])  # [checks, clients]
    return passed.all(0), _refusals(checks, passed.tolist(), ids.tolist())


def _refusals(checks: list[tuple[str, str, Tensor]], passed: list[list[bool]], ids: list[int]) -> list[Refusal]:
    """The first reason for each client that was turned away."""
    found: list[Refusal] = []
    for member, client in enumerate(ids):
        failed = [row for row in range(len(checks)) if not passed[row][member]]
        if failed:
            found.append(Refusal(client, *checks[failed[0]][:2]))
    return found


def _finite(copies: Params) -> Tensor:
    """[clients]. A norm is finite only if every number is, and costs a hundredth of looking at each."""
    return torch.stack([torch.isfinite(_norms(value)) for value in copies.values()]).all(0)


def _norms(value: Tensor) -> Tensor:
    wide = value if value.is_floating_point() else value.double()
    norms: Tensor = torch.linalg.vector_norm(wide.reshape(len(wide), -1), dim=1)
    return norms
