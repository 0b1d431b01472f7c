"""Groups of clients whose adapters are averaged together: these mean the same only over one base
and in one scale, which their shapes do not show.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedblocks.core.blocks import NOT_ON_THE_SERVER, Block, server_name
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.net import Net

FACTORS = ("lora_A", "lora_B")


def check_common_adapters(methods: Mapping[str, Method]) -> None:
    """Refuse groups that have factors in common on the server, and differ in base or scale."""
    known: dict[str, tuple[str, Net]] = {}  # a block of the server -> its first group, and that net
    for group, method in methods.items():
        for name, block in method.blocks().items():
            net = _net_with_factors(block)
            if net is not None:
                key = server_name(name, block)
                _check_alike(key, known.setdefault(key, (group, net)), (group, net))


def _net_with_factors(block: Block) -> Net | None:
    """The net whose adapters, or products of them, a block on the server holds."""
    net = getattr(block.part, "net", None)
    is_elsewhere = isinstance(block, NOT_ON_THE_SERVER)
    if is_elsewhere or not isinstance(net, Net) or not net.adapters_are:
        return None
    names = getattr(block.part, "names", FACTORS)
    return net if any(name.rpartition(".")[2] in FACTORS for name in names) else None


def _check_alike(key: str, one: tuple[str, Net], other: tuple[str, Net]) -> None:
    (first, mine), (second, theirs) = one, other
    common = f'groups "{first}" and "{second}" have block "{key}" in common'
    if mine.adapters_are != theirs.adapters_are:
        raise UserError(
            f"{common}, and their adapters have {mine.adapters_are} and {theirs.adapters_are}",
            "give both nets the same rank and alpha",
        )
    if mine.base_hash != theirs.base_hash:
        hashes = f"hash {mine.base_hash[:12]} and {theirs.base_hash[:12]}"
        raise UserError(
            f"{common}, and their adapters stand over different bases ({hashes})",
            "give both nets the same base, or run the groups apart",
        )
