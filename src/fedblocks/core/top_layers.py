"""The layers of a net counted from its output: in the order of use, not of declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedblocks.core.cuts import has_own_parameters, is_under, linear_layers, owners_of

if TYPE_CHECKING:
    from fedblocks.core.net import Net
    from fedblocks.core.pieces import Piece


def order_of_layers(net: Net) -> list[str]:
    """The layers with parameters that the logits depend on, each where it is used last. Where the
    code does not show it, all in the order of declaration, the head behind the others.
    """
    if net.layers_in_use is not None:
        return net.layers_in_use
    declared = [path for path, part in net.template.named_modules() if has_own_parameters(part)]
    return sorted(declared, key=lambda path: is_under(path, [net.head_module]))  # stable


def linear_in_use(net: Net) -> list[str]:
    """The linear layers that the logits depend on, the one next to the output last."""
    places = {path: _places(net, path) for path in linear_layers(net.template)}
    used = [path for path, own in places.items() if own]
    return sorted(used, key=lambda path: max(places[path]))


def top_piece(net: Net, count: int) -> Piece:
    """Everything from the linear layer on that is the `count`-th from the output."""
    first = min(_places(net, linear_in_use(net)[-count]))
    top = set(net.order[first:])
    owners = owners_of(net.template)
    return net.piece(name for name in net.names if top & owners.get(name, set()))


def _places(net: Net, path: str) -> list[int]:
    return [place for place, used in enumerate(net.order) if is_under(used, [path])]
