"""The blocks in the server's messages, read by the plan that this client has itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fedblocks.core.blocks import Pool
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.flower.wire.messages import (
    DownloadHeader,
    Malformed,
    MoreHeader,
    Wire,
    blocks_from,
    blocks_schema,
    tensors_of,
)
from fedblocks.flower.wire.plans import Specs, several


def pools_on_request(method: Method) -> dict[str, Pool]:
    """Return the pools whose slots a client is sent when it asks for them."""
    return {
        name: block
        for name, block in method.blocks().items()
        if isinstance(block, Pool) and block.on_request
    }


@dataclass(frozen=True, eq=False)
class Receiver:
    """What one client needs to read blocks."""

    specs: Mapping[str, Specs]  # block -> tensors of one copy
    device: torch.device

    def read_download(self, header: DownloadHeader, message: Wire) -> Blocks:
        """Return the blocks of the first message of a round."""
        if unknown := header.copies.keys() - self.specs.keys():
            raise Malformed("names", f'the method has no block "{min(unknown)}"')
        return self._read(message, header.copies)

    def read_slots(self, header: MoreHeader, message: Wire, pools: Mapping[str, Pool]) -> Blocks:
        """Return the pools of the second message of a round, zero in the slots that did not
        come.
        """
        if header.slots.keys() != pools.keys():
            raise Malformed("names", "the slots are not those of the pools on request")
        some = self._read(message, {n: len(header.slots[n]) for n in pools if header.slots[n]})
        return {
            name: self._whole_pool(name, pool.size, header.slots[name], some.get(name, {}))
            for name, pool in pools.items()
        }

    def _read(self, message: Wire, copies: Mapping[str, int]) -> Blocks:
        layout = {name: several(self.specs[name], number) for name, number in copies.items()}
        return blocks_from(tensors_of(message.arrays, blocks_schema(layout), self.device), layout)

    def _whole_pool(self, name: str, size: int, slots: Sequence[int], some: Params) -> Params:
        """Return all slots of a pool: those that came, and zero for the others."""
        if any(not 0 <= slot < size for slot in slots):
            raise Malformed("shape", f'pool "{name}" has {size} slots')
        empty = {
            key: torch.zeros((size, *shape), dtype=dtype, device=self.device)
            for key, (dtype, shape) in self.specs[name].items()
        }
        where = torch.tensor(slots, dtype=torch.long, device=self.device)
        return {k: v.index_copy(0, where, some[k]) if some else v for k, v in empty.items()}
