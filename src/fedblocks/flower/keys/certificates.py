"""Certificates and keys of a federation: its own authority, a certificate for the
server, a key for every client.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedblocks.core.errors import UserError
from fedblocks.flower.keys.private_files import PUBLIC, private_folder, refuse_open, write_private

AUTHORITY_YEARS, SERVER_YEARS = 10, 1  # that certificates are good for
SOON = timedelta(days=30)  # before its end a certificate is warned of
CURVE = ec.SECP384R1()  # Flower takes keys on the NIST curves
RENEW = "fedblocks federation renew"


def make_authority(folder: Path, federation: str = "federation", key: Path | None = None) -> None:
    """Make `ca.crt`, which everybody gets, and `ca.key`, which signs and is best kept
    on another machine.
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
    old, signer = load_authority(folder / "ca.crt", aged=True), load_signer(folder, key)
    _write_authority(folder / "ca.crt", old.subject, signer)


def replace_authority(folder: Path, federation: str, key: Path) -> None:
    """Replace an authority whose key was stolen; the old key is kept under another name."""
    if key.exists():
        key.replace(key.with_name(f"{key.name}.stolen"))
    make_authority(folder, federation, key)


def _write_authority(path: Path, name: x509.Name, signer: ec.EllipticCurvePrivateKey) -> None:
    builder = _certificate(name, name, signer.public_key(), _later(AUTHORITY_YEARS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False
    )
    write_private(path, _text(builder.sign(signer, hashes.SHA256())), PUBLIC)


def make_server(
    folder: Path, hosts: list[str], ca_key: Path | None = None, years: int = SERVER_YEARS
) -> None:
    """Make `server.crt` and a new `server.key` for these names and addresses, signed by
    the folder's authority.
    """
    authority, signer = (
        load_authority(folder / "ca.crt"),
        load_signer(folder, ca_key or folder / "ca.key"),
    )
    key = ec.generate_private_key(CURVE)
    end = min(_later(years), authority.not_valid_after_utc)
    builder = _certificate(_named("fedblocks server"), authority.subject, key.public_key(), end)
    names = [_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(usage, critical=False)
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    builder = builder.add_extension(identifier, critical=False)
    write_private(folder / "server.key", _pem(key))
    write_private(folder / "server.crt", _text(builder.sign(signer, hashes.SHA256())), PUBLIC)


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
    return (
        bytes(key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
        + b"\n"
    )


def public_key(file: Path) -> bytes:
    """Read the public half of a client's key, as Flower knows it."""
    key = serialization.load_ssh_public_key(file.read_bytes().strip())
    return bytes(
        key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def load_authority(path: Path, aged: bool = False) -> x509.Certificate:
    """Read an authority's certificate, the first of the file; with `aged`, even one
    that has expired.
    """
    certificates = _certificates(path)
    if not all(map(_is_authority, certificates)):
        fix = "take ca.crt of the server's folder, not server.crt"
        raise UserError(f"{path} is a certificate, but not that of a certificate authority", fix)
    if not aged:
        _refuse_untimely(
            path, certificates[0], f"bring the server's new ca.crt here; there: {RENEW} --authority"
        )
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
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}", "name a file with a certificate"
        ) from error
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
    refuse_open(path, f"make a new authority: {RENEW} --authority --new-key")
    try:
        signer = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} is not a private key", "name the authority's ca.key by --ca-key"
        ) from error
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
    authority, server = load_authority(folder / "ca.crt"), load_certificate(folder / "server.crt")
    again = f"{RENEW} {folder}"
    refuse_open(folder / "server.key", f"{RENEW} {folder} --authority --new-key")
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    if key.public_key() != server.public_key():
        raise UserError("server.crt and server.key do not belong together", again)
    try:
        server.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError) as error:
        message = "server.crt was not signed by the authority of ca.crt beside it"
        raise UserError(message, f"bring the files of this federation back, or: {again}") from error
    _refuse_untimely(folder / "server.crt", server, again)
    if address not in names_of(server):
        message = (
            f"server.crt is for {', '.join(names_of(server))}, not for {address} as "
            f"server.toml says"
        )
        raise UserError(message, f"{again} --server {address}")
    ways = {"server.crt": (server, again), "ca.crt": (authority, f"{again} --authority")}
    warnings = [
        f"warning: {name} is {term_of(own)}: {fix}"
        for name, (own, fix) in ways.items()
        if _ends_soon(own)
    ]
    if (folder / "ca.key").exists():
        warnings.append(
            "warning: ca.key lies in the server's folder, which does not need it; move it away"
        )
    return warnings


def term_of(certificate: x509.Certificate) -> str:
    """Say until when a certificate is valid, and whether it is time to renew it."""
    advice = ", renew it" if _ends_soon(certificate) else ""
    return f"good until {certificate.not_valid_after_utc:%Y-%m-%d}{advice}"


def _ends_soon(certificate: x509.Certificate) -> bool:
    return bool(certificate.not_valid_after_utc - datetime.now(UTC) < SOON)


def _refuse_untimely(path: Path, certificate: x509.Certificate, fix: str) -> None:
    now, begin, end = (
        datetime.now(UTC),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    if now > end:
        raise UserError(f"{path} has expired: it was good until {end:%Y-%m-%d}", fix)
    if now < begin:
        message = (
            f"{path} is good from {begin:%Y-%m-%d} only, and this machine's clock says "
            f"{now:%Y-%m-%d}"
        )
        raise UserError(message, "set the clock")


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
