"""Who may come in: the clients whose names are in server.toml and whose requests are signed with
their keys.

Flower's client sends its public key, the time, and a signature of the time with every request.
These headers are checked before a byte of the body is read, and the files are looked at again when
they have changed.
"""

from __future__ import annotations

import binascii
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.client_keys import CURVE, public_key

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
AHEAD, BEHIND = 5.0, 305.0  # seconds that a client's clock may be off, as Flower has them
# seconds between two looks at the key files; server.toml is looked at with every request
LOOK = 1.0

Headers = Mapping[bytes, bytes]
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Sender:
    """The sender of a request."""

    name: str
    key: bytes
    clock_is_right: bool = True


class Members:
    """The enrolled keys of a server's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[bytes, str] = {}  # a key as the header has it -> its client
        self._keys: dict[bytes, ec.EllipticCurvePublicKey] = {}
        # Signatures of strangers are checked too, so that the time of an answer does not tell which
        # keys are enrolled.
        self._nobody = ec.generate_private_key(CURVE).public_key()
        self._list: Stamp | None = None  # of the server.toml that was read
        # key files that were read, and those that are missing
        self._files: dict[Path, Stamp | None] = {}
        self._looked = 0.0

    def check(self, headers: Headers) -> Sender | None:
        """Return the sender of a request, if it is signed by an enrolled key."""
        self._refresh()
        claimed = headers.get(KEY, b"")
        try:
            signature = b64decode(headers.get(SIGNATURE, b""), validate=True)
            self._keys.get(claimed, self._nobody).verify(
                signature, headers.get(TIME, b""), ec.ECDSA(hashes.SHA256())
            )
            sent_at = datetime.fromisoformat(headers[TIME].decode("ascii"))
            age = (datetime.now(UTC) - sent_at).total_seconds()
        except (InvalidSignature, binascii.Error, KeyError, ValueError, TypeError, OverflowError):
            return None
        if claimed not in self._names:
            return None
        return Sender(self._names[claimed], claimed, -AHEAD < age < BEHIND)

    def _refresh(self) -> None:
        """Read the files again if they have changed; with a server.toml that cannot be
        read nobody comes in.
        """
        current = stamp(self.folder / ServerHost.file())
        is_due = time.monotonic() - self._looked > LOOK
        is_changed = is_due and any(stamp(file) != old for file, old in self._files.items())
        if current == self._list and not is_changed:
            self._looked = time.monotonic() if is_due else self._looked
            return
        self._names = {}
        self._keys = {}
        self._list = None
        try:
            names = [*ServerHost.read(self.folder).clients]
        except UserError:
            return
        files = {name: self.folder / "clients" / f"{name}.pub" for name in names}
        self._files = {file: stamp(file) for file in files.values()}
        self._list = current
        self._looked = time.monotonic()
        for name, file in files.items():
            self._enrol(name, file)

    def _enrol(self, name: str, file: Path) -> None:
        try:
            text = public_key(file)
            key = serialization.load_pem_public_key(text)
        except (UserError, ValueError):
            return  # not there yet, or being written
        if isinstance(key, ec.EllipticCurvePublicKey):
            self._names[b64encode(text)] = name
            self._keys[b64encode(text)] = key


def anybody(headers: Headers) -> Sender:
    """Return the sender without a check: for federations without keys, on loopback alone."""
    return Sender("", headers.get(KEY, b""))


def stamp(path: Path) -> Stamp | None:
    """Return numbers of a file that change when it does; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
