"""A client's new key: made beside the old one, requested with the old one's signature,
used once it is enrolled.
"""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import need_content
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.keys.client_keys import make_client, public_text
from fedblocks.flower.keys.private_files import PUBLIC, write_private
from fedblocks.flower.keys.public_keys import RotationRequest, fingerprint, read_private

NEW, OLD = "client.key.new", "client.key.old"


def begin(folder: Path) -> tuple[str, Path | None]:
    """Make a new key; return its fingerprint, and the request for the server, signed
    with the old key.
    """
    name = _key_name(folder)
    own = folder / "client.key"
    public = public_file(folder)
    if not own.exists():  # it was lost: nothing can be signed, and the operator is asked
        make_client(own, public)
        return fingerprint(read_private(own).public_key()), None
    old = read_private(own)
    if not (folder / NEW).exists():  # else it was begun before, and may be enrolled
        make_client(folder / NEW, public)
    new = read_private(folder / NEW).public_key()
    write_private(public, public_text(new), PUBLIC)
    request = RotationRequest(
        federation=ClientHost.read(folder).federation,
        name=name,
        old=fingerprint(old.public_key()),
        new=public_text(new).decode().strip(),
        time=datetime.now(UTC),
    ).sign(old)
    write_private(request_file(folder), request.model_dump_json(indent=2).encode(), PUBLIC)
    return fingerprint(new), request_file(folder)


def public_file(folder: Path) -> Path:
    """Return the file with the public half, for the server's operator."""
    return folder / f"{_key_name(folder)}.pub"


def hand_in(folder: Path) -> list[str]:
    """Return what to do with a key that no old one asks for: that was lost, or revoked."""
    public = public_file(folder)
    enrol = f"  fedblocks federation enrol SERVER {public.name}"
    numbers = " ".join(f"--client {number}" for number in ClientHost.read(folder).clients)
    return [
        f"there was no old key to sign with; send {public} to the operator, who runs,",
        "if the old key was lost:",
        f"{enrol} --replace {public.stem}",
        "if it was revoked:",
        f"{enrol} {numbers}",
    ]


def request_file(folder: Path) -> Path:
    """Return the file with the request for the server, signed with the old key."""
    return folder / f"{_key_name(folder)}.json"


def need_new_key(folder: Path) -> None:
    """Refuse a folder in which no rotation was begun."""
    if not (folder / NEW).exists():
        raise UserError(
            f"{folder} has no new key", f"make one: fedblocks federation rotate {folder}"
        )


def finish(folder: Path) -> str:
    """Use the new key from now on; return its fingerprint. The old one is kept until
    its owner removes it, and so is the request.
    """
    need_new_key(folder)
    key = read_private(folder / NEW)
    write_private(folder / OLD, need_content(folder / "client.key", "bring it back from a copy"))
    os.replace(folder / NEW, folder / "client.key")
    return fingerprint(key.public_key())


def way_back(folder: Path) -> str:
    """Return the commands that bring the old key back, if the new one is not enrolled after all."""
    own, new, old = (shlex.quote(str(folder / name)) for name in ("client.key", NEW, OLD))
    return f"mv {own} {new} && mv {old} {own}"


def _key_name(folder: Path) -> str:
    host = ClientHost.read(folder)
    if host.insecure:
        raise UserError(f"{folder} belongs to a federation without keys", "join one that has them")
    if host.name is None:
        raise UserError(
            f"{folder / 'client.toml'} does not say the name of its key",
            'add the line name = "NAME"',
        )
    return host.name
