"""Keys of a federation: made on clients, enrolled by their public halves, revoked,
rotated, renewed.
"""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="comes with the extra flower")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import setup
from fedblocks.flower.hosts.folders import ClientHost, ServerHost
from fedblocks.flower.hosts.setup import join
from fedblocks.flower.keys import client_keys, key_table, rotation
from fedblocks.flower.keys import public_keys as keys

from .key_folders import AT, Federation, Switch, mode, off, own


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def test_a_client_makes_its_key_and_the_server_learns_the_public_half_only(
    federation: Federation,
) -> None:
    folder = federation.enrolled("one", 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca.crt",
        "client.key",
        "client.toml",
        "one.pub",
    ]
    assert ClientHost.read(folder).federation == "f" and ClientHost.read(folder).clients == (3,)
    assert federation.host.clients == {"one": (3,)} and federation.key("one") == own(folder)
    secret = (folder / "client.key").read_bytes()
    held = {path: path.read_bytes() for path in federation.server.rglob("*") if path.is_file()}
    assert [path.name for path, content in held.items() if b"PRIVATE KEY" in content] == [
        "server.key"
    ]
    assert all(secret not in content for content in held.values())


def test_a_private_key_is_not_taken_for_a_public_one(
    federation: Federation, tmp_path: Path
) -> None:
    folder = federation.joined("one")
    (tmp_path / "wrong.pub").write_bytes((folder / "client.key").read_bytes())
    with pytest.raises(UserError, match="is a private key, which must not leave its machine"):
        key_table.enrol(federation.server, tmp_path / "wrong.pub", [0])
    with pytest.raises(UserError, match="holds a private key"):
        join(tmp_path / "two", AT, federation.secret, "two", [1])
    assert list((federation.server / "clients").iterdir()) == [] and not (tmp_path / "two").exists()


@pytest.mark.parametrize("replaces", [False, True])
def test_a_clients_own_key_given_in_place_of_the_public_half_is_named_and_not_stored(
    replaces: bool, federation: Federation
) -> None:
    folder = federation.enrolled("one")
    secret = folder / "client.key"
    with pytest.raises(UserError) as refused:
        if replaces:
            key_table.replace(federation.server, "one", secret)
        else:
            key_table.enrol(federation.server, secret, [1])
    assert refused.value.message == (
        f"{secret} is a private key, which must not leave its machine; it was not stored"
    )
    assert refused.value.fix == (
        "name NAME.pub, which lies beside it; if this is a copy from a client's machine, delete it "
        "and let the client make a new key: fedblocks federation rotate FOLDER"
    )
    held = [path.read_bytes() for path in federation.server.rglob("*") if path.is_file()]
    assert len(held) > 3 and all(secret.read_bytes() not in content for content in held)


def on_curve(curve: ec.EllipticCurve) -> bytes:
    return client_keys.public_text(ec.generate_private_key(curve).public_key())


def of_another_kind() -> bytes:
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a public key"),
        (b"ecdsa-sha2-nistp384 AAAA", "is not a public key"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "is not a public key"),
        (b"x" * 20_000, "is too large for a public key"),
        (on_curve(ec.SECP256R1()), "on the curve secp256r1, not on secp384r1"),
        (of_another_kind(), "of another kind"),
    ],
    # keys are random
    ids=["empty", "cut short", "certificate", "too large", "another curve", "another kind"],
)
def test_what_is_no_key_of_the_right_kind_is_refused(
    content: bytes, said: str, federation: Federation, tmp_path: Path
) -> None:
    (tmp_path / "one.pub").write_bytes(content)
    with pytest.raises(UserError, match=said):
        key_table.enrol(federation.server, tmp_path / "one.pub", [0])
    assert federation.host.clients == {} and list((federation.server / "clients").iterdir()) == []


TRICKS = [
    "../x",
    "a/b",
    "..",
    ".hidden",
    "",
    "a b",
    "näme",
    "a\n",
    "-x",
    "x" * 41,
    "a.pub",
    "a\0b",
    "ａ",
]


@pytest.mark.parametrize("name", TRICKS)
def test_a_name_that_could_lead_elsewhere_is_refused(
    name: str, federation: Federation, tmp_path: Path
) -> None:
    folder = federation.enrolled("one")
    with pytest.raises(UserError, match="cannot be the name of a client's key"):
        join(tmp_path / "new", AT, federation.server / "ca.crt", name, [0])
    for change in (
        lambda: key_table.revoke(federation.server, name),
        lambda: key_table.replace(federation.server, name, folder / "one.pub"),
    ):
        with pytest.raises(UserError, match="cannot be the name"):
            change()
    text = (
        (federation.server / "server.toml")
        .read_text()
        .replace("one =", f'"{name!a}" ='.replace("'", ""), 1)
    )
    (federation.server / "server.toml").write_text(text)
    with pytest.raises(UserError, match=r"match pattern|not TOML"):
        ServerHost.read(federation.server)
    assert not (tmp_path / "new").exists()


def test_a_server_toml_that_is_not_toml_is_named_with_its_line(federation: Federation) -> None:
    path = federation.server / "server.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "[[[", *lines[1:]]))
    with pytest.raises(UserError) as caught:
        ServerHost.read(federation.server)
    assert caught.value.message.startswith(f"{path}:2: this is not TOML: ")
    assert caught.value.fix == "write tables as [name], and in them lines as name = value"


def test_without_the_look_at_names_a_key_would_land_elsewhere(
    federation: Federation, tmp_path: Path, monkeypatch: Switch
) -> None:
    off(monkeypatch, keys, "check_name", lambda name: name)
    off(monkeypatch, setup, "_client", lambda *_, **__: ClientHost.model_construct(federation="f"))
    with suppress(UserError):
        join(tmp_path / "new", AT, federation.server / "ca.crt", "../stolen", [0])
    assert (tmp_path / "stolen.pub").exists()


def test_names_keys_and_numbers_stand_for_one_client_each(
    federation: Federation, tmp_path: Path
) -> None:
    folder, other = federation.enrolled("one", 0), federation.joined("two", 1)
    (tmp_path / "three.pub").write_bytes((folder / "one.pub").read_bytes())
    (tmp_path / "one.pub").write_bytes((other / "two.pub").read_bytes())
    with pytest.raises(UserError, match="is enrolled already, as one") as known:
        key_table.enrol(federation.server, tmp_path / "three.pub", [1])
    assert known.value.fix.startswith("keep the name one")
    with pytest.raises(UserError, match="the name one is taken by another key"):
        key_table.enrol(federation.server, tmp_path / "one.pub", [1])
    with pytest.raises(UserError, match="client 0 is taken by the key one") as raised:
        key_table.enrol(federation.server, other / "two.pub", [0])
    assert raised.value.fix == "the first free number is 1"
    for numbers in ([], [1, 1], [-1]):
        with pytest.raises(UserError, match="say which clients"):
            key_table.enrol(federation.server, other / "two.pub", numbers)
    assert federation.host.clients == {"one": (0,)} and federation.key("one") == own(folder)
    for held in ({"one": (0,), "two": (0,)}, {"one": (-1,)}):  # by hand
        federation.host.model_copy(update={"clients": held}).write(tmp_path / "by-hand")
        with pytest.raises(UserError, match="is negative, or stands twice"):
            ServerHost.read(tmp_path / "by-hand")


def test_the_same_key_is_enrolled_again_for_other_numbers_only_if_the_operator_says_so(
    federation: Federation,
) -> None:
    folder = federation.enrolled("one", 0)
    since = federation.host.since
    with pytest.raises(UserError, match="one is enrolled already, for client 0") as raised:
        key_table.enrol(federation.server, folder / "one.pub", [5, 2], 1200)
    assert "--move" in raised.value.fix
    assert federation.host.clients == {"one": (0,)} and federation.host.examples == {}
    key_table.enrol(federation.server, folder / "one.pub", [5, 2], 1200, move=True)
    assert federation.host.clients == {"one": (2, 5)} and federation.host.examples == {"one": 1200}
    assert federation.host.since == since and since.keys() == {"one"}


@pytest.mark.parametrize("defended", [True, False])
def test_a_revoked_key_is_not_enrolled_again(
    defended: bool, federation: Federation, monkeypatch: Switch
) -> None:
    folder = federation.enrolled("one", 0)
    kept = key_table.revoke(federation.server, "one")
    assert (
        federation.host.clients == {} and not (federation.server / "clients" / "one.pub").exists()
    )
    assert kept.read_bytes() == (folder / "one.pub").read_bytes() and kept.parent.name == "revoked"
    if not defended:
        off(monkeypatch, key_table, "_refuse_revoked")
    with pytest.raises(UserError, match="was revoked or replaced") if defended else nullcontext():
        key_table.enrol(federation.server, (folder / "one.pub").rename(folder / "fresh.pub"), [0])
    assert federation.host.clients == ({} if defended else {"fresh": (0,)})
    with pytest.raises(UserError, match="no key is enrolled as one"):
        key_table.revoke(federation.server, "one")


def test_a_client_whose_key_was_stolen_comes_back_with_another(federation: Federation) -> None:
    folder = federation.enrolled("one", 0)
    stolen = key_table.revoke(federation.server, "one")
    (folder / "client.key").unlink()
    rotation.begin(folder)
    key_table.enrol(federation.server, folder / "one.pub", [0])
    assert (
        federation.host.clients == {"one": (0,)}
        and federation.key("one") == own(folder)
        and stolen.exists()
    )


def test_a_client_replaces_its_key_by_a_request_that_the_old_one_signed(
    federation: Federation,
) -> None:
    folder = federation.enrolled("one", 4)
    key_table.enrol(federation.server, folder / "one.pub", [4], 90)
    old = own(folder)
    new, request = rotation.begin(folder)
    assert (
        request is not None and own(folder) == old != new and mode(folder / rotation.NEW) == 0o600
    )
    # a second call makes no third key: the second may be enrolled
    assert rotation.begin(folder)[0] == new
    assert key_table.rotate(federation.server, request) == "one"
    assert federation.key("one") == new and federation.host.clients == {"one": (4,)}
    assert federation.host.examples == {"one": 90}
    assert rotation.finish(folder) == new == own(folder)
    assert mode(folder / "client.key") == mode(folder / rotation.OLD) == 0o600
    with pytest.raises(UserError, match="has no new key"):
        rotation.finish(folder)


def forged(federation: Federation, signer: Path, of: str = "f") -> Path:
    """A request to put a thief's key in the place of client one's."""
    thief = ec.generate_private_key(client_keys.CURVE)
    line = client_keys.public_text(thief.public_key()).decode().strip()
    words = {"federation": of, "name": "one", "old": federation.key("one"), "new": line}
    request = keys.RotationRequest(time=datetime.now(UTC), **words).sign(keys.read_private(signer))
    path = federation.base / "forged.json"
    path.write_text(request.model_dump_json())
    return path


@pytest.mark.parametrize("defended", [True, False])
def test_a_request_that_another_key_signed_is_refused(
    defended: bool, federation: Federation, monkeypatch: Switch
) -> None:
    victim, thief = federation.enrolled("one", 0), federation.enrolled("two", 1)
    if not defended:
        off(monkeypatch, keys.RotationRequest, "check_signature")
    with (
        pytest.raises(UserError, match="not signed by the key that is enrolled as one")
        if defended
        else nullcontext()
    ):
        key_table.rotate(federation.server, forged(federation, thief / "client.key"))
    assert (federation.key("one") == own(victim)) is defended


@pytest.mark.parametrize("word", ["federation", "name", "old", "new", "time", "signature"])
def test_a_request_in_which_a_word_was_changed_is_refused(
    word: str, federation: Federation
) -> None:
    folder = federation.enrolled("one", 0)
    federation.enrolled("two", 1)
    request = keys.read_request(rotation.begin(folder)[1].read_bytes(), "it")  # type: ignore[union-attr]
    other: dict[str, Any] = {
        "federation": "g",
        "name": "two",
        "old": federation.key("two"),
        "new": on_curve(client_keys.CURVE).decode(),
        "time": request.time + timedelta(seconds=1),
        "signature": "AAAA",
    }
    path = folder / "changed.json"
    path.write_text(request.model_copy(update={word: other[word]}).model_dump_json())
    with pytest.raises(UserError, match=r"not signed by|is for the federation|replaces the key"):
        key_table.rotate(federation.server, path)
    assert federation.key("one") == own(folder)


def test_a_request_for_another_federation_is_refused_though_the_key_is_the_same(
    federation: Federation,
) -> None:
    folder = federation.enrolled("one", 0)
    with pytest.raises(UserError, match='for the federation "g", and this one is "f"'):
        key_table.rotate(federation.server, forged(federation, folder / "client.key", of="g"))
    key_table.rotate(federation.server, forged(federation, folder / "client.key", of="f"))


def test_a_key_does_not_take_the_place_of_another_while_it_has_its_own(
    federation: Federation,
) -> None:
    folder, other = federation.enrolled("one", 0), federation.enrolled("two", 1)
    with pytest.raises(UserError, match="is enrolled already, as two"):
        key_table.replace(federation.server, "one", other / "two.pub")
    assert federation.key("one") == own(folder)


def test_a_folder_in_which_something_lies_is_not_joined_from(federation: Federation) -> None:
    folder = federation.joined("one")
    before = own(folder)
    with pytest.raises(UserError, match="is not empty"):
        federation.joined("one")
    assert own(folder) == before


def test_a_request_that_somebody_kept_brings_no_old_key_back(federation: Federation) -> None:
    folder = federation.enrolled("one", 0)
    path = rotation.begin(folder)[1]
    assert path is not None
    kept = path.read_bytes()
    key_table.rotate(federation.server, path)
    rotation.finish(folder)
    path.write_bytes(kept)
    with pytest.raises(UserError, match="replaces the key"):
        key_table.rotate(federation.server, path)
    assert federation.key("one") == own(folder)


@pytest.mark.parametrize("days", [31, -2])
def test_a_request_is_good_for_a_month(days: int, federation: Federation) -> None:
    folder = federation.enrolled("one", 0)
    path = forged(federation, folder / "client.key")
    request = keys.read_request(path.read_bytes(), path)
    late = request.model_copy(update={"time": datetime.now(UTC) - timedelta(days=days)})
    path.write_text(late.sign(keys.read_private(folder / "client.key")).model_dump_json())
    with pytest.raises(UserError, match="good for 30 days"):
        key_table.rotate(federation.server, path)


def test_a_lost_key_is_replaced_on_the_operators_word(federation: Federation) -> None:
    folder = federation.enrolled("one", 2)
    (folder / "client.key").unlink()
    new, request = rotation.begin(folder)
    assert request is None and own(folder) == new
    assert key_table.replace(federation.server, "one", folder / "one.pub") == "one"
    assert federation.key("one") == new and federation.host.clients == {"one": (2,)}
    assert len(list((federation.server / "clients" / "revoked").iterdir())) == 1


@pytest.mark.parametrize("defended", [True, False])
def test_two_who_enrol_at_once_lose_nobody(
    defended: bool, federation: Federation, monkeypatch: Switch
) -> None:
    folders = [federation.joined(name) for name in ("one", "two")]
    if not defended:
        off(monkeypatch, key_table, "locked", lambda folder: nullcontext())
    both, refuse = threading.Barrier(2), key_table._refuse_taken

    def meet(*words: Any) -> None:
        """Both have read server.toml, and neither has written it; with the lock one
        waits in vain.
        """
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5 if defended else 20)
        refuse(*words)

    off(monkeypatch, key_table, "_refuse_taken", meet)

    def enrol(number: int, folder: Path) -> None:
        with nullcontext() if defended else suppress(OSError):  # the other may have moved its draft
            key_table.enrol(federation.server, folder / f"{folder.name}.pub", [number])

    threads = [threading.Thread(target=enrol, args=pair) for pair in enumerate(folders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(federation.host.clients) == (2 if defended else 1)


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_key_or_a_configuration_keeps_nobody_waiting(
    federation: Federation, tmp_path: Path
) -> None:
    folder = federation.enrolled("one", 3)
    os.mkfifo(tmp_path / "two.pub")
    with pytest.raises(UserError, match=r"two\.pub: it is a named pipe"):
        key_table.enrol(federation.server, tmp_path / "two.pub", [4])
    (folder / "client.toml").unlink()
    os.mkfifo(folder / "client.toml")
    with pytest.raises(UserError, match=r"client\.toml: it is a named pipe"):
        ClientHost.read(folder)
