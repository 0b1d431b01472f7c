"""What a client tells that does not come together with its server, on real sockets: the
cause, and what to do.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flwr.supercore.error import ApiErrorCode

from fedblocks.core.errors import UserError
from fedblocks.flower.client.causes import cause_of
from fedblocks.flower.client.fleet import Fleet
from fedblocks.flower.client.node import LOST
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.launch import free_port
from fedblocks.flower.keys.client_keys import make_client

from .fleet_stand_in import NODE, Answer, StandIn, standing_in

DAY = timedelta(days=1)


class Authority:
    """It signs whatever a test needs."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        builder = self._builder(self.name, self.key.public_key(), -DAY, DAY)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = builder.sign(self.key, hashes.SHA256()).public_bytes(
            serialization.Encoding.PEM
        )

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, begins: timedelta, ends: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder().subject_name(name).issuer_name(self.name).public_key(key)
        )
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now + begins).not_valid_after(now + ends)

    def server(
        self,
        folder: Path,
        names: Sequence[str] = ("127.0.0.1",),
        begins: timedelta = -DAY,
        ends: timedelta = DAY,
    ) -> ssl.SSLContext:
        """A server's side of TLS, with a certificate for these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        addresses = x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address(name)) for name in names]
        )
        builder = self._builder(subject, key.public_key(), begins, ends).add_extension(
            addresses, critical=False
        )
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        (folder / "s.crt").write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(pem))
        (folder / "s.key").write_bytes(key.private_bytes(pem, form, plain))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "s.crt", folder / "s.key")
        return context


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def cause(folder: Path, authority: Authority, server: str) -> UserError:
    """What a client of this folder tells when it cannot enter."""
    (folder / "ca.crt").write_bytes(authority.certificate)
    make_client(folder / "client.key", folder / "client.pub")
    host = ClientHost(federation="f", server=server, clients=(0,), data={})
    with pytest.raises(LOST) as raised:
        Fleet(host, folder).enter(None)
    error = cause_of(raised.value, host.server)
    assert error.fix
    return error


def refusal(folder: Path, authority: Authority, answer: Answer) -> UserError:
    """The same where the server answers something else than yes."""
    with standing_in(authority.server(folder)) as server:
        server.routes["activate-node"] = lambda _: answer
        return cause(folder, authority, f"127.0.0.1:{server.port}")


def test_a_client_that_fits_enters(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    make_client(tmp_path / "client.key", tmp_path / "client.pub")
    with standing_in(authority.server(tmp_path)) as server:
        host = ClientHost(federation="f", server=f"127.0.0.1:{server.port}", clients=(0,), data={})
        assert Fleet(host, tmp_path).enter(None) == NODE


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"begins": -2 * DAY, "ends": -DAY}, "certificate has expired"),
        ({"begins": DAY, "ends": 2 * DAY}, "not valid yet, by the clock of this machine"),
        ({"names": ["10.0.0.1"]}, "certificate is not for 127.0.0.1:"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_told(
    wrong: dict[str, object], text: str, tmp_path: Path, authority: Authority
) -> None:
    with standing_in(authority.server(tmp_path, **wrong)) as server:  # type: ignore[arg-type]
        assert text in cause(tmp_path, authority, f"127.0.0.1:{server.port}").message
        assert server.asked == []  # nothing was said to such a server


def test_another_authority_is_told(tmp_path: Path, authority: Authority) -> None:
    with standing_in(Authority().server(tmp_path)) as server:
        error = cause(tmp_path, authority, f"127.0.0.1:{server.port}")
    assert (
        "not signed by the authority that this client knows" in error.message
        and "ca.crt" in error.fix
    )


def test_a_server_without_tls_is_told(tmp_path: Path, authority: Authority) -> None:
    with standing_in() as server:
        assert (
            "does not speak TLS" in cause(tmp_path, authority, f"127.0.0.1:{server.port}").message
        )


def test_a_server_that_is_not_there_is_told(tmp_path: Path, authority: Authority) -> None:
    assert "does not answer" in cause(tmp_path, authority, f"127.0.0.1:{free_port()}").message
    assert (
        "name of no.such.host.invalid:1 is not known"
        in cause(tmp_path, authority, "no.such.host.invalid:1").message
    )


@pytest.mark.parametrize("ahead", [30, -400])
def test_clocks_that_differ_are_told_with_the_seconds(
    ahead: int, tmp_path: Path, authority: Authority
) -> None:
    server_time = time.time() - ahead
    way = "ahead of" if ahead > 0 else "behind"
    isoformat = datetime.fromtimestamp(server_time, UTC).isoformat()
    for sent in (server_time, isoformat):
        body = json.dumps({"reason": "clock", "server_time": sent}).encode()
        error = refusal(tmp_path, authority, (401, body, {}))
        seconds = int(error.message.split(" is ")[1].split()[0])
        assert f"{way} the server's" in error.message and abs(seconds - abs(ahead)) <= 5
    error = refusal(tmp_path, authority, (401, b"", {"date": formatdate(server_time, usegmt=True)}))
    assert f"{way} the server's" in error.message  # a server that says no more than Flower does


@pytest.mark.parametrize("answer", [(404, b"", {}), (401, b"", {})])
def test_a_key_that_is_not_enrolled_is_told(
    answer: Answer, tmp_path: Path, authority: Authority
) -> None:
    error = refusal(tmp_path, authority, answer)
    assert "does not know the key of this client" in error.message and "enrolled" in error.fix


def test_a_key_that_another_client_uses_is_told(tmp_path: Path, authority: Authority) -> None:
    error = refusal(tmp_path, authority, (412, b'{"code": 2004, "detail": "no"}', {}))
    assert error.message == "the server says that a client with this key is connected already"
    assert "another machine uses a copy of this key" in error.fix


def test_another_version_of_flower_is_told(tmp_path: Path, authority: Authority) -> None:
    code = int(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE)
    body = json.dumps({"code": code, "detail": "SuperLink is 9.9"}).encode()
    error = refusal(tmp_path, authority, (412, body, {}))
    assert (
        "another version of Flower: SuperLink is 9.9" in error.message
        and "same version" in error.fix
    )


def test_an_answer_that_is_none_of_flowers_is_told(tmp_path: Path, authority: Authority) -> None:
    error = refusal(tmp_path, authority, (200, b"<html>welcome to our network</html>", {}))
    assert "does not understand" in error.message
    error = refusal(tmp_path, authority, (302, b"", {"location": "https://127.0.0.1:1/"}))
    assert "answers 302" in error.message  # and nothing is sent to where it points


def test_a_server_that_starts_is_told(tmp_path: Path, authority: Authority) -> None:
    assert "cannot serve at the moment" in refusal(tmp_path, authority, (503, b"", {})).message


@pytest.mark.parametrize(
    ("reason", "words"), [("disk", "its disk is nearly full"), ("quota", "within an hour")]
)
def test_a_server_that_takes_no_more_says_why(
    reason: str, words: str, tmp_path: Path, authority: Authority
) -> None:
    body = json.dumps({"reason": reason}).encode()
    assert words in refusal(tmp_path, authority, (503, body, {})).message


def test_after_a_kill_the_number_of_an_earlier_time_is_enough(tmp_path: Path) -> None:
    host = ClientHost(federation="f", server="127.0.0.1:1", clients=(0,), insecure=True, data={})

    def number(server: StandIn) -> int:
        return Fleet(
            host.model_copy(update={"server": f"127.0.0.1:{server.port}"}), tmp_path
        ).enter(NODE)

    with standing_in() as server:
        # Flower counts it as connected for a minute, and lets nobody else in meanwhile
        assert number(server) == NODE
        assert server.asked[:2] == ["send-node-heartbeat", "deactivate-node"]
        assert server.asked[-1] == "activate-node"
    with standing_in() as server:  # the same process, later
        fleet = Fleet(host.model_copy(update={"server": f"127.0.0.1:{server.port}"}), tmp_path)
        assert fleet.enter(fleet.enter(None)) == NODE and "deactivate-node" not in server.asked
    with standing_in() as server:  # of another server
        server.routes["send-node-heartbeat"] = lambda _: (401, b"", {})
        assert number(server) == NODE and server.asked[-1] == "activate-node"
