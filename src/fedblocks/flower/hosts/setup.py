"""Folders for the machines of a federation: the server's with its certificates, a
client's with a key of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import read_small
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.hosts.folders import (
    NAME,
    PORT,
    ClientHost,
    ServerHost,
    address_of,
    is_loopback,
)
from fedblocks.flower.keys.private_files import PUBLIC, private_folder, refuse_filled, write_private

EXAMPLE = {"name": "npz", "clients": 1, "options": {"path": "data.npz"}, "split": [0.7, 0.1, 0.2]}
HINT = """
# [data] says where this client's examples are; it is read here and never sent.
# `fedblocks data list` names loaders.
# An npz file holds the arrays x (examples first) and y (labels).
# [allow] says what the server may ask for here; docs/deploy.md lists it.
# Without it the defaults hold:
# methods: all that are installed; largest = "2GB"; send = ["updates", "scores", "tags"]
"""


def node_name(number: int) -> str:
    """Return the name of a node's folder and of its key."""
    return f"client-{number:03d}"


def make_server_folder(
    folder: Path,
    address: str,
    port: int = PORT,
    inner_port: int | None = None,
    *,
    insecure: bool = False,
    ca_key: Path | None = None,
    years: int | None = None,
) -> Path:
    """Make a server's folder with an authority and a certificate; return where the authority's
    key is.
    """
    server = folder / "server"
    secret = ca_key or folder / "authority" / "ca.key"
    refuse_filled(server)
    if secret.resolve().is_relative_to(server.resolve()):
        where = "in the server's folder, which runs without it"
        message = f"the authority's private key does not belong {where}"
        raise UserError(message, "name a place outside by --ca-key, or leave the option out")
    own = folder.resolve().name
    host = _server(
        federation=own if re.fullmatch(NAME, own) else "federation",
        insecure=insecure,
        address=address,
        port=port,
        inner_port=inner_port or port + 1,
        bind="127.0.0.1" if is_loopback(address) else "0.0.0.0",
    )
    if not folder.exists():
        private_folder(folder)
    if not insecure:
        from fedblocks.flower.keys import certificates as pki

        pki.make_authority(private_folder(server), host.federation, secret)
        pki.make_server(server, [address], secret, years or pki.SERVER_YEARS)
        private_folder(server / "clients")
    host.write(server)
    return secret


def _server(**settings: Any) -> ServerHost:
    try:
        return ServerHost(**settings)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UserError(message, "use certificates and keys, or 127.0.0.1") from error


def join(
    folder: Path, server: str, ca: Path, name: str, numbers: Sequence[int], **more: Any
) -> ClientHost:
    """Make a client's folder, on its machine: a key of its own, the certificate of its authority,
    and its settings.
    """
    from fedblocks.flower.keys import certificate_checks as checks
    from fedblocks.flower.keys import client_keys
    from fedblocks.flower.keys import public_keys as keys

    keys.check_name(name)
    address_of(server)
    federation = checks.federation_of(checks.load_authority(ca))
    authority = read_small(ca)
    if re.fullmatch(NAME, federation) is None:
        message = f"{ca} is an authority, but not that of a federation of fedblocks"
        fix = "take ca.crt of the folder that `fedblocks federation init` made for the server"
        raise UserError(message, fix)
    host = _client(federation, server, numbers, name=name, **more)
    refuse_filled(folder)
    private_folder(folder)
    client_keys.make_client(folder / "client.key", folder / f"{name}.pub")
    write_private(folder / "ca.crt", authority, PUBLIC)
    host.write(folder, HINT)
    return host


def _client(federation: str, server: str, numbers: Sequence[int], **more: Any) -> ClientHost:
    settings = {"data": EXAMPLE, **more, "federation": federation, "server": server}
    try:
        return ClientHost.model_validate({**settings, "clients": sorted(numbers)})
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UserError(message, "see docs/deploy.md") from error


def set_up(
    folder: Path,
    address: str,
    clients: Mapping[str, Sequence[int]],
    port: int = PORT,
    inner_port: int | None = None,
    *,
    insecure: bool = False,
    data: Mapping[str, Any] | None = None,
    device: str = "cpu",
    pictures: bool = False,
) -> list[str]:
    """Make the folders of a whole federation on one machine, and return them."""
    from fedblocks.flower.keys import certificates as pki
    from fedblocks.flower.keys import key_table

    years = None if insecure else pki.AUTHORITY_YEARS
    make_server_folder(folder, address, port, inner_port, insecure=insecure, years=years)
    server = folder / "server"
    at = f"{address}:{port}"
    host = ServerHost.read(server)
    allow = {"send": [*Allow().send, *(["pictures"] if pictures else [])]}
    more = {
        "data": dict(data or EXAMPLE),
        "device": device,
        "allow": allow,
        "insecure": insecure,
    }
    for name, numbers in clients.items():
        if insecure:
            _client(host.federation, at, numbers, name=name, **more).write(folder / name, HINT)
        else:
            join(folder / name, at, server / "ca.crt", name, numbers, **more)
            key_table.enrol(server, folder / name / f"{name}.pub", numbers)
    if insecure:
        held = {name: tuple(numbers) for name, numbers in clients.items()}
        host.model_copy(update={"clients": held}).write(server)
    return [str(server), *(str(folder / name) for name in clients)]
