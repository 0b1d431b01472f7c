"""A client's own key, and its public half as files and Flower know it."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import need_content
from fedblocks.flower.keys.private_files import PUBLIC, private_folder, write_private

CURVE = ec.SECP384R1()  # Flower takes keys on the NIST curves


def make_client(private: Path, public: Path) -> None:
    """Make a client's own key, and the public half that the server enrols."""
    key = ec.generate_private_key(CURVE)
    form = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_private(private_folder(private.parent) / private.name, secret)
    public.parent.mkdir(parents=True, exist_ok=True)
    write_private(public, public_text(key.public_key()), PUBLIC)


def public_text(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the line of a `.pub` file."""
    form = serialization.PublicFormat.OpenSSH
    return bytes(key.public_bytes(serialization.Encoding.OpenSSH, form)) + b"\n"


def public_key(file: Path) -> bytes:
    """Read the public half of a client's key, as Flower knows it."""
    fix = "enrol the client again: fedblocks federation enrol SERVER NAME.pub"
    content = need_content(file, fix)
    try:
        key = serialization.load_ssh_public_key(content.strip())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{file} is not a public key", fix) from error
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(serialization.Encoding.PEM, form))
