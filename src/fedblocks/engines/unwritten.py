"""What a method's functions are given is not theirs to change: blocks that all clients are sent, or
that a client keeps, are the same tensors in one engine and copies in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedblocks.core.errors import UserError
from fedblocks.core.parts import Blocks, is_statistic


@contextmanager
def nothing_written(where: str, server: Blocks, *others: Blocks) -> Iterator[None]:
    """Refuse a function that writes into the server's slots, which all clients are sent, or into
    other blocks that it is given.
    """
    slots = {id(value) for block in server.values() for value in block.values()}
    versions = [
        (name, key, value, value._version)
        for blocks in (server, *others)
        for name, block in blocks.items()
        for key, value in block.items()
    ]
    yield
    for name, key, value, version in versions:
        if value._version != version:
            whose = "all read" if id(value) in slots else "it is only given to read"
            message = f'{where} writes into "{key}" of block "{name}", which {whose}'
            raise UserError(message, "make new tensors: v + 1, not v += 1 or v.add_(1)")


def without_statistics(blocks: Blocks) -> Blocks:
    """The tensors that a forward pass leaves alone."""
    return {n: {k: v for k, v in b.items() if not is_statistic(k)} for n, b in blocks.items()}
