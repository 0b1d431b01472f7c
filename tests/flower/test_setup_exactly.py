"""Folders of machines as they are made: which files, with which settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.hosts import setup
from fedblocks.flower.hosts.folders import ClientHost, ServerHost
from fedblocks.flower.keys import certificate_checks as checks
from fedblocks.flower.keys import certificates as pki

from .key_folders import mode


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What certificates are asked for; none is made."""
    done: list[Any] = []
    monkeypatch.setattr(pki, "make_authority", lambda *what: done.append(what))
    monkeypatch.setattr(pki, "make_server", lambda *what: done.append(what))
    return done


@pytest.mark.parametrize(
    ("name", "federation"), [("ward", "ward"), ("my ward", "federation"), ("_w", "federation")]
)
@pytest.mark.parametrize(("years", "valid"), [(None, 1), (3, 3)])
def test_a_servers_folder_has_an_authority_beside_it_and_a_certificate(
    name: str,
    federation: str,
    years: int | None,
    valid: int,
    certificates: list[Any],
    tmp_path: Path,
) -> None:
    folder = tmp_path / name
    secret = setup.make_server_folder(folder, "fl.example.org", years=years)
    server = folder / "server"
    assert secret == folder / "authority" / "ca.key"
    assert certificates == [
        (server, federation, secret),
        (server, ["fl.example.org"], secret, valid),
    ]
    assert ServerHost.read(server) == ServerHost(
        federation=federation, address="fl.example.org", port=8443, inner_port=8444
    )
    for made in (folder, server, server / "clients"):
        assert mode(made) == 0o700


def test_a_folder_that_is_there_keeps_its_mode_and_the_key_goes_where_it_is_told(
    certificates: list[Any], tmp_path: Path
) -> None:
    folder, secret = tmp_path / "f", tmp_path / "usb" / "ca.key"
    folder.mkdir(mode=0o755)
    assert setup.make_server_folder(folder, "127.0.0.1", 55, 77, ca_key=secret) == secret
    assert mode(folder) == 0o755 and certificates[0] == (folder / "server", "f", secret)
    host = ServerHost.read(folder / "server")
    assert (host.port, host.inner_port, host.bind) == (55, 77, "127.0.0.1")
    inside = tmp_path / "g" / "server" / "ca.key"
    with pytest.raises(UserError, match="does not belong in the server's folder"):
        setup.make_server_folder(tmp_path / "g", "127.0.0.1", ca_key=inside)
    assert not (tmp_path / "g").exists()


def test_without_keys_there_is_no_certificate_and_only_on_this_machine(
    certificates: list[Any], tmp_path: Path
) -> None:
    setup.make_server_folder(tmp_path / "f", "127.0.0.1", insecure=True)
    assert certificates == [] and ServerHost.read(tmp_path / "f" / "server").insecure
    assert not (tmp_path / "f" / "server" / "clients").exists()
    with pytest.raises(UserError) as far:
        setup.make_server_folder(tmp_path / "g", "10.0.0.1", insecure=True)
    assert far.value.message.startswith("insecure: 10.0.0.1 is not this machine alone")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pki.make_authority(tmp_path / "ca", "ward")
    return tmp_path / "ca" / "ca.crt"


def test_whoever_joins_has_a_key_an_authority_and_settings_of_its_own(
    authority: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ann"
    folder.mkdir(mode=0o755)
    host = setup.join(folder, "fl.example.org:9", authority, "ann", [2, 0], device="cuda:1")
    assert host == ClientHost.read(folder) == ClientHost(
        federation="ward", name="ann", server="fl.example.org:9", clients=(0, 2),
        device="cuda:1", data=setup.EXAMPLE,
    )  # fmt: skip
    modes = {file.name: mode(file) for file in folder.iterdir()}
    assert modes == {"client.key": 0o600, "ann.pub": 0o644, "ca.crt": 0o644, "client.toml": 0o600}
    assert mode(folder) == 0o700
    assert (folder / "ca.crt").read_bytes() == authority.read_bytes()
    assert (folder / "client.toml").read_text().endswith(setup.HINT)


@pytest.mark.parametrize(
    ("name", "server", "numbers", "said"),
    [
        ("../x", "a:1", [0], "cannot be the name of a client's key"),
        ("ann", "a:0", [0], '"a:0" has no port'),
        ("ann", "a", [0], '"a" has no port'),
        ("ann", "a:1", [1, 1], "clients: numbers from 0, each once and in order"),
        ("ann", "a:1", [-1], "clients: numbers from 0, each once and in order"),
    ],
)
def test_what_is_wrong_with_a_joining_is_told_before_anything_is_made(
    name: str, server: str, numbers: list[int], said: str, authority: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as wrong:
        setup.join(tmp_path / "ann", server, authority, name, numbers)
    assert said in wrong.value.message and not (tmp_path / "ann").exists()


def test_an_authority_of_another_kind_is_not_joined(tmp_path: Path) -> None:
    pki.make_authority(tmp_path / "ca", "A name of a company")
    with pytest.raises(UserError, match="but not that of a federation of fedblocks"):
        setup.join(tmp_path / "ann", "a:1", tmp_path / "ca" / "ca.crt", "ann", [0])


@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize("insecure", [False, True])
def test_a_whole_federation_is_set_up_with_the_same_settings_for_all(
    pictures: bool, insecure: bool, tmp_path: Path
) -> None:
    held = {"ann": [0, 2], "bob": [1]}
    data = {"name": "digits"}
    made = setup.set_up(
        tmp_path / "f", "127.0.0.1", held, 55, 77, insecure=insecure, data=data, device="cuda",
        pictures=pictures,
    )  # fmt: skip
    folders = [tmp_path / "f" / name for name in ("server", "ann", "bob")]
    assert made == [str(folder) for folder in folders]
    host = ServerHost.read(folders[0])
    assert (host.port, host.inner_port, host.insecure) == (55, 77, insecure)
    assert host.clients == {"ann": (0, 2), "bob": (1,)}
    send = ("updates", "scores", "tags", *(["pictures"] if pictures else []))
    for name, folder in zip(held, folders[1:], strict=True):
        assert ClientHost.read(folder) == ClientHost(
            federation="f", name=name, server="127.0.0.1:55", clients=tuple(held[name]),
            insecure=insecure, data=data, device="cuda", allow=Allow(send=send),
        )  # fmt: skip
        assert (folder / "client.toml").read_text().endswith(setup.HINT)
    assert (folders[0] / "server.crt").exists() is not insecure
    if not insecure:
        ends = [checks.load_certificate(folders[0] / file) for file in ("server.crt", "ca.crt")]
        # both for ten years, 3650 days: nobody renews the certificates of one machine
        server, authority = (certificate.not_valid_after_utc for certificate in ends)
        begin = ends[1].not_valid_before_utc  # a day ago
        assert server == authority
        assert round((authority - begin) / timedelta(days=1)) == 3651


def test_names_of_nodes_have_three_digits() -> None:
    assert [setup.node_name(number) for number in (0, 12, 1234)] == [
        "client-000", "client-012", "client-1234"
    ]  # fmt: skip
