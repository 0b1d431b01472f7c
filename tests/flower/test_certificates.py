"""Certificates of a federation, before they are used, and who may read what lies in its folders."""

from __future__ import annotations

import os
import shutil
import ssl
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="comes with the extra flower")

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.flower.client import host as client_host
from fedblocks.flower.hosts.federation import new_run
from fedblocks.flower.hosts.folders import ServerHost, address_of
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import join, make_server_folder, set_up
from fedblocks.flower.keys import certificate_checks as checks
from fedblocks.flower.keys import certificates as pki
from fedblocks.flower.keys import key_table, renewal, rotation
from fedblocks.flower.keys import private_files as private

from .key_folders import AT, Federation, Switch, mode, off
from .test_hosts import shaken

MACHINE = "fl.example.org"


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


@pytest.fixture
def careless() -> Iterator[None]:
    """A user whose files are everybody's unless somebody takes care."""
    before = os.umask(0)
    yield
    os.umask(before)


def travel(switch: Switch, days: float) -> None:
    """Let so many days pass, as far as certificates are concerned."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=days)

    for module in (checks, pki):
        switch.setattr(module, "datetime", Later)


def trusts(ca: Path, server: Path, name: str = MACHINE) -> bool:
    """Whether a client with this ca.crt shakes hands with this server."""
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(server / "server.crt", server / "server.key")
    return shaken(inside, ssl.create_default_context(cafile=str(ca)), name)


def test_a_server_runs_without_the_key_of_its_authority_and_is_warned_of_it(
    federation: Federation,
) -> None:
    assert federation.secret == federation.base / "f" / "authority" / "ca.key"
    secret = federation.secret.read_bytes()
    shutil.rmtree(federation.secret.parent)
    assert checks.check_server(federation.server, MACHINE) == []
    (federation.server / "ca.key").write_bytes(secret)
    assert (
        "ca.key lies in the server's folder" in checks.check_server(federation.server, MACHINE)[0]
    )


def test_the_key_of_the_authority_goes_where_the_operator_says_but_not_into_the_servers_folder(
    tmp_path: Path,
) -> None:
    stick = tmp_path / "stick"
    stick.mkdir()
    assert make_server_folder(tmp_path / "f", MACHINE, ca_key=stick / "ca.key") == stick / "ca.key"
    assert mode(stick / "ca.key") == 0o600 and [
        path.name for path in (tmp_path / "f").iterdir()
    ] == ["server"]
    with pytest.raises(UserError, match="does not belong in the server's folder"):
        make_server_folder(
            tmp_path / "g", MACHINE, ca_key=tmp_path / "g" / "server" / "x" / ".." / "ca.key"
        )
    with pytest.raises(UserError, match="may be another federation's"):
        make_server_folder(tmp_path / "h", MACHINE, ca_key=stick / "ca.key")


@pytest.mark.parametrize("defended", [True, False])
def test_everything_is_its_owners_alone_even_for_a_careless_user(
    defended: bool, tmp_path: Path, careless: None, monkeypatch: Switch
) -> None:
    if not defended:
        off(monkeypatch, os, "fchmod")
        off(monkeypatch, Path, "chmod")
        for name, bits in (("FOLDER", 0o777), ("OTHERS", 0)):
            monkeypatch.setattr(private, name, bits)
    federation = Federation(tmp_path / "all")
    folder = federation.enrolled("one")
    rotation.begin(folder)
    key_table.rotate(federation.server, folder / "one.json")
    rotation.finish(folder)
    set_up(tmp_path / "all" / "local", "127.0.0.1", {"a": [0], "b": [1]})
    new_run(Config.of(RUN), tmp_path / "all" / "run", [])
    paths = [path for path in (tmp_path / "all").rglob("*") if path.parent.name != "checkpoints"]
    open_folders = [path for path in paths if path.is_dir() and mode(path) & 0o077]
    secrets = [path for path in paths if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert len(secrets) == 8 and {path.suffix for path in secrets} == {".key", ".old"}
    assert (open_folders == []) is defended
    assert not defended or [path for path in secrets if mode(path) != 0o600] == []


def test_a_secret_is_its_owners_from_its_first_byte_and_what_is_public_is_everybodys(
    tmp_path: Path, careless: None, monkeypatch: Switch
) -> None:
    born, settle = [], os.fchmod

    def note(descriptor: int, bits: int) -> None:
        born.append(os.fstat(descriptor).st_mode & 0o777)
        settle(descriptor, bits)

    monkeypatch.setattr(os, "fchmod", note)
    os.umask(0)
    private.write_private(tmp_path / "secret", b"x")
    os.umask(0o077)
    private.write_private(tmp_path / "public", b"x", private.PUBLIC)
    assert born == [0o600, 0o600] and (mode(tmp_path / "secret"), mode(tmp_path / "public")) == (
        0o600,
        0o644,
    )


RUN: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits", "clients": 2},
    "net": {"name": "mlp"},
    "method": {"name": "fedper"},
}


def test_what_processes_write_is_their_owners_alone(tmp_path: Path, careless: None) -> None:
    with ProcessGroup(tmp_path / "logs", {}) as processes:
        code = (
            f"import os; os.mkdir({str(tmp_path / 'state')!r}); "
            f"open({str(tmp_path / 'flower.db')!r}, 'w')"
        )
        processes.start("one", [sys.executable, "-c", code]).wait()
        modes = {
            path.name: mode(path) for path in (tmp_path, *tmp_path.rglob("*")) if path != tmp_path
        }
    assert modes == {"logs": 0o700, "one.log": 0o600, "state": 0o700, "flower.db": 0o600}


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("bits", [0o640, 0o604])
def test_a_key_that_others_can_read_is_not_used(
    bits: int, defended: bool, federation: Federation, monkeypatch: Switch
) -> None:
    folder = federation.enrolled("one")
    if not defended:
        off(monkeypatch, private, "refuse_open")
    for secret in (folder / "client.key", federation.server / "server.key", federation.secret):
        secret.chmod(bits)
    for use in (
        lambda: client_host.check_client(folder),
        lambda: checks.check_server(federation.server, MACHINE),
        lambda: renewal.renew(federation.server, federation.secret, [], 1, False, False),
    ):
        with (
            pytest.raises(UserError, match="others on this machine can read")
            if defended
            else nullcontext()
        ):
            use()


def test_a_certificate_that_ends_soon_is_warned_of_and_one_that_has_ended_is_refused(
    federation: Federation, monkeypatch: Switch
) -> None:
    travel(monkeypatch, 365 - 31)
    assert checks.check_server(federation.server, MACHINE) == []
    travel(monkeypatch, 365 - 29)
    (said,) = checks.check_server(federation.server, MACHINE)
    assert said.startswith("warning: server.crt is good until 20") and "renew it" in said
    travel(monkeypatch, 366)
    with pytest.raises(UserError, match=r"server.crt has expired: it was good until 20.*"):
        checks.check_server(federation.server, MACHINE)
    travel(monkeypatch, 3651)
    with pytest.raises(UserError, match=r"ca.crt has expired"):
        join(federation.base / "late", AT, federation.server / "ca.crt", "late", [0])
    travel(monkeypatch, -2)
    with pytest.raises(UserError, match="this machine's clock says"):
        join(federation.base / "early", AT, federation.server / "ca.crt", "early", [0])


def test_certificates_of_another_federation_are_told_apart(
    federation: Federation, tmp_path: Path
) -> None:
    other = Federation(tmp_path / "other")
    with pytest.raises(UserError, match="it is the key of another federation"):
        renewal.renew(federation.server, other.secret, [], 1, False, False)
    shutil.copy(other.server / "ca.crt", federation.server / "ca.crt")
    with pytest.raises(UserError, match=r"not signed by the authority of ca\.crt beside it"):
        checks.check_server(federation.server, MACHINE)
    shutil.copy(other.server / "server.key", federation.server / "server.key")
    with pytest.raises(UserError, match="do not belong together"):
        checks.check_server(federation.server, MACHINE)


def test_a_server_that_got_another_name_is_told_so(federation: Federation) -> None:
    with pytest.raises(
        UserError, match=r"is for fl.example.org, localhost, 127.0.0.1, not for new.example.org"
    ) as said:
        checks.check_server(federation.server, "new.example.org")
    assert said.value.fix.endswith("--server new.example.org")


def test_only_an_authority_is_believed_by_a_client(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "noise").write_text("hello")
    wrong = {
        federation.server / "server.crt": "not that of a certificate authority",
        federation.server / "server.key": "holds a private key",
        tmp_path / "noise": "is not a certificate",
        tmp_path / "nothing": "No such file",
    }
    for path, said in wrong.items():
        with pytest.raises(UserError, match=said):
            join(tmp_path / "one", AT, path, "one", [0])
    assert not (tmp_path / "one").exists()


def test_a_renewed_certificate_is_believed_by_clients_as_they_are(
    federation: Federation, monkeypatch: Switch
) -> None:
    held = shutil.copy(federation.server / "ca.crt", federation.base / "held.crt")
    before = (federation.server / "server.key").read_bytes()
    said = renewal.renew(federation.server, federation.secret, ["two.example.org"], 3, False, False)
    assert (
        "server.crt was good until" in said[0] and mode(federation.server / "server.key") == 0o600
    )
    assert (federation.server / "server.key").read_bytes() != before
    assert all(
        trusts(held, federation.server, name) for name in (MACHINE, "two.example.org", "127.0.0.1")
    )
    assert not trusts(held, federation.server, "three.example.org")
    renewal.renew(federation.server, federation.secret, [], 3, False, False)
    assert trusts(held, federation.server, "two.example.org")  # names stay
    travel(monkeypatch, 3 * 365 - 31)
    assert checks.check_server(federation.server, MACHINE) == []
    with pytest.raises(UserError, match="the authority's private key is not at"):
        renewal.renew(federation.server, federation.base / "nowhere", [], 1, False, False)


def test_no_certificate_outlives_its_authority(federation: Federation, monkeypatch: Switch) -> None:
    travel(monkeypatch, 30)
    renewal.renew(federation.server, federation.secret, [], 10, False, False)
    ends = [
        checks.load_certificate(federation.server / name).not_valid_after_utc
        for name in ("server.crt", "ca.crt")
    ]
    assert ends[0] == ends[1]


def test_a_renewed_authority_and_the_old_one_believe_each_others_certificates(
    federation: Federation,
) -> None:
    old = shutil.copytree(federation.server, federation.base / "old")
    renewal.renew(federation.server, federation.secret, [], 1, True, False)
    assert (old / "ca.crt").read_bytes() != (federation.server / "ca.crt").read_bytes()
    assert trusts(old / "ca.crt", federation.server) and trusts(federation.server / "ca.crt", old)


def test_after_a_theft_neither_authority_believes_the_other(federation: Federation) -> None:
    old = shutil.copytree(federation.server, federation.base / "old")
    renewal.renew(federation.server, federation.secret, [], 1, True, True)
    assert not trusts(old / "ca.crt", federation.server) and not trusts(
        federation.server / "ca.crt", old
    )
    assert trusts(federation.server / "ca.crt", federation.server)
    assert checks.check_server(federation.server, MACHINE) == []
    both = federation.base / "both.crt"
    both.write_bytes((federation.server / "ca.crt").read_bytes() + (old / "ca.crt").read_bytes())
    assert trusts(both, federation.server) and trusts(both, old) and checks.load_authority(both)


@pytest.mark.parametrize(
    "text",
    [
        "http://x:1",
        "a b:1",
        "x",
        "x:0",
        "x:99999",
        "x:y",
        "x:１",
        ":8443",
        "x/y:1",
        "-x:1",
        "[::1]:8443",
        "x:1:2",
    ],
)
def test_what_names_no_machine_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"does not name a machine|has no port"):
        address_of(text)


def test_a_server_folder_is_not_made_over_another(federation: Federation) -> None:
    before = ServerHost.read(federation.server)
    with pytest.raises(UserError, match="is not empty"):
        make_server_folder(federation.base / "f", "other.example.org")
    assert ServerHost.read(federation.server) == before and before.federation == "f"
