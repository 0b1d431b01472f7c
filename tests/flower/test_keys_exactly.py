"""Certificates, keys and requests for them at the edges of their times, and the files they are."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedblocks.core.errors import UserError
from fedblocks.flower.keys import certificate_checks as checks
from fedblocks.flower.keys import certificates as pki
from fedblocks.flower.keys import key_table, public_keys, renewal, rotation
from fedblocks.flower.keys import private_files as private

from .key_folders import Federation, mode

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OWN: Any = SimpleNamespace(not_valid_before_utc=BEGIN, not_valid_after_utc=END)


def set_clock(module: Any, now: datetime, switch: pytest.MonkeyPatch) -> None:
    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return now

    switch.setattr(module, "datetime", Fixed)


def days_of(own: x509.Certificate) -> int:
    return round((own.not_valid_after_utc - own.not_valid_before_utc) / timedelta(days=1))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


@pytest.mark.parametrize(
    ("now", "term", "refused"),
    [
        (BEGIN - SECOND, "good until 2026-03-01", "is good from 2026-01-01 only, and"),
        (BEGIN, "good until 2026-03-01", None),
        (END - timedelta(days=30), "good until 2026-03-01", None),
        (END - timedelta(days=30) + SECOND, "good until 2026-03-01, renew it", None),
        (END, "good until 2026-03-01, renew it", None),
        (END + SECOND, "has expired (2026-03-01 12:00 UTC): renew it and restart the server",
         "has expired: it was good until 2026-03-01"),
    ],
)  # fmt: skip
def test_a_certificate_is_good_from_its_first_second_to_its_last(
    now: datetime, term: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(checks, now, monkeypatch)
    assert checks.term_of(OWN) == term
    assert checks.has_expired(OWN) is (now > END)
    if refused is None:
        checks._refuse_untimely(Path("/f"), OWN, "fix")
    else:
        with pytest.raises(UserError) as untimely:
            checks._refuse_untimely(Path("/f"), OWN, "fix")
        assert untimely.value.message.startswith(f"/f {refused}")


@pytest.mark.parametrize("soon", [(), ("server",), ("ca",), ("server", "ca")])
@pytest.mark.parametrize("key", [True, False])
def test_what_is_not_wrong_yet_is_warned_of(
    soon: tuple[str, ...], key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_ends_soon", lambda own: own in soon)
    monkeypatch.setattr(checks, "term_of", lambda own: f"term of {own}")
    if key:
        (tmp_path / "ca.key").touch()
    warnings = [text.split()[1] for text in checks._warnings(tmp_path, "ca", "server")]  # type: ignore[arg-type]
    assert warnings == [*(f"{one}.crt" for one in soon), *(["ca.key"] if key else [])]


def test_certificates_say_what_they_are_for(federation: Federation) -> None:
    server = checks.load_certificate(federation.server / "server.crt")
    authority = checks.load_certificate(federation.server / "ca.crt")
    assert checks.names_of(server) == ["fl.example.org", "localhost", "127.0.0.1"]
    assert checks.federation_of(authority) == "f"
    find = lambda own, kind: own.extensions.get_extension_for_class(kind)
    for own, signs in ((server, False), (authority, True)):
        usage, basic = find(own, x509.KeyUsage), find(own, x509.BasicConstraints)
        assert usage.critical and basic.critical
        allowed = {name for name in ("digital_signature", "key_cert_sign", "crl_sign",
                   "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
                   if getattr(usage.value, name)}  # fmt: skip
        assert allowed == ({"key_cert_sign", "crl_sign"} if signs else {"digital_signature"})
        assert (basic.value.ca, basic.value.path_length) == (signs, 0 if signs else None)
    purpose = find(server, x509.ExtendedKeyUsage)
    assert [*purpose.value] == [ExtendedKeyUsageOID.SERVER_AUTH] and not purpose.critical
    known = find(authority, x509.SubjectKeyIdentifier)
    assert not known.critical and not find(server, x509.SubjectAlternativeName).critical
    issuer = find(server, x509.AuthorityKeyIdentifier)
    assert issuer.value.key_identifier == known.value.digest and not issuer.critical
    # a day ago, and for a year and for ten
    assert [days_of(own) for own in (server, authority)] == [366, 3651]
    modes = {
        name: mode(federation.server / name) for name in ("server.key", "server.crt", "ca.crt")
    }
    assert modes == {"server.key": 0o600, "server.crt": 0o644, "ca.crt": 0o644}


@pytest.mark.parametrize(("authority", "new_key"), [(False, False), (True, False), (True, True)])
def test_a_renewal_says_what_changed(
    authority: bool, new_key: bool, federation: Federation
) -> None:
    before = checks.load_certificate(federation.server / "ca.crt")
    lines = renewal.renew(federation.server, federation.secret, ["b.org"], 2, authority, new_key)
    ca, own = (checks.load_certificate(federation.server / f"{n}.crt") for n in ("ca", "server"))
    assert days_of(own) == 731
    assert (ca != before) is authority
    assert (ca.public_key() != before.public_key()) is new_key
    begins = [line.split(",")[0] for line in lines]
    first = [f"ca.crt is {checks.term_of(ca)} now"]
    if new_key:
        whose = "ca.crt is that of a new authority now; its SHA-256 fingerprint: "
        first = [whose + checks.fingerprint_of(ca)]
    assert begins[:-3][:1] == (first if authority else [])
    names = "fl.example.org, localhost, b.org, 127.0.0.1"
    assert sorted(lines[-2].removeprefix("it is for ").split(", ")) == sorted(names.split(", "))
    assert lines[-3].endswith(f"and is {checks.term_of(own)} now")
    restart = f"restart the server to use it: fedblocks federation server {federation.server}"
    assert lines[-1] == restart and federation.secret.with_name("ca.key.stolen").exists() is new_key


@pytest.mark.parametrize(
    ("age", "good"),
    [(timedelta(days=30) - SECOND, True), (timedelta(days=30), False), (timedelta(0), True),
     (timedelta(days=-1) + SECOND, True), (timedelta(days=-1), False)],
)  # fmt: skip
def test_a_request_for_a_new_key_is_good_for_thirty_days(
    age: timedelta, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(public_keys, BEGIN + age, monkeypatch)
    request = public_keys.RotationRequest(federation="f", name="a", old="x", new="y", time=BEGIN)
    if good:
        request.check_time()
    else:
        with pytest.raises(UserError, match=r"is of 2026-01-01, and good for 30 days"):
            request.check_time()


@pytest.mark.parametrize(("size", "fits"), [(10_000, True), (10_001, False)])
def test_a_file_with_a_public_key_is_small(size: int, fits: bool, tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_bytes(b"x" * size)
    if fits:
        assert len(public_keys.content_of(tmp_path / "a.pub")) == size
    else:
        with pytest.raises(UserError, match="is too large for a public key"):
            public_keys.content_of(tmp_path / "a.pub")


def test_a_rotation_is_begun_once_and_asked_for_in_lines_that_people_can_read(
    federation: Federation,
) -> None:
    folder = federation.enrolled("ann", 3)
    fingerprint, file = rotation.begin(folder)
    assert file == folder / "ann.json" and mode(file) == 0o644
    text = file.read_text()
    request = json.loads(text)
    assert text == json.dumps(request, indent=2, ensure_ascii=False)
    assert request["new"] == request["new"].strip() == (folder / "ann.pub").read_text().strip()
    assert request["old"] == federation.key("ann") and request["name"] == "ann"
    assert rotation.begin(folder)[0] == fingerprint  # the same new key
    assert mode(folder / "client.key.new") == 0o600 and mode(folder / "ann.pub") == 0o644
    old = (folder / "client.key").read_bytes()
    assert rotation.finish(folder) == fingerprint
    assert (folder / "client.key.old").read_bytes() == old and mode(folder / "client.key") == 0o600
    with pytest.raises(UserError, match="has no new key"):
        rotation.finish(folder)
    (folder / "client.key").unlink()
    assert rotation.begin(folder)[1] is None and (folder / "client.key").exists()
    lines = rotation.hand_in(folder)
    enrol = "  fedblocks federation enrol SERVER ann.pub"
    assert lines[2] == f"{enrol} --replace ann" and lines[4] == f"{enrol} --client 3"


def test_keys_stand_for_their_clients_in_order_and_keep_their_date(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(key_table, BEGIN, monkeypatch)
    for number, name in enumerate(("zoe", "ann")):
        file = federation.joined(name) / f"{name}.pub"
        key_table.enrol(federation.server, file, [9 - number, 3 + number], 7)
    set_clock(key_table, END, monkeypatch)
    ann = federation.base / "ann" / "ann.pub"
    with pytest.raises(UserError, match="ann is enrolled already, for client 4, 8"):
        key_table.enrol(federation.server, ann, [8])
    key_table.enrol(federation.server, ann, [8, 4], 0)
    rows = key_table.table(federation.server)
    assert [[row[k] for k in ("name", "clients", "examples", "since")] for row in rows] == [
        ["ann", "4, 8", 0, BEGIN.isoformat()], ["zoe", "3, 9", 7, BEGIN.isoformat()]
    ]  # fmt: skip
    key_table.enrol(federation.server, ann, [0], move=True)
    assert federation.host.clients["ann"] == (0,) and federation.host.examples["ann"] == 0
    for numbers in ([], [1, 1], [-1]):
        with pytest.raises(UserError, match="say which clients the key stands for, each once"):
            key_table.enrol(federation.server, ann, numbers, move=True)
    with pytest.raises(UserError) as taken:
        key_table.enrol(federation.server, ann, [5, 9, 3], move=True)
    # 0, 3 and 9 are used
    assert taken.value.message == "client 3 is taken by the key zoe"
    assert taken.value.fix == "the first free number is 1"
    new = federation.joined("new") / "new.pub"
    key_table.replace(federation.server, "zoe", new)
    zoe = federation.host
    assert zoe.since["zoe"] == END.isoformat() and zoe.clients["zoe"] == (3, 9)
    assert zoe.examples["zoe"] == 7
    kept = key_table.revoke(federation.server, "ann")
    host = federation.host
    assert [*host.clients] == [*host.examples] == [*host.since] == ["zoe"]
    assert kept.parent == federation.server / "clients" / "revoked" and mode(kept) == 0o644
    assert not (federation.server / "clients" / "ann.pub").exists()
    assert len(kept.stem.removeprefix("ann-")) == 43


def test_files_have_their_mode_whatever_lay_there_before(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / ".a.tmp").write_text("left by a kill")
        private.write_private(tmp_path / "a", b"1")
        private.write_private(tmp_path / "b", b"2", private.PUBLIC)
        folder = private.private_folder(tmp_path / "c" / "d")
        os.close(private.open_own(tmp_path / "e", os.O_RDWR))
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in "abe"] == [0o600, 0o644, 0o600]
    assert mode(folder) == 0o700 and not (tmp_path / ".a.tmp").exists()
    assert (tmp_path / "a").read_bytes() == b"1"
    for bits, is_open in ((0o600, False), (0o640, True), (0o604, True), (0o700, False)):
        (tmp_path / "a").chmod(bits)
        if is_open:
            with pytest.raises(UserError, match=f"mode {bits:04o}"):
                private.read_secret(tmp_path / "a", "fix")
        else:
            assert private.read_secret(tmp_path / "a", "fix") == b"1"


def test_a_federation_that_was_joined_is_not_joined_over(tmp_path: Path) -> None:
    private.refuse_filled(tmp_path)
    private.refuse_filled(tmp_path / "none")
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="is not empty"):
            private.refuse_filled(place)
    assert pki.AUTHORITY_YEARS == 10 and pki.SERVER_YEARS == 1
