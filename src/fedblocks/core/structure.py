"""What a method says of itself, blocks and phases, is of the kinds that engines count on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedblocks.core.blocks import Block, Federated, Fresh, Pool, ServerOnly
from fedblocks.core.errors import UserError, a_kind, nearest
from fedblocks.core.hooks import check_signatures, refuse_kind, telling
from fedblocks.core.method import Method
from fedblocks.core.parts import Sized
from fedblocks.core.phases import HALVES, Phase, Update

_HOMES = "Shared, Pool, PerClient, Private, Fresh, Frozen or ServerOnly"
_A_BLOCK = 'return {"model": fb.Shared(self.net.whole)} or other blocks, each with its home'
_A_PHASE = 'return a list: [fb.Phase((self.step("model"),), self.epochs)]'
_VIEWS = 'return {"personal": self.predict}, and others beside it'
_OWN = ("blocks", "predict", "phases")  # that every method defines


def check_structure(method: Method) -> None:
    """Refuse blocks, phases or views of a wrong kind, and functions of a wrong form."""
    kind = type(method).__name__
    for name in _OWN:
        if getattr(type(method), name, None) is getattr(Method, name):
            raise UserError(f"{kind} has no function {name}, which it must have", f"define {name}")
    if isinstance(type(method).tags, str):
        fix = f'write tags = ("{type(method).tags}",)'
        raise UserError(f"{kind}.tags is a str, not a tuple of names", fix)
    check_signatures(method)
    layout = _ask(method, "blocks", _check_blocks)
    for name in ("phases", "adaptation", "joining"):
        phases = _ask(method, name, _check_phases)
        _check_names(f"{kind}.{name}", phases, layout)
    _ask(method, "views", _check_views)


def _ask(method: Method, hook: str, check: Callable[[str, Any], None]) -> Any:
    """What a function says, if it is right."""
    with telling(method, hook):
        result = getattr(method, hook)()
    check(f"{type(method).__name__}.{hook}", result)
    return result


def _check_blocks(where: str, layout: Any) -> None:
    if not isinstance(layout, Mapping):
        refuse_kind(where, layout, "a dictionary of blocks", _A_BLOCK)
    if not layout:
        raise UserError(f"{where} returns no block", _A_BLOCK)
    for name, block in layout.items():
        if not isinstance(name, str):
            refuse_kind(where, name, "a text as the name of a block", _A_BLOCK)
        _check_home(where, name, block)
        if isinstance(block, Federated) and block.of is not None and block.of not in layout:
            message = f'{where}: "{name}" is uploaded from block "{block.of}", which is not there'
            raise UserError(message, nearest(block.of, layout))


def _check_home(where: str, name: str, block: Any) -> None:
    if not isinstance(block, Block):
        what = block.__name__ if isinstance(block, type) else a_kind(block)
        message = f'{where}: block "{name}" is {what}, which is no home'
        raise UserError(message, f"give it a home, fb.Shared(...): {_HOMES}")
    is_empty = isinstance(block, Fresh) and block.part is None
    is_sized = isinstance(block, ServerOnly) and isinstance(block.part, Sized)
    if not (is_empty or is_sized or callable(getattr(block.part, "init", None))):
        home = f"fb.{type(block).__name__}"
        fix = f"{home}(fb.Value(...)) holds a tensor, {home}(self.net.body) a piece of the net"
        part = f"{home} of {a_kind(block.part)}"
        raise UserError(f'{where}: block "{name}" is {part}, which has no `init(seed)`', fix)
    if isinstance(block, Pool) and not _is_count(block.size, least=1):
        message = f'{where}: block "{name}" is a Pool of {block.size!r} slots'
        raise UserError(message, "give it at least 1 slot, a whole number")


def _check_phases(where: str, phases: Any) -> None:
    if not isinstance(phases, list | tuple):
        refuse_kind(where, phases, "a list of phases", _A_PHASE)
    for phase in phases:
        if not isinstance(phase, Phase):
            refuse_kind(where, phase, "phases in its list", _A_PHASE)
        _check_phase(where, phase)


def _check_phase(where: str, phase: Phase) -> None:
    if not isinstance(phase.updates, list | tuple) or not all(
        isinstance(update, Update) for update in phase.updates
    ):
        what = f"{where}: the updates of a phase are {a_kind(phase.updates)}, not a tuple of steps"
        raise UserError(what, 'write fb.Phase((self.step("model"),)), with the comma')
    counts = {"epochs": phase.epochs, "steps": 0 if phase.steps is None else phase.steps}
    for name, count in counts.items():
        if not _is_count(count):
            message = f"{where}: a phase has {name} = {count!r}"
            raise UserError(message, "give a whole number, 0 or more")
    if phase.on not in HALVES:
        choices = ", ".join(f'"{half}"' for half in HALVES)
        raise UserError(f"{where}: a phase is on {phase.on!r}", f"choose one of {choices}")
    for update in phase.updates:
        if not (isinstance(update.lr, int | float) or callable(update.lr)):
            message = f"{where}: a step has the learning rate {update.lr!r}"
            raise UserError(message, "give a number, or a schedule")


def _check_names(where: str, phases: list[Phase], layout: Mapping[str, Block]) -> None:
    """Refuse phases that name a block which the method does not have."""
    for update in (update for phase in phases for update in phase.updates):
        pulled = () if update.pull is None else (update.pull.block, update.pull.to)
        for name in (*update.train, *pulled):
            if name not in layout:
                kind = where.partition(".")[0]
                message = f'{kind} has no block "{name}", which a phase of {where} names'
                raise UserError(message, nearest(str(name), layout))


def _check_views(where: str, views: Any) -> None:
    if not isinstance(views, Mapping):
        refuse_kind(where, views, "a dictionary of functions", _VIEWS)
    if "personal" not in views:
        raise UserError(f'{where} returns no "personal" view, which is always evaluated', _VIEWS)
    for name, view in views.items():
        if not callable(view):
            refuse_kind(where, view, f'a function of (blocks, x) as the view "{name}"', _VIEWS)


def _is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
