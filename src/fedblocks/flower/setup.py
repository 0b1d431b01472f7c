"""Folders for the machines of a federation, with certificates and keys made for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import PORT, ClientHost, ServerHost, is_loopback
from fedblocks.flower.policy import Allow

EXAMPLE = {"name": "npz", "clients": 1, "options": {"path": "data.npz"}, "split": [0.7, 0.1, 0.2]}
HINT = """
# [data] says where this client's examples are; it is read here and never sent. `fedblocks data list` names loaders.
# An npz file holds the arrays x (examples first) and y (labels).
"""


def node_name(number: int) -> str:
    """The folder, and the key, of a client."""
    return f"client-{number:03d}"


def set_up(
    folder: Path,
    address: str,
    clients: Mapping[str, Sequence[int]],
    port: int = PORT,
    inner_port: int | None = None,
    insecure: bool = False,
    data: Mapping[str, Any] | None = None,
    device: str = "cpu",
    pictures: bool = False,
) -> list[str]:
    """Make what is missing in a federation's folder, and say what was made; what is there stays."""
    server, name = folder / "server", folder.name if folder.name.replace("-", "").isalnum() else "federation"
    known: set[str] = set()  # clients whose folders may have gone to their machines
    if (server / "server.toml").exists():
        host = ServerHost.read(server)
        known = {*host.clients}
        host = host.model_copy(update={"clients": {**host.clients, **_numbers(clients)}})
    else:
        bind = "127.0.0.1" if is_loopback(address) else "0.0.0.0"
        told: dict[str, Any] = {"federation": name, "address": address, "port": port, "bind": bind}
        told |= {"inner_port": inner_port or port + 1, "insecure": insecure, "clients": _numbers(clients)}
        host = _checked(told)
    made = [] if insecure else _certificates(server, host.address)
    host.write(server)
    for node, numbers in clients.items():
        if node not in known:
            leaves = [*Allow().send, *(["pictures"] if pictures else [])]
            more = {"data": dict(data or EXAMPLE), "device": device, "allow": {"send": leaves}}
            _client(folder, node, numbers, host, more)
            made.append(str(folder / node))
    return made


def _numbers(clients: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {node: tuple(numbers) for node, numbers in clients.items()}


def _checked(told: Mapping[str, Any]) -> ServerHost:
    try:
        return ServerHost(**told)
    except ValueError as error:
        message = str(error).partition("Value error, ")[2].partition(" [type=")[0] or str(error)
        raise UserError(message, "leave --insecure out, or use 127.0.0.1") from error


def _certificates(server: Path, address: str) -> list[str]:
    from fedblocks.flower import pki

    if (server / "server.crt").exists():
        return []
    server.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki.make_authority(server)
    pki.make_server(server, [address])
    return [str(server)]


def _client(folder: Path, node: str, numbers: Sequence[int], host: ServerHost, more: Mapping[str, Any]) -> None:
    own = folder / node
    client = ClientHost.model_validate(
        {
            "federation": host.federation, "server": f"{host.address}:{host.port}", "clients": tuple(numbers),
            "insecure": host.insecure, **more,
        }
    )  # fmt: skip
    client.write(own, HINT)
    if not host.insecure:
        from fedblocks.flower import pki

        pki.make_client(own / "client.key", folder / "server" / "clients" / f"{node}.pub")
        shutil.copy(folder / "server" / "ca.crt", own / "ca.crt")
