"""The functions that a phase brings along, as one client has them: what it begins with, where
an update's blocks must be, and which of them rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedblocks.core import mode
from fedblocks.core.client import ClientStack, Mapped
from fedblocks.core.hooks import noting
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase, Rests


def begin_of(phase: Phase, number: int, local: ClientStack) -> Mapped:
    """A client's tensors, its blocks -> the blocks that the phase starts from."""
    find = lambda method: local.own_phase(number, method).begin
    call = _function_of("begin", phase.begin, local, find)  # type: ignore[arg-type]
    return lambda client, blocks: call(client, local.whole(blocks))


def projection_of(project: Mapped, number: int, place: int, local: ClientStack) -> Mapped:
    """A client's tensors, the blocks that an update trains -> these, where they must be."""
    find = lambda method: local.own_update(number, place, method).project
    return _function_of("project", project, local, find)


def rests_of(rests: Rests, number: int, place: int, local: ClientStack) -> Mapped:
    """A client's tensors, its blocks -> the blocks of an update that rest."""
    find = lambda method: local.own_update(number, place, method).rests
    call = _function_of("rests", rests, local, find)
    return lambda client, blocks: call(client, local.whole(blocks), local.client(client))


def _function_of(
    name: str, function: Mapped, local: ClientStack, find: Callable[[Method], Any]
) -> Mapped:
    def call(client: dict[str, Any], *args: Any) -> Any:
        with (
            noting(local.method, name),
            mode.mode(training=False, mapped=local.mapped, task=local.source.task),
        ):
            return local.own(function, client, find)(*args)

    return call
