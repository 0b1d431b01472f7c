"""Clients in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.flower.wire.admission import Member


def name_clients(clients: Sequence[int]) -> str:
    """Name some clients by their numbers, in a few words."""
    numbers = ", ".join(map(str, clients[:5]))
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'' if len(clients) == 1 else 's'} {numbers}{more}"


def name_members(members: Sequence[Member]) -> str:
    """Name the clients of one node in a few words, with their verb."""
    numbers = [member.client for member in members]
    return f"{name_clients(numbers)} {'is' if len(members) == 1 else 'are'}"
