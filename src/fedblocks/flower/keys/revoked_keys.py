"""The keys that a server has revoked or replaced, as Flower knows them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedblocks.core.errors import UserError


def revoked_keys(server: Path) -> set[bytes]:
    """Return the public keys that are never to be let in again."""
    from fedblocks.flower.keys.client_keys import public_key

    keys = set()
    for file in (server / "clients" / "revoked").glob("*.pub"):
        with suppress(UserError):  # a broken copy must not stop the server; nobody has that key
            keys.add(public_key(file))
    return keys
