"""Where a block of parameters lives between rounds, and what a client is sent of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedblocks.core.parts import Params, Part, Sized
from fedblocks.core.rules import Average, Rule
from fedblocks.core.starts import Independent, Start


@dataclass(frozen=True, eq=False)
class Private:
    """Stays on its client; every client starts from the same values."""

    part: Part


@dataclass(frozen=True, eq=False)
class Fresh:
    """Kept by nobody: `prepare` makes it, or it starts anew in every round."""

    part: Part | None = None


@dataclass(frozen=True, eq=False)
class ServerOnly:
    """Stays on the server and is never sent."""

    part: Part | Sized


@dataclass(frozen=True, eq=False)
class Shared:
    """One slot on the server. Clients that give it the same server name federate it."""

    part: Part
    name: str | None = None  # server name; default: the block's own name
    rule: Rule = Average()  # noqa: RUF009 - frozen
    of: str | None = None  # upload this block instead of the one that was sent

    @property
    def size(self) -> int:
        return 1


@dataclass(frozen=True, eq=False)
class Pool:
    """Several slots, sent side by side: components, clusters, branches, modules, cohorts."""

    part: Part
    size: int
    name: str | None = None
    rule: Rule = Average()  # noqa: RUF009
    of: str | None = None  # upload one copy of this block to the slots that the client writes
    on_request: bool = False  # sent in a second download, only the slots that `wants` asks for
    start: Start = Independent()  # noqa: RUF009


@dataclass(frozen=True, eq=False)
class PerClient:
    """A slot for each client, written by that client alone from its block `of`."""

    part: Part
    of: str
    name: str | None = None
    rule: Rule = Average()  # noqa: RUF009

    @property
    def size(self) -> int:
        """Clients see one copy each."""
        return 1


Federated = Shared | Pool | PerClient
Block = Private | Fresh | ServerOnly | Shared | Pool | PerClient


@dataclass(frozen=True, eq=False)
class Mixture:
    """Each client is sent one copy: its own mixture of the slots."""

    weights: Tensor  # [clients, slots]


@dataclass(frozen=True, eq=False)
class Selection:
    """Each client is sent these slots, side by side; with one slot a client, a single copy."""

    slots: Tensor  # [clients] or [clients, how many]


@dataclass(frozen=True, eq=False)
class Generated:
    """Each client is sent values that the server made for it."""

    values: Params  # [clients, ...]


Read = Mixture | Selection | Generated


def server_name(block_name: str, block: Block) -> str:
    """The name of a block's slots on the server."""
    return getattr(block, "name", None) or block_name
