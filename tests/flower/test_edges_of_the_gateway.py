"""Clocks, connections, bytes and shares at the gateway, one below a bound, at it and above."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedblocks.flower.gateway import connections, members
from fedblocks.flower.gateway.connections import ByteFlow, Connections, Quota
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.gateway.members import Members, Sender
from fedblocks.flower.keys import public_keys
from fedblocks.flower.keys.client_keys import public_key

from .key_folders import Federation
from .test_keys_exactly import set_clock

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    own = Federation(tmp_path_factory.mktemp("gateway"))
    own.enrolled("ann")
    own.joined("bob", 1)
    return own


def signed(folder: Path, sent: str) -> dict[bytes, bytes]:
    key = public_keys.read_private(folder / "client.key")
    signature = key.sign(sent.encode(), ec.ECDSA(hashes.SHA256()))
    claimed = b64encode(public_key(folder / f"{folder.name}.pub"))
    return {members.KEY: claimed, members.TIME: sent.encode(),
            members.SIGNATURE: b64encode(signature)}  # fmt: skip


@pytest.mark.parametrize(
    ("age", "right"),
    [(0.0, True), (-4.9, True), (-5.0, False), (304.9, True), (305.0, False)],
)
def test_a_clock_may_be_five_seconds_ahead_and_five_minutes_behind(
    age: float, right: bool, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(members, NOW + timedelta(seconds=age), monkeypatch)
    headers = signed(federation.base / "ann", NOW.isoformat())
    sender = Members(federation.server).check(headers)
    assert sender == Sender("ann", headers[members.KEY], right)


def test_nobody_comes_in_without_an_enrolled_key_and_its_signature(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(members, NOW, monkeypatch)
    own = Members(federation.server)
    good = signed(federation.base / "ann", NOW.isoformat())
    bob = signed(federation.base / "bob", NOW.isoformat())
    wrong: list[Any] = [bob, {}, {**good, members.SIGNATURE: bob[members.SIGNATURE]},
             {**good, members.KEY: bob[members.KEY]}, {**good, members.SIGNATURE: b"?"},
             {**good, members.TIME: b"2026-01-01T12:00:01+00:00"},
             signed(federation.base / "ann", "2026-01-01T12:00:00"),
             signed(federation.base / "ann", "no time")]  # fmt: skip
    assert own.check(good) is not None
    assert [own.check(headers) for headers in wrong] == [None] * len(wrong)


def test_key_files_are_looked_at_once_a_second_and_the_list_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(members.time, "monotonic", lambda: now[0])
    federation = Federation(tmp_path)
    folder = federation.enrolled("ann")
    own = Members(federation.server)
    sent = datetime.now(UTC).isoformat()
    inside = lambda: own.check(signed(folder, sent)) is not None
    assert inside()
    file = federation.server / "clients" / "ann.pub"
    content = file.read_bytes()
    file.unlink()
    seen = []
    for moment in (100.5, 101.0, 101.1):
        now[0] = moment
        seen.append(inside())
    assert seen == [True, True, False]
    file.write_bytes(content)
    now[0] = 102.0
    assert not inside()
    now[0] = 102.2
    assert inside()
    (federation.server / "server.toml").write_text("broken [")
    assert not inside() and own._list is None
    status = file.stat()
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    assert members.stamp(file) == stamp and members.stamp(tmp_path / "none") is None


class Task:
    """A connection that knows whether it was ended, and who is told of its end."""

    def __init__(self) -> None:
        self.ended, self.told = False, list[Any]()

    def add_done_callback(self, leave: Any) -> None:
        self.told.append(leave)

    def cancel(self) -> None:
        self.ended = True


def test_members_have_places_of_their_own_up_to_a_number() -> None:
    own = Connections(Limits(connections=3, connections_each=2, strangers=9))
    tasks: list[Any] = [Task() for _ in range(5)]
    for task in tasks:
        own.enter(task, "here")
    admitted = [own.admit(task, key) for task, key in zip(tasks, (b"a", b"a", b"a", b"b", b"b"))]
    # the third of "a" is one too many, and the second of "b" the fourth in all
    assert admitted == [True, True, False, True, False]
    assert [*own._strangers] == [tasks[2], tasks[4]] and own.admit(tasks[0], b"a")
    tasks[0].told[0](tasks[0])
    tasks[2].told[0](tasks[2])
    assert own.admit(tasks[4], b"b") and [*own._strangers] == []
    assert [*own._members.values()] == [b"a", b"b", b"b"]


def test_requests_wait_until_others_have_ended_and_are_forgotten_then() -> None:
    flow = ByteFlow(Limits(in_flight=10, in_flight_each=6, wait_seconds=5.0))
    order: list[str] = []

    async def one(name: str, key: bytes, length: int, waits: int) -> None:
        async with flow.room(key, length):
            order.append(name)
            for _ in range(waits):
                await asyncio.sleep(0)
        order.append(f"{name} over")

    async def all_of_them() -> None:
        await asyncio.gather(one("a", b"a", 6, 5), one("more of a", b"a", 1, 0),
                             one("b", b"b", 4, 9), one("c", b"c", 1, 0))  # fmt: skip

    asyncio.run(all_of_them())
    assert order[:3] == ["a", "b", "a over"] and len(order) == 8 and flow._bytes == {}

    async def too_late() -> None:
        late = ByteFlow(Limits(in_flight=1, wait_seconds=0.01))
        async with late.room(b"a", 9):  # one request always fits
            with pytest.raises(TimeoutError):
                async with late.room(b"b", 1):
                    pass

    asyncio.run(too_late())


def test_a_share_is_spent_and_comes_back_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    quota = Quota(3600)  # a byte a second
    assert not quota.spend(b"a", 3601) and quota._left == {}
    assert quota.spend(b"a", 3600) and not quota.spend(b"a", 1) and quota.spend(b"b", 10)
    now[0] += 9.0
    assert not quota.spend(b"a", 10) and quota.spend(b"a", 9)
    now[0] += 1.0
    assert quota.spend(b"c", 1) and {*quota._left} == {b"a", b"c"}  # b has all of its share again
    now[0] += 99999.0
    assert quota._left_of(b"a") == 3600
