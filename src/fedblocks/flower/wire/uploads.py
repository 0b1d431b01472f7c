"""A client's upload: from trained blocks to arrays, and from several clients' uploads
to those of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.blocks import Federated, Pool
from fedblocks.core.method import Method
from fedblocks.core.parts import Params, is_statistic
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines.job import Trained
from fedblocks.flower.wire.messages import BLOCKS, WEIGHTS, Arrays, array_name, as_array


def slots_side_by_side(block: Federated, copies: int) -> bool:
    """Whether each slot that is written has a copy of its own; `copies` is how many
    were sent side by side.
    """
    return isinstance(block, Pool) and block.of is None and (block.on_request or copies > 0)


def copies_to_send(
    block: Federated, row: Tensor, is_decided: bool, copies: int, wanted: Tensor | None
) -> Tensor:
    """Return which copies are sent: [copies] where slots lie side by side, else a
    single yes or no, [].
    """
    if not slots_side_by_side(block, copies):
        return (row != 0).any()
    if is_decided:
        return row != 0  # [slots]
    if wanted is not None:
        return (wanted != 0) & (row != 0)  # [slots]
    return (row[0] != 0).expand(copies)


def upload_arrays(
    method: Method, trained: Trained, copies: Mapping[str, int], size: float
) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays of a client's upload, and the blocks whose weights the method decided."""
    arrays: Arrays = {}
    for name, block in ((n, b) for n, b in method.blocks().items() if isinstance(b, Federated)):
        decided, wanted = trained.weights.get(name), trained.wanted.get(name)
        row = torch.full((block.size,), size, dtype=torch.double)
        row = row if decided is None else decided[0].double().view(-1).cpu()
        slots = None if wanted is None else wanted[0].cpu()
        which = copies_to_send(block, row, decided is not None, copies.get(name, 0), slots)
        for key, value in trained.blocks[block.of or name].items():
            if bool(which.any()) and not (method.statistics == "local" and is_statistic(key)):
                one = value[0].cpu()
                arrays[array_name(BLOCKS, name, key)] = as_array(one[which] if which.dim() else one)
        arrays[array_name(WEIGHTS, name)] = as_array(row)
    return arrays, tuple(name for name in method.blocks() if name in trained.weights)


def fill_copies(sent: Params, some: Params, which: Tensor) -> Params:
    """Return all copies of a block: those that came, and what was sent for the others,
    which have no weight.
    """
    if which.dim() == 0 or bool(which.all()):
        return some or sent
    where = which.nonzero().flatten()
    return {k: v.index_copy(0, where, some[k]) if some else v for k, v in sent.items()}


def join_uploads(of_clients: list[Uploads]) -> Uploads:
    """Join the uploads of several clients to those of a group."""
    return {name: _join([uploads[name] for uploads in of_clients]) for name in of_clients[0]}


def _join(uploads: list[Upload]) -> Upload:
    copies = {k: torch.cat([u.copies[k] for u in uploads]) for k in uploads[0].copies}
    ids = torch.cat([u.ids for u in uploads])
    weights = torch.cat([u.weights for u in uploads])
    return replace(uploads[0], ids=ids, copies=copies, weights=weights)
