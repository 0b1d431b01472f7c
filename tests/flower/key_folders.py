"""Folders of a server and of clients, as each machine makes its own, for the tests
beside this file.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from fedblocks.flower.hosts.folders import ServerHost

AT = "fl.example.org:8443"
Switch = pytest.MonkeyPatch


class Federation:
    """A server's folder, and folders of clients that joined it."""

    def __init__(self, base: Path, at: str = AT, inner_port: int | None = None) -> None:
        from fedblocks.flower.hosts.folders import address_of
        from fedblocks.flower.hosts.setup import make_server_folder

        self.base, self.server, self.at = base, base / "f" / "server", at
        self.secret = make_server_folder(base / "f", *address_of(at), inner_port)

    def joined(self, name: str, number: int = 0) -> Path:
        """A client's folder, whose public key the operator has not seen."""
        from fedblocks.flower.hosts.setup import join

        join(self.base / name, self.at, self.server / "ca.crt", name, [number])
        return self.base / name

    def enrolled(self, name: str, number: int = 0) -> Path:
        """A client's folder, whose public key is enrolled."""
        from fedblocks.flower.keys import key_table

        folder = self.joined(name, number)
        key_table.enrol(self.server, folder / f"{name}.pub", [number])
        return folder

    @property
    def host(self) -> ServerHost:
        return ServerHost.read(self.server)

    def key(self, name: str) -> str:
        """The fingerprint that is enrolled."""
        from fedblocks.flower.keys import key_table

        return next(
            str(row["fingerprint"]) for row in key_table.table(self.server) if row["name"] == name
        )


def own(folder: Path) -> str:
    """The fingerprint of the key that a client has."""
    from fedblocks.flower.keys import public_keys as keys

    return keys.fingerprint(keys.read_private(folder / "client.key").public_key())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def off(switch: Switch, owner: Any, name: str, instead: Any = lambda *_: None) -> None:
    """A defence that is not there."""
    switch.setattr(owner, name, instead)
