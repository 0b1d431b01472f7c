"""Public keys that clients hand in, and the request by which a client replaces its own."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import need_content
from fedblocks.flower.hosts.folders import NAME, Name
from fedblocks.flower.keys.client_keys import CURVE, public_text
from fedblocks.flower.keys.private_files import read_secret

Key = ec.EllipticCurvePublicKey
LARGEST = 10_000  # bytes of a file with a public key or a request
FRESH = timedelta(days=30)  # for which a request is good
SIGNED = ec.ECDSA(hashes.SHA384())
MAKE = "make one on the client's machine: fedblocks federation join FOLDER"


def check_name(name: str) -> str:
    """Return the name of a key, if it can be a file's name too."""
    if re.fullmatch(NAME, name) is None:
        message = f"{name[:60]!a} cannot be the name of a client's key"
        raise UserError(
            message,
            "use up to 40 letters, digits, - and _ (ASCII), beginning with a letter or digit",
        )
    return name


def content_of(path: Path) -> bytes:
    """Read a file that a client sent; a private key is refused, and so is a pipe."""
    content = need_content(path, "name the file NAME.pub that `join` made")
    if b"PRIVATE KEY" in content:
        fix = (
            "name NAME.pub, which lies beside it; if this is a copy from a client's machine, "
            "delete it and let the client make a new key: fedblocks federation rotate FOLDER"
        )
        message = f"{path} is a private key, which must not leave its machine; it was not stored"
        raise UserError(message, fix)
    if len(content) > LARGEST:
        raise UserError(
            f"{path} is too large for a public key", "name the file NAME.pub that `join` made"
        )
    return content


def read_public(content: bytes, where: object) -> Key:
    """Read a public key; it must be on the curve that is used here."""
    try:
        key = serialization.load_ssh_public_key(content.strip())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(
            f"{where} is not a public key", f"name NAME.pub that `join` made, or {MAKE}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{where} is a key of another kind, not an elliptic-curve one", MAKE)
    if key.curve.name != CURVE.name:
        raise UserError(
            f"{where} is a key on the curve {key.curve.name}, not on {CURVE.name}", MAKE
        )
    return key


def fingerprint(key: Key) -> str:
    """Return a fingerprint as `ssh-keygen -lf NAME.pub` prints it."""
    wire = base64.b64decode(public_text(key).split()[1])
    return "SHA256:" + base64.b64encode(sha256(wire).digest()).decode().rstrip("=")


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a client's own key."""
    content = read_secret(path, "make a new key: fedblocks federation rotate FOLDER")
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(
            f"{path} is not a private key", "bring it back from a copy, or remove it and rotate"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is a key of another kind", "remove it and rotate")
    return key


class RotationRequest(BaseModel):
    """A request to replace a key, signed with the old one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Literal["fedblocks key rotation"] = "fedblocks key rotation"
    federation: Name
    name: Name
    old: str  # fingerprint of the key that is replaced
    new: str  # the public key that takes its place
    time: AwareDatetime
    signature: str = ""

    def sign(self, old: ec.EllipticCurvePrivateKey) -> RotationRequest:
        """Return the same request with a signature by the old key."""
        signature = base64.b64encode(old.sign(self._words(), SIGNED)).decode()
        return self.model_copy(update={"signature": signature})

    def check_signature(self, old: Key) -> None:
        """Refuse a request that the old key did not sign."""
        try:
            old.verify(base64.b64decode(self.signature, validate=True), self._words(), SIGNED)
        except (InvalidSignature, ValueError) as error:
            message = f"the request was not signed by the key that is enrolled as {self.name}"
            raise UserError(
                message, f"if that key was lost: enrol SERVER NEW.pub --replace {self.name}"
            ) from error

    def check_time(self) -> None:
        """Refuse a request that is too old."""
        age = datetime.now(UTC) - self.time
        if not timedelta(days=-1) < age < FRESH:
            message = f"the request is of {self.time:%Y-%m-%d}, and good for {FRESH.days} days"
            raise UserError(
                message, "let the client make a new one: fedblocks federation rotate FOLDER"
            )

    def _words(self) -> bytes:
        return self.model_dump_json(exclude={"signature"}).encode()


def read_request(content: bytes, where: object) -> RotationRequest:
    """Read a request to replace a key."""
    try:
        return RotationRequest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        message = f"{where} is not a request to replace a key: {place}: {first['msg']}"
        raise UserError(
            message, "name the file NAME.json that `fedblocks federation rotate` made"
        ) from error
