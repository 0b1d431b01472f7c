"""Certificates that a federation makes for itself: those of its own authority and of its server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedblocks.core.errors import UserError
from fedblocks.flower.keys.certificate_checks import load_authority, load_signer
from fedblocks.flower.keys.client_keys import CURVE
from fedblocks.flower.keys.private_files import PUBLIC, private_folder, write_private

AUTHORITY_YEARS, SERVER_YEARS = 10, 1  # that certificates are good for


def make_authority(folder: Path, federation: str = "federation", key: Path | None = None) -> None:
    """Make `ca.crt`, which everybody gets, and `ca.key`, which signs and is best kept on another
    machine.
    """
    secret = key or folder / "ca.key"
    if secret.exists():
        raise UserError(
            f"{secret} is there already: it may be another federation's",
            "name another file by --ca-key",
        )
    if not secret.parent.is_dir():
        private_folder(secret.parent)
    signer = ec.generate_private_key(CURVE)
    write_private(secret, _pem(signer))
    _write_authority(private_folder(folder) / "ca.crt", _named(federation), signer)


def renew_authority(folder: Path, key: Path) -> None:
    """Make a new `ca.crt` for the same authority: what the old one signed stays valid."""
    old = load_authority(folder / "ca.crt", aged=True)
    _write_authority(folder / "ca.crt", old.subject, load_signer(folder, key))


def replace_authority(folder: Path, federation: str, key: Path) -> None:
    """Replace an authority whose key was stolen; the old key is kept under another name."""
    if key.exists():
        key.replace(key.with_name(f"{key.name}.stolen"))
    make_authority(folder, federation, key)


def _write_authority(path: Path, name: x509.Name, signer: ec.EllipticCurvePrivateKey) -> None:
    builder = _certificate(name, name, signer.public_key(), _later(AUTHORITY_YEARS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    write_private(path, _text(builder.sign(signer, hashes.SHA256())), PUBLIC)


def make_server(
    folder: Path, hosts: list[str], ca_key: Path | None = None, years: int = SERVER_YEARS
) -> None:
    """Make `server.crt` and a new `server.key` for these names and addresses, signed by the
    folder's authority.
    """
    authority = load_authority(folder / "ca.crt")
    signer = load_signer(folder, ca_key or folder / "ca.key")
    key = ec.generate_private_key(CURVE)
    end = min(_later(years), authority.not_valid_after_utc)
    builder = _certificate(_named("fedblocks server"), authority.subject, key.public_key(), end)
    names = [_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    builder = builder.add_extension(constraints, critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(usage, critical=False)
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    builder = builder.add_extension(identifier, critical=False)
    write_private(folder / "server.key", _pem(key))
    write_private(folder / "server.crt", _text(builder.sign(signer, hashes.SHA256())), PUBLIC)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _text(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _later(years: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=365 * years)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(datetime.now(UTC) - timedelta(days=1)).not_valid_after(end)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
