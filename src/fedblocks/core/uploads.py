"""What clients send at the end of a round, with what weight, and what stays with them."""

from __future__ import annotations

from collections.abc import Mapping
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
    Shared,
    server_name,
)
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER, Blocks, Params, is_statistic
from fedblocks.core.rules import Rule
from fedblocks.core.server import Cohort
from fedblocks.core.state import count_bytes, statistics_name
from fedblocks.core.trees import take

WEIGHT_BYTES = 8  # a weight travels as one double


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
        rows = self.weights.numel() if self.per_slot else len(self.weights)
        one = count_bytes(self.copies, rows=rows)
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
        where, own = server_name(name, block), isinstance(block, PerClient)
        uploads[name] = Upload(where, cohort.ids, copies, row, side_by_side, block.rule, own)
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
    size = cohort.sizes[:, None]
    if asked is not None:
        return asked.double().view(len(cohort), -1)
    if isinstance(block, PerClient):
        return (size > 0).double()  # a client without data has nothing to say of itself
    if wanted is not None:
        return size * (wanted != 0)
    if isinstance(read, Mixture):
        return size * read.weights
    if isinstance(read, Selection):
        nowhere = size.new_zeros(len(cohort), block.size)
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
        elif method.statistics == "local" and isinstance(block, Shared | Pool):
            held = name if name in blocks else block.of or name  # or what it is made of
            own = {k: v for k, v in blocks[held].items() if is_statistic(k)}
            if own:
                private[statistics_name(name)] = own
    return private
