"""Functions that make nets by name, of other people: called with the shape of an example and the
number of outputs, and expected to return a net.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from fedblocks.core.errors import NetError, UserError, a_kind
from fedblocks.core.net import Net
from fedblocks.core.own_code import own_code

FILLED = ("input_shape", "classes")  # what a run gives by name
_FORM = (
    "write `def {name}(input_shape, classes):`; a run gives these two, and further parameters with "
    "defaults are options of the table [net]"
)
_WRAP = "return fb.Net.of(lambda: MyModule(...))"


def check_net_function(target: Any, called: str) -> None:
    """Refuse what cannot be called as a run calls it."""
    form = _FORM.format(name=getattr(target, "__name__", "make"))
    if isinstance(target, Net | nn.Module) or not callable(target):
        message = f"{called} is {a_kind(target)}, not a function that returns a net"
        raise UserError(message, form)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    named = {
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    missing = [] if takes_all else [one for one in FILLED if one not in named]
    if missing:
        has = f"({', '.join(map(str, parameters))})"
        message = f"{called} is a function of {has}, without {' and '.join(missing)}"
        raise UserError(message, form)


def make_net(function: Any, name: str, **values: Any) -> Net:
    """What a function makes, if it is a net."""
    with own_code(f'net "{name}"', "correct the function"):
        net = function(**values)
    if not isinstance(net, Net):
        raise NetError(f'the function of net "{name}" returns {a_kind(net)}, not a net', _WRAP)
    return net
