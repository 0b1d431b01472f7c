"""Certificates and keys of a federation: its own authority, a certificate for the server, a key for every client."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 5  # that certificates are good for
CURVE = ec.SECP384R1()  # Flower takes keys on the NIST curves


def make_authority(folder: Path) -> None:
    """`ca.crt`, which everybody is given, and `ca.key`, which signs and stays."""
    key = ec.generate_private_key(CURVE)
    builder = _certificate("fedblocks federation", "fedblocks federation", key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write(folder / "ca.key", _pem(key))
    _write(folder / "ca.crt", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)


def make_server(folder: Path, hosts: list[str]) -> None:
    """`server.crt` and `server.key` for these names and addresses, signed by the authority in the same folder."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(CURVE)
    builder = _certificate("fedblocks server", "fedblocks federation", key.public_key())
    names = [_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(usage, critical=False)
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    builder = builder.add_extension(identifier, critical=False)
    _write(folder / "server.key", _pem(key))
    _write(folder / "server.crt", builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)


def make_client(private: Path, public: Path) -> None:
    """A client's own key, and the public half that the server enrols."""
    key = ec.generate_private_key(CURVE)
    openssh = serialization.PrivateFormat.OpenSSH
    _write(private, key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption()))
    _write(public, _public(key.public_key()) + b"\n", 0o644)


def public_key(file: Path) -> bytes:
    """The public half of a client's key as Flower knows it."""
    key = serialization.load_ssh_public_key(file.read_bytes().strip())
    return bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def _public(key: ec.EllipticCurvePublicKey) -> bytes:
    return bytes(key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _certificate(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=365 * YEARS))


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file that is never readable by others for a moment, where it holds a secret."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
