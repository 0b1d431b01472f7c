"""A certificate that expires while its server runs is named as the cause, everywhere."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedblocks.flower.hosts import server_watch
from fedblocks.flower.hosts.expiry import CertificateWatch, ExpiredError
from fedblocks.flower.hosts.launch import free_port
from fedblocks.flower.hosts.running import check_running
from fedblocks.flower.hosts.server_watch import ServerWatch
from fedblocks.flower.hosts.status import status_of
from fedblocks.flower.keys import certificates as pki

from .key_folders import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, f"127.0.0.1:{free_port()}", free_port())


def sign_until(federation: Federation, end: datetime) -> None:
    """Replace server.crt by one that is good until then."""
    server = federation.server
    authority = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key(federation.secret.read_bytes(), None)
    old = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    builder = (
        x509.CertificateBuilder()
        .issuer_name(authority.subject)
        .subject_name(old.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=2))
        .not_valid_after(end)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    (server / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


@contextmanager
def answering(federation: Federation) -> Iterator[None]:
    """Something that answers in the place of the SuperLink, with the certificate as it is now."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(federation.server / "server.crt", federation.server / "server.key")
    address = ("127.0.0.1", federation.host.inner_port)
    with ThreadingHTTPServer(address, BaseHTTPRequestHandler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def ago() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=1)


def test_a_server_whose_certificate_has_expired_is_not_said_to_be_away(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_until(federation, ago())
    said: list[str] = []
    with answering(federation):
        with pytest.raises(ExpiredError, match="has expired: renew it and restart") as caught:
            check_running(federation.server)
        assert "federation renew" in caught.value.fix and "stop the server" in caught.value.fix
        own, certificate, *_ = status_of(federation.server)
        monkeypatch.setattr(server_watch, "LOOK", -1.0)
        watch = ServerWatch(federation.host, federation.server, said.append)
        watch.look()
        watch.look()
    assert "running, but" in str(own["status"]) and "has expired" in str(own["status"])
    assert "renew it and restart" in str(certificate["status"])
    assert "good until" not in str(certificate["status"])
    assert len(said) == 1 and "has expired: renew it and restart" in said[0]


def test_a_certificate_that_was_renewed_is_used_after_a_restart_only(
    federation: Federation,
) -> None:
    sign_until(federation, ago())
    with answering(federation):
        pki.make_server(federation.server, ["127.0.0.1"], federation.secret, 1)
        with pytest.raises(ExpiredError, match="still uses a certificate that has expired") as said:
            check_running(federation.server)
    assert said.value.fix.startswith("stop the server and start it again")


def test_a_running_server_tells_once_that_its_certificate_has_expired(
    federation: Federation,
) -> None:
    said: list[str] = []
    sign_until(federation, datetime.now(UTC) + timedelta(days=1))
    early = CertificateWatch(federation.server, said.append)
    early.look()
    assert said == []
    sign_until(federation, ago())
    watch = CertificateWatch(federation.server, said.append)
    watch.look()
    watch.look()
    assert len(said) == 1 and "has expired: renew it and restart" in said[0]
