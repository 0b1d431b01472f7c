"""What a run says of the head of a net, for methods that cut there."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from fedblocks.core.net import Net
from fedblocks.core.order_of_use import last_in_pass
from fedblocks.runs.storage.record import Note


def head_notes(nets: Iterable[Net], x: Tensor) -> list[Note]:
    """Which layers the head is, and a warning where another layer may have been meant."""
    cut = [net for net in nets if net.is_cut]
    heads = dict.fromkeys(net.head_module for net in cut)
    notes = [Note(f'head of the net: "{head}"') for head in heads]
    doubts = dict.fromkeys(_doubt(net, x) for net in cut)
    return [*notes, *(Note(text, "warning") for text in doubts if text)]


def _doubt(net: Net, x: Tensor) -> str:
    """For a net whose code does not show the order of its layers, and whose head nobody named."""
    if net.named_head is not None or net.layers_in_use is not None:
        return ""
    rows = x[:2].cpu()
    last = last_in_pass(net.template, rows.to(net.dtype) if rows.is_floating_point() else rows)
    if last in ("", net.head_module):
        return ""
    taken = f'the head of the net is "{net.head_module}", its last declared layer'
    return f'{taken}, but "{last}" runs last: name it, Net.of(..., head="{last}")'
