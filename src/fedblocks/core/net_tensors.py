"""A net is called with all of its tensors: one that is left out would stay as the module began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fedblocks.core.cuts import is_under
from fedblocks.core.errors import NetError, nearest
from fedblocks.core.parts import Params

if TYPE_CHECKING:
    from fedblocks.core.net import Net

_SHOWN = 3  # names that a message lists


class WrongTensors(NetError):
    """A net was called without some of its tensors (`names`), or with others."""

    def __init__(self, message: str, fix: str = "", names: Sequence[str] = ()) -> None:
        super().__init__(message, fix)
        self.names = names


def check_all_there(net: Net, params: Params, head: bool = True) -> None:
    """Refuse a call without some tensors of a net; without its head only if it is not asked for."""
    if params.keys() >= net.all_names:  # others than these are refused where they have no place
        return
    if any(isinstance(value, Mapping) for value in params.values()):
        refuse_unknown(params, net.names)
    missing = [name for name in net.names if name not in params]
    if not head:
        missing = [name for name in missing if not is_under(name, [net.head_module])]
    if missing:
        message = f"the net was called without {_list_names(missing)}"
        fix = "give it all of its tensors: net(fb.join(blocks[...], blocks[...]), x)"
        raise WrongTensors(message, fix, missing)


def check_tensor_names(net: Net, names: Iterable[str]) -> set[str]:
    """Names of tensors of a net; a text is one name, and perhaps that of a cut."""
    wanted = {names} if isinstance(names, str) else set(names)
    unknown = next((name for name in wanted if name not in net.all_names), None)
    if unknown is None:
        return wanted
    is_cut = unknown in net.pieces
    fix = f'write net.pieces["{unknown}"]' if is_cut else nearest(unknown, net.names)
    raise NetError(f'the net has no tensor "{unknown}"', fix)


def check_constants(own: Params, stored: Params) -> None:
    """Refuse the constants of another net."""
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in stored.items()}:
        known = f"{', '.join(stored) or 'none'}, not {', '.join(own) or 'none'}"
        message = f"the stored constants are those of another net: {known}"
        raise NetError(message, "use the code of the run")


def refuse_unknown(params: Mapping[str, Any], known: Iterable[str]) -> NoReturn:
    """A net was called with something that is not its own."""
    known = list(known)
    name = next(name for name in params if name not in known)
    if isinstance(params[name], Mapping):
        message = f'the net was given whole blocks ("{name}"), not the tensors in them'
        raise WrongTensors(message, "join them: net(fb.join(blocks[...], blocks[...]), x)")
    message = f'the net has no tensor "{name}", with which it was called'
    raise WrongTensors(message, nearest(name, known))


def _list_names(names: list[str]) -> str:
    """`"0.weight", "0.bias" and 4 more`."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f'"{name}"' for name in names[:_SHOWN]) + more
