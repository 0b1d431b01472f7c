"""The keys that a server accepts: enrol, replace and revoke them, in `server.toml` and
`clients/` together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys import public_keys as keys
from fedblocks.flower.keys.client_keys import public_text
from fedblocks.flower.keys.private_files import PUBLIC, locked, private_folder, write_private
from fedblocks.flower.keys.public_keys import Key, check_name, fingerprint

V = TypeVar("V")
FINGERPRINT = 43  # letters of a SHA-256 in base64


def enrol(
    server: Path,
    file: Path,
    numbers: Sequence[int] = (),
    examples: int | None = None,
    *,
    move: bool = False,
) -> str:
    """Accept a key for these clients; return its name, which is that of the file. A key that is
    enrolled for others is not moved to these unless the operator says so.
    """
    key = keys.read_public(keys.content_of(file), file)
    name = check_name(file.name.removesuffix(".pub"))
    with locked(_of_server(server)):
        host = ServerHost.read(server)
        _refuse_revoked(server, key)
        _refuse_known(server, host, key, name)
        _refuse_taken(host, name, numbers)
        if not move:
            _refuse_other_numbers(host, name, numbers)
        _write(server, host, name, key, numbers, examples)
    return name


def replace(server: Path, name: str, file: Path) -> str:
    """Accept another key in place of one that was lost, because the operator says so."""
    key = keys.read_public(keys.content_of(file), file)
    with locked(_of_server(server)):
        _exchange(server, ServerHost.read(server), check_name(name), key)
    return name


def rotate(server: Path, file: Path) -> str:
    """Accept another key because the owner of the old one asks for it; return its name."""
    request = keys.read_request(keys.content_of(file), file)
    key = keys.read_public(request.new.encode(), f"the new key in {file}")
    with locked(_of_server(server)):
        host = ServerHost.read(server)
        if request.federation != host.federation:
            message = (
                f'the request is for the federation "{request.federation}", and this one '
                f'is "{host.federation}"'
            )
            raise UserError(message, "name the folder of that federation's server")
        old = _enrolled(server, host, request.name)
        if request.old != fingerprint(old):
            message = (
                f"the request replaces the key {request.old}, and {request.name} has "
                f"{fingerprint(old)}"
            )
            raise UserError(
                message, "let the client make a new request: fedblocks federation rotate FOLDER"
            )
        request.check_signature(old)
        request.check_time()
        _exchange(server, host, request.name, key)
    return request.name


def revoke(server: Path, name: str) -> Path:
    """Refuse a key from now on and for ever; return where it is kept."""
    with locked(_of_server(server)):
        host = ServerHost.read(server)
        kept = _put_away(server, name, _enrolled(server, host, check_name(name)))
        left = {
            field: _without(getattr(host, field), name)
            for field in ("clients", "examples", "since")
        }
        # before the file goes: no name is without its key
        host.model_copy(update=left).write(server)
        (server / "clients" / f"{name}.pub").unlink()
    return kept


def table(server: Path) -> list[dict[str, object]]:
    """Return a row for every key that is accepted."""
    host = ServerHost.read(server)
    return [
        {
            "name": name,
            "clients": ", ".join(map(str, numbers)),
            "fingerprint": fingerprint(_stored(server, name)),
            "examples": host.examples.get(name),
            "since": host.since.get(name),
        }
        for name, numbers in sorted(host.clients.items())
    ]


def _of_server(server: Path) -> Path:
    if ServerHost.read(server).insecure:
        raise UserError(
            f"{server} is of a federation without keys",
            "make one with keys: fedblocks federation init",
        )
    return server


def _exchange(server: Path, host: ServerHost, name: str, key: Key) -> None:
    """Put the new key in the place of the old one, which is kept among the revoked."""
    old = _enrolled(server, host, name)
    _refuse_revoked(server, key)
    _refuse_known(server, host, key)
    _put_away(server, name, old)
    new = host.model_copy(update={"since": _without(host.since, name)})
    _write(server, new, name, key, host.clients[name], host.examples.get(name))


def _write(
    server: Path,
    host: ServerHost,
    name: str,
    key: Key,
    numbers: Sequence[int],
    examples: int | None,
) -> None:
    """Write the key, then `server.toml`, which readers look at for changes."""
    write_private(private_folder(server / "clients") / f"{name}.pub", public_text(key), PUBLIC)
    agreed = {**host.examples, name: examples} if examples is not None else host.examples
    since = {name: datetime.now(UTC).isoformat(timespec="seconds"), **host.since}
    held = {**host.clients, name: tuple(sorted(numbers))}
    changed = ServerHost.model_validate(
        {**host.model_dump(), "clients": held, "examples": agreed, "since": since}
    )
    changed.write(server)


def _put_away(server: Path, name: str, key: Key) -> Path:
    """Keep a copy among the keys that are never enrolled again."""
    kept = private_folder(server / "clients" / "revoked") / f"{name}-{_safe(fingerprint(key))}.pub"
    write_private(kept, public_text(key), PUBLIC)
    return kept


def _safe(fingerprint: str) -> str:
    """Write a fingerprint so that it can be part of a file's name."""
    return fingerprint.removeprefix("SHA256:").replace("/", "_").replace("+", "-")


def _stored(server: Path, name: str) -> Key:
    path = server / "clients" / f"{name}.pub"
    return keys.read_public(keys.content_of(path), path)


def _enrolled(server: Path, host: ServerHost, name: str) -> Key:
    if name not in host.clients:
        known = ", ".join(sorted(host.clients)) or "none"
        message, fix = f"no key is enrolled as {name}", f"enrolled are: {known}"
        if _was_revoked(server, name):
            message, fix = f"{message}: it was revoked", come_back(server, name, "--client N")
        raise UserError(message, fix)
    return _stored(server, name)


def _was_revoked(server: Path, name: str) -> bool:
    revoked = (server / "clients" / "revoked").glob(f"{name}-{'?' * FINGERPRINT}.pub")
    return any(revoked)


def come_back(server: Path, name: str, numbers: str) -> str:
    """Return what lets a client in again whose key was revoked."""
    return (
        "to let this client in again, let it remove client.key, run: fedblocks federation rotate "
        f"FOLDER, and send {name}.pub; then: fedblocks federation enrol {server} {name}.pub "
        f"{numbers}"
    )


def _refuse_revoked(server: Path, key: Key) -> None:
    for path in sorted((server / "clients" / "revoked").glob("*.pub")):
        if keys.read_public(keys.content_of(path), path) == key:
            message = f"the key {fingerprint(key)} was revoked or replaced: {path.name}"
            raise UserError(
                message, "let the client make a new one: fedblocks federation rotate FOLDER"
            )


def _refuse_known(server: Path, host: ServerHost, key: Key, name: str = "") -> None:
    """Refuse a key that has another name, and a name that has another key."""
    for other in host.clients:
        same = _stored(server, other) == key
        if same and other != name:
            fix = (
                f"keep the name {other}; if this is another client, enrol a key that it made "
                "itself: keys are not shared"
            )
            raise UserError(f"the key {fingerprint(key)} is enrolled already, as {other}", fix)
        if other == name and not same:
            fix = f"rename the file; or, if this is a new key of the same client: --replace {name}"
            raise UserError(f"the name {name} is taken by another key", fix)


def _refuse_taken(host: ServerHost, name: str, numbers: Sequence[int]) -> None:
    if not numbers or len({*numbers}) != len(numbers) or min(numbers) < 0:
        raise UserError(
            "say which clients the key stands for, each once", "give a number from 0: --client 0"
        )
    for other, held in host.clients.items():
        if (both := sorted({*held} & {*numbers})) and other != name:
            used = {number for numbers in host.clients.values() for number in numbers}
            free = min({*range(len(used) + 1)} - used)
            raise UserError(
                f"client {both[0]} is taken by the key {other}", f"the first free number is {free}"
            )


def _refuse_other_numbers(host: ServerHost, name: str, numbers: Sequence[int]) -> None:
    before = host.clients.get(name, tuple(sorted(numbers)))
    if before != tuple(sorted(numbers)):
        held = ", ".join(map(str, before))
        raise UserError(
            f"{name} is enrolled already, for client {held}",
            "name the file of another client; or, to give this one its new number: --move",
        )


def _without(table: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in table.items() if key != name}
