"""What a method's functions return in a round is of the names, shapes and types that engines count
on. Looked at once, before the first round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Federated, Generated, Mixture, Read, Selection
from fedblocks.core.errors import UserError, a_kind, nearest
from fedblocks.core.hooks import refuse_kind
from fedblocks.core.parts import Blocks, Params

_BLOCKS = "return the blocks that it was given, some with new tensors: {**blocks, ...}"
_WEIGHTS = "return tensors, one weight for each slot: {name: client.size * share}, share [slots]"
_READS = "return fb.Selection, fb.Mixture or fb.Generated for blocks that the server has"


def check_tree(where: str, blocks: Any, fix: str = _BLOCKS) -> None:
    """Refuse what is no dictionary of blocks, each a dictionary of tensors."""
    if not isinstance(blocks, Mapping):
        refuse_kind(where, blocks, "a dictionary of blocks", fix)
    for name, block in blocks.items():
        if not isinstance(block, Mapping):
            refuse_kind(where, block, f'a dictionary of tensors as block "{name}"', fix)
        for key, value in block.items():
            if not isinstance(value, Tensor):
                refuse_kind(where, value, f'a tensor as "{key}" of block "{name}"', fix)


def check_all_blocks(where: str, blocks: Blocks, needed: Collection[str]) -> None:
    """Refuse blocks among which some are missing that somebody keeps."""
    for name in needed:
        if name not in blocks:
            raise UserError(f'{where} leaves out block "{name}", which is kept or sent', _BLOCKS)


def check_no_more_blocks(where: str, blocks: Blocks, known: Collection[str]) -> None:
    """Refuse blocks that nobody keeps."""
    for name in blocks:
        if name not in known:
            message = f'{where} returns block "{name}", which the method does not have'
            raise UserError(message, f"give it a home in `blocks`; there are {', '.join(known)}")


def check_like(where: str, name: str, block: Params, wanted: Params) -> None:
    """Refuse tensors that are not as those whose place they take."""
    what = f'{where} returns block "{name}"'
    for key in wanted.keys() ^ block.keys():
        odd = f'without "{key}"' if key in wanted else f'with "{key}", which it does not have'
        raise UserError(f"{what} {odd}", f"return its tensors: {', '.join(wanted)}")
    for key, value in block.items():
        meant = wanted[key]
        sides = {
            "shape": (list(value.shape), list(meant.shape)),
            "type": (_plain(value.dtype), _plain(meant.dtype)),
            "device": (str(value.device), str(meant.device)),
        }
        for kind, (is_now, must_be) in sides.items():
            if is_now != must_be:
                message = f'{what} with a "{key}" of {kind} {is_now}, not {must_be}'
                raise UserError(message, f"return tensors of the {kind} that they had")


def check_weights(where: str, weights: Any, layout: Mapping[str, Block]) -> None:
    """Refuse weights of blocks that are not written, or not one for each slot."""
    if not isinstance(weights, Mapping):
        refuse_kind(where, weights, "a dictionary of weights", _WEIGHTS)
    for name, value in weights.items():
        block = layout.get(name)
        if not isinstance(block, Federated):
            federated = [n for n, b in layout.items() if isinstance(b, Federated)]
            why = "is not sent" if block is not None else "is not there"
            raise UserError(f'{where} names "{name}", which {why}', nearest(str(name), federated))
        if not isinstance(value, Tensor):
            refuse_kind(where, value, f'a tensor as the weights of "{name}"', _WEIGHTS)
        if value.numel() != block.size:
            message = f'{where} returns weights {list(value.shape)} for "{name}"'
            raise UserError(f"{message}, which has {block.size} slots", _WEIGHTS)


def check_modest(where: str, weights: Mapping[str, Tensor], most: float) -> None:
    """Refuse weights that the server would not take: below 0, or above the labels of the client."""
    for name, value in weights.items():
        low, high = float(value.min()), float(value.max())
        if low < 0 or high > most:
            message = f'{where} asks for a weight of {low if low < 0 else high:g} for "{name}"'
            allowed = f"and a client with {most:g} labels may have 0 to {most:g}"
            raise UserError(f"{message}, {allowed}", _WEIGHTS)


def check_reads(
    where: str, reads: Any, layout: Mapping[str, Block], slots: Blocks, clients: int
) -> None:
    """Refuse what cannot be sent."""
    if not isinstance(reads, Mapping):
        refuse_kind(where, reads, "a dictionary", _READS)
    for name, read in reads.items():
        block = layout.get(name)
        if not isinstance(block, Federated):
            known = [n for n, b in layout.items() if isinstance(b, Federated)]
            raise UserError(f'{where} names "{name}", which is not sent', nearest(str(name), known))
        if not isinstance(read, Read):
            refuse_kind(where, read, f'something to send of "{name}"', _READS)
        _check_read(f'{where}: block "{name}"', read, slots[name], clients)


def _check_read(where: str, read: Read, slots: Params, clients: int) -> None:
    count = len(next(iter(slots.values()), ()))
    match read:
        case Selection(slots=chosen):
            if len(chosen) != clients or chosen.is_floating_point():
                message = f"{where} is sent by slots {list(chosen.shape)} of {_plain(chosen.dtype)}"
                raise UserError(message, f"give whole numbers, a row for each of {clients} clients")
            outside = chosen[(chosen < 0) | (chosen >= count)]
            if outside.numel():
                raise UserError(f"{where} has no slot {int(outside[0])}", f"there are {count}")
        case Mixture(weights=weights):
            if list(weights.shape) != [clients, count]:
                message = f"{where} is mixed by weights {list(weights.shape)}"
                raise UserError(message, f"give [clients, slots], here {[clients, count]}")
        case Generated(values=values):
            rows = {key: len(value) for key, value in values.items() if len(value) != clients}
            for key, row in rows.items():
                message = f'{where} is sent {row} rows of "{key}" to {clients} clients'
                raise UserError(message, "give a row for each client")


def check_outputs(where: str, outputs: Any, wanted: list[int]) -> None:
    """Refuse what are no logits of some examples."""
    fix = f"return logits, here {wanted}, as self.net(...) does"
    if not isinstance(outputs, Tensor):
        refuse_kind(where, outputs, "a tensor of logits", fix)
    if list(outputs.shape) != wanted or not outputs.is_floating_point():
        refuse_kind(where, outputs, f"logits {wanted} of {wanted[0]} examples", fix)


def check_numbers(where: str, numbers: Any) -> None:
    """Refuse a portrait that is no dictionary of tensors."""
    fix = "return tensors by name"
    if not isinstance(numbers, Mapping):
        refuse_kind(where, numbers, "a dictionary of tensors", fix)
    for name, value in numbers.items():
        if not isinstance(value, Tensor):
            what = a_kind(value)
            raise UserError(f'{where} returns {what} as "{name}", not a tensor', fix)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
