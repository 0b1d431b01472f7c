"""What clients of all ranks send, as every rank knows it: who, with what weight, of what shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.admission import cap_groups
from fedblocks.core.blocks import Federated, PerClient, server_name
from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines.close_round import Admitted
from fedblocks.runs.ranks.ranks import Ranks

Outline = Mapping[str, Any]  # tensor -> its dtype, and the shape of one client's copy


def describe_group(own: Admitted) -> dict[str, Any]:
    """What the others have to know of a rank's uploads: all but the copies."""
    blocks = {
        name: {
            "weights": upload.weights,
            "per_slot": upload.per_slot,
            "outline": {
                k: [str(v.dtype).removeprefix("torch."), list(v.shape[1:])]
                for k, v in upload.copies.items()
            },
        }
        for name, upload in own.uploads.items()
    }
    return {"ids": own.cohort.ids, "blocks": blocks}


@dataclass(frozen=True, eq=False)
class GroupUploads:
    """The uploads of one group of clients on all ranks; the copies stay where they are."""

    ranks: Ranks
    method: Method
    own: Admitted | None  # what this rank has of it
    parts: Sequence[Mapping[str, Any] | None]  # what each rank said of its own
    device: torch.device

    @cached_property
    def counts(self) -> list[int]:
        """Clients of each rank."""
        return [0 if part is None else len(part["ids"]) for part in self.parts]

    @cached_property
    def _joined(self) -> Tensor:
        own = [part["ids"] for part in self.parts if part is not None]
        return torch.cat(own).to(self.device)

    @cached_property
    def order(self) -> Tensor:
        """Rank after rank -> in the order of their numbers."""
        return self._joined.argsort()

    @cached_property
    def ids(self) -> Tensor:
        return self._joined[self.order]

    @cached_property
    def uploads(self) -> Uploads:
        """Numbers and weights of all clients, without copies."""
        layout = self.method.blocks().items()
        blocks = {name: block for name, block in layout if isinstance(block, Federated)}
        return {name: self._upload(name, block) for name, block in blocks.items()}

    def _said(self, name: str) -> list[Any]:
        return [part["blocks"][name] for part in self.parts if part is not None]

    def _upload(self, name: str, block: Federated) -> Upload:
        weights = torch.cat([said["weights"] for said in self._said(name)]).to(self.device)
        return Upload(
            server_name(name, block),
            self.ids,
            {},
            weights[self.order],
            self._said(name)[0]["per_slot"],
            block.rule,
            isinstance(block, PerClient),
        )

    def outline(self, name: str) -> Outline:
        """The copies of a block, as a rank that has some describes them."""
        outline: Outline = self._said(name)[0]["outline"]
        return outline

    def copies(self, name: str, everywhere: bool) -> Params | None:
        """The copies of a block by all clients, brought together at the first rank, or everywhere;
        nothing at the others.
        """
        outline = self.outline(name)
        width = sum(_bytes_of(*one) for one in outline.values())
        rows = torch.zeros(0, width, dtype=torch.uint8, device=self.device)
        if self.own is not None and len(self.own.cohort):
            own = self.own.uploads[name].copies
            rows = torch.cat([_as_bytes(own[k]) for k in outline], 1)
        joined = self.ranks.join_rows(rows, self.counts, everywhere)
        if joined is None:
            return None
        pieces = torch.split(joined[self.order], [_bytes_of(*one) for one in outline.values()], 1)
        return {
            k: piece.contiguous().view(getattr(torch, dtype)).view(-1, *shape)
            for (k, (dtype, shape)), piece in zip(outline.items(), pieces, strict=True)
        }

    def weighed(self, name: str, weights: Tensor) -> Upload | None:
        """This rank's own upload of a block, with the weights that all clients have in the end."""
        if self.own is None or not len(self.own.cohort):
            return None
        start = sum(self.counts[: self.ranks.number])
        places = self.order.argsort()[start : start + self.counts[self.ranks.number]]
        return replace(self.own.uploads[name], weights=weights[places])


def cap_uploads(groups: Mapping[str, GroupUploads], share: float) -> dict[str, Uploads]:
    """The uploads of all groups, cut so that no client decides more than a share of any slot."""
    return cap_groups({group: own.uploads for group, own in groups.items()}, share)


def _bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return prod(shape) * int(getattr(torch, dtype).itemsize)


def _as_bytes(copies: Tensor) -> Tensor:
    """[clients, ...] -> [clients, bytes]."""
    return copies.reshape(len(copies), -1).contiguous().view(torch.uint8)
