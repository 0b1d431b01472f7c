"""Certificates and the authority's key, read from their files; those that are wrong are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedblocks.core.errors import UserError
from fedblocks.core.small_files import need_content
from fedblocks.flower.keys.private_files import read_secret

SOON = timedelta(days=30)  # before its end a certificate is warned of
RENEW = "fedblocks federation renew"


def load_authority(path: Path, aged: bool = False) -> x509.Certificate:
    """Read an authority's certificate, the first of the file; with `aged`, even one that has
    expired.
    """
    certificates = _certificates(path)
    if not all(map(_is_authority, certificates)):
        fix = "take ca.crt of the server's folder, not server.crt"
        raise UserError(f"{path} is a certificate, but not that of a certificate authority", fix)
    if not aged:
        fix = f"bring the server's new ca.crt here; there: {RENEW} --authority"
        _refuse_untimely(path, certificates[0], fix)
    return certificates[0]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(certificate)
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (x509.ExtensionNotFound, InvalidSignature, ValueError, TypeError):
        return False


def load_certificate(path: Path) -> x509.Certificate:
    """Read the first certificate of a file."""
    return _certificates(path)[0]


def _certificates(path: Path) -> list[x509.Certificate]:
    content = need_content(path, "name ca.crt of the server's folder")
    if b"PRIVATE KEY" in content:
        raise UserError(
            f"{path} holds a private key, which must not leave its machine", "name ca.crt"
        )
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise UserError(
            f"{path} is not a certificate", "name ca.crt of the server's folder"
        ) from error


def load_signer(folder: Path, path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the authority's private key; it must be that of the folder's `ca.crt`."""
    if not path.is_file():
        fix = "say where it is: --ca-key PATH (it may have been put on another disk or machine)"
        raise UserError(f"the authority's private key is not at {path}", fix)
    content = read_secret(path, f"make a new authority: {RENEW} --authority --new-key")
    try:
        signer = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        what = "is not a private key"
        if b"PRIVATE KEY" in content:
            what = "is a private key of another kind, such as a client's: not the authority's"
        raise UserError(f"{path} {what}", "name the authority's ca.key by --ca-key") from error
    known = load_authority(folder / "ca.crt", aged=True).public_key()
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != known:
        message = (
            f"{path} does not belong to {folder / 'ca.crt'}: it is the key of another federation"
        )
        raise UserError(message, "name the key that was made with this server's folder")
    return signer


def federation_of(authority: x509.Certificate) -> str:
    """Return the name of the federation that an authority signs for."""
    return str(authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return a fingerprint as `openssl x509 -fingerprint -sha256` prints it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def names_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a server's certificate is valid for."""
    known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in known.get_values_for_type(x509.IPAddress)]
    return [*known.get_values_for_type(x509.DNSName), *addresses]


def check_server(folder: Path, address: str) -> list[str]:
    """Refuse a server's certificates and keys if they are wrong; return warnings."""
    authority = load_authority(folder / "ca.crt")
    server = load_certificate(folder / "server.crt")
    again = f"{RENEW} {folder}"
    content = read_secret(folder / "server.key", f"{again} --authority --new-key")
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / 'server.key'} is not a private key", again) from error
    if key.public_key() != server.public_key():
        raise UserError("server.crt and server.key do not belong together", again)
    try:
        server.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError) as error:
        message = "server.crt was not signed by the authority of ca.crt beside it"
        raise UserError(message, f"bring the files of this federation back, or: {again}") from error
    _refuse_untimely(folder / "server.crt", server, again)
    if address not in names_of(server):
        names = ", ".join(names_of(server))
        message = f"server.crt is for {names}, not for {address} as server.toml says"
        raise UserError(message, f"{again} --server {address}")
    return _warnings(folder, authority, server)


def _warnings(folder: Path, authority: x509.Certificate, server: x509.Certificate) -> list[str]:
    """Say what is not wrong yet."""
    warnings = []
    if _ends_soon(server):
        warnings.append(f"warning: server.crt is {term_of(server)}: {RENEW} {folder}")
    if _ends_soon(authority):
        warnings.append(f"warning: ca.crt is {term_of(authority)}: {RENEW} {folder} --authority")
    if (folder / "ca.key").exists():
        warnings.append(
            "warning: ca.key lies in the server's folder, which does not need it; move it away"
        )
    return warnings


def term_of(certificate: x509.Certificate) -> str:
    """Say until when a certificate is valid, and whether it is time to renew it."""
    if has_expired(certificate):
        when = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        return f"has expired ({when}): renew it and restart the server"
    return f"{end_of(certificate)}{', renew it' if _ends_soon(certificate) else ''}"


def end_of(certificate: x509.Certificate) -> str:
    """Say until when a certificate is valid."""
    return f"good until {certificate.not_valid_after_utc:%Y-%m-%d}"


def has_expired(certificate: x509.Certificate) -> bool:
    return datetime.now(UTC) > certificate.not_valid_after_utc


def _ends_soon(certificate: x509.Certificate) -> bool:
    return bool(certificate.not_valid_after_utc - datetime.now(UTC) < SOON)


def _refuse_untimely(path: Path, certificate: x509.Certificate, fix: str) -> None:
    now = datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise UserError(f"{path} has expired: it was good until {end:%Y-%m-%d}", fix)
    if now < begin:
        clock = f"this machine's clock says {now:%Y-%m-%d}"
        raise UserError(f"{path} is good from {begin:%Y-%m-%d} only, and {clock}", "set the clock")
