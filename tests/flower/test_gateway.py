"""The server's door: what passes, what does not, and that neither memory nor places run out."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from cryptography.exceptions import InvalidSignature
from flwr.common import constant
from flwr.supercore import constant as core
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedblocks.flower.gateway import connections, members, owners
from fedblocks.flower.gateway.answers import PASSED, REFUSED
from fedblocks.flower.gateway.limits import MIB
from fedblocks.flower.gateway.owners import owner_of
from fedblocks.flower.gateway.requests import ROUTES, UNKEYED
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.keys.client_keys import make_client, public_key

from .doors import GOOD, Door, answered, everything, request

CLOSE = {b"Connection": b"close"}
UPLOAD = b"/v1/fleet/push-object"
OWN = {b"X-Forwarded-For": b"1.1.1.1", b"flwr-publi-key": b"x", b"Cookie": b"x"}
TRAVERSALS = [
    b"/v1/fleet/../control/list-runs",
    b"/v1/fleet/./../control/list-runs",
    b"/v1/fleet/pull-messages/../../control/list-runs",
    b"/v1/fleet/%2e%2e/control/list-runs",
    b"/v1/fleet/..%2fcontrol/list-runs",
    b"/v1/fleet/%2E%2E%2Fcontrol%2Flist-runs",
    b"/v1/fleet/%252e%252e/control/list-runs",
    b"/v1/fleet/..%252fcontrol/list-runs",
    b"/v1/fleet/%c0%ae%c0%ae/control/list-runs",
    b"/v1/fleet\\..\\control\\list-runs",
    b"/v1/fleet/..\\control/list-runs",
    b"/v1/fleet/%5c..%5ccontrol/list-runs",
    b"/v1/fleet//../control/list-runs",
    b"//v1/control/list-runs",
    b"/v1//fleet/pull-messages",
    b"/v1/fleet/;/../../control/list-runs",
    b"/v1/fleet/..;/control/list-runs",
    b"/v1/fleet/pull-messages;x=1",
    b"http://127.0.0.1/v1/control/list-runs",
    b"http://server/v1/fleet/pull-messages",
    b"https://server/v1/fleet/../control/list-runs",
    b"/V1/FLEET/pull-messages",
    b"/v1/fleet/PULL-MESSAGES",
    b"/v1/fleet/pull-messages.",
    b"/v1/fleet/pull-messages/",
    b"/v1/fleet/pull-messages?x=1",
    b"/v1/fleet/pull-messages?",
    b"/v1/fleet/pull-messages#x",
    b"/v1/fleet/pull-messages%00",
    b"/v1/fleet/pull-messages\x00",
    b"/v1/fleet/pull-message\xc5\xbf",
    b"/v1/fleet/",
    b"/v1/fleet",
    b"/",
    b"*",
    b"",
    b"/v1/control/list-runs",
    b"/v1/control/start-run",
    b"/v1/runtime/acquire-task",
    b"/health",
    b"/docs",
    b"/openapi.json",
    b"/v1/fleet/get-fab",
    b"/v1/fleet/register-node",
    b"/v1/fleet/unregister-node",
]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with Door(tmp_path_factory.mktemp("door") / "f").open() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_seen(request: pytest.FixtureRequest) -> None:
    if "door" in request.fixturenames:
        request.getfixturevalue("door").recorder.seen.clear()


def test_the_routes_are_those_of_flowers_client_but_for_apps_and_enrolment() -> None:
    code = {name for name in FleetHttpClient.__dict__ if name[0].isupper()}
    routes = {
        "/v1/fleet/" + "".join(f"-{c.lower()}" if c.isupper() else c for c in name)[1:]
        for name in code
    }
    assert {route.decode() for route in ROUTES | UNKEYED} == routes - {
        "/v1/fleet/get-fab",
        "/v1/fleet/get-run",
    }


def test_headers_and_tolerances_are_flowers() -> None:
    names = (
        core.FLEET_HTTP_PUBLIC_KEY_HEADER,
        constant.TIMESTAMP_HEADER,
        core.FLEET_HTTP_SIGNATURE_HEADER,
    )
    assert tuple(map(str.encode, names)) == (members.KEY, members.TIME, members.SIGNATURE)
    versions = (
        name for name, _ in RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
    )
    assert {*map(str.encode, names), *map(str.encode, versions)} <= PASSED
    assert core.VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY.encode() in PASSED
    assert constant.SYSTEM_TIME_TOLERANCE == members.AHEAD
    assert constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE == members.BEHIND


def test_an_enrolled_client_is_passed_on_with_its_body_and_no_header_of_its_own_invention(
    door: Door,
) -> None:
    body = os.urandom(3 * MIB)
    answer = door.ask(request(UPLOAD, {**door.signed(), **CLOSE, **OWN}, body))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and content == b"good"
    assert not {b"server", b"date"} & {
        line.partition(b":")[0].lower() for line in head.split(b"\r\n")
    }
    (seen,) = door.recorder.seen
    assert seen.line == f"POST {UPLOAD.decode()} HTTP/1.1" and seen.body == body
    allowed = {
        "host",
        "content-length",
        "content-type",
        "connection",
        "accept",
        "accept-encoding",
        "user-agent",
    }
    assert seen.headers.keys() == allowed | {"flwr-public-key", "flwr-timestamp", "flwr-signature"}


def test_many_requests_of_one_connection_are_answered_in_order(door: Door) -> None:
    several = b"".join(request(path, door.signed(), path) for path in sorted(ROUTES))
    answer = door.ask(several + request(GOOD, {**door.signed(), **CLOSE}, b"last"))
    assert answer.count(b"HTTP/1.1 200 OK") == len(ROUTES) + 1
    assert [seen.body for seen in door.recorder.seen] == [*sorted(ROUTES), b"last"]


@pytest.mark.parametrize("target", TRAVERSALS)
def test_no_other_path_reaches_the_superlink_even_with_a_key(target: bytes, door: Door) -> None:
    assert door.ask(request(target, door.signed())) == REFUSED and door.recorder.seen == []


def test_a_rule_by_prefix_would_let_commands_through(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="prefix").open() as unsafe:
        unsafe.ask(request(TRAVERSALS[0], {}))
        assert [seen.line for seen in unsafe.recorder.seen] == [
            "POST /v1/control/list-runs HTTP/1.1"
        ]


SMUGGLED = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"POST ", b"GET ", 1),
        lambda text: text.replace(b"POST ", b"post ", 1),
        lambda text: text.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        lambda text: text.replace(b"HTTP/1.1", b"HTTP/1.1 ", 1),
        lambda text: text.replace(b"Host: server\r\n", b""),
        lambda text: text.replace(b"Host: server\r\n", b"Host: server\r\nHost: server\r\n"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\r\nContent-Length: 4"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\r\ncontent-length: 0"),
        lambda text: text.replace(
            b"Content-Length: 4", b"Content-Length: 4\r\nTransfer-Encoding: chunked"
        ),
        lambda text: text.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length : 4"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: +4"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4, 4"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length:\t4"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\r\n folded: 1"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\nX: 1"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\r\nX: \xe9"),
        lambda text: text.replace(b"Content-Length: 4", b"Content-Length: 4\r\nX: \x00"),
        lambda text: text.replace(
            b"Content-Length: 4", b"Content-Length: 4\r\nConnection: Upgrade\r\nUpgrade: h2c"
        ),
        lambda text: text.replace(
            b"Content-Length: 4", b"Content-Length: 4\r\nExpect: 100-continue"
        ),
        lambda text: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + text,
        lambda text: b"\r\n" + text,
        lambda text: text.replace(
            b"Content-Length: 4", b"Content-Length: 4\r\nX: " + b"x" * 20_000
        ),
    ],
)
def test_what_two_programs_might_read_differently_is_refused_and_nothing_behind_it_is_read(
    change: object, door: Door
) -> None:
    changed = change(request(GOOD, door.signed(), b"body"))  # type: ignore[operator]
    assert door.ask(changed + SMUGGLED) == REFUSED and door.recorder.seen == []


def test_strangers_all_get_the_answer_of_a_path_that_is_not_there(
    door: Door, tmp_path: Path
) -> None:
    make_client(tmp_path / "x.key", tmp_path / "x.pub")
    own = {name: door.signed(name) for name in ("one", "two")}
    stranger = {**own["one"], members.KEY: members.b64encode(public_key(tmp_path / "x.pub"))}
    old = {**door.signed("one", ahead=-400), members.KEY: stranger[members.KEY]}
    knocks = {
        "a path that is not there": request(b"/nothing", {}),
        "no key": request(GOOD, {}),
        "a key that is not enrolled": request(GOOD, stranger),
        "such a key and an old time": request(GOOD, old),
        "another's signature": request(
            GOOD, {**own["one"], members.SIGNATURE: own["two"][members.SIGNATURE]}
        ),
        "no signature": request(GOOD, {**own["one"], members.SIGNATURE: b""}),
        "a time that was not signed": request(
            GOOD, {**own["one"], members.TIME: b"2030-01-01T00:00:00+00:00"}
        ),
        "no time": request(GOOD, {k: v for k, v in own["one"].items() if k != members.TIME}),
        "a signature that is no base64": request(GOOD, {**own["one"], members.SIGNATURE: b"?"}),
    }
    assert {name: door.ask(knock) for name, knock in knocks.items()} == dict.fromkeys(
        knocks, REFUSED
    )
    assert door.recorder.seen == []


@pytest.mark.parametrize(
    ("ahead", "status"), [(-400, b"401"), (60, b"401"), (-250, b"200"), (3, b"200")]
)
def test_an_enrolled_client_with_a_wrong_clock_is_told_so(
    ahead: float, status: bytes, door: Door
) -> None:
    answer = door.ask(request(GOOD, {**door.signed(ahead=ahead), **CLOSE}))
    assert answer.split()[1] == status and (b'"reason": "clock", "server_time": "20' in answer) == (
        status == b"401"
    )


def test_a_name_that_is_taken_out_or_put_in_counts_from_the_next_request_on(tmp_path: Path) -> None:
    with Door(tmp_path / "f").open() as door, door.connect() as kept:
        assert door.ask(request(GOOD, {**door.signed("two"), **CLOSE})).startswith(b"HTTP/1.1 200")
        kept.sendall(request(GOOD, door.signed("two")))
        assert answered(kept, 1).startswith(b"HTTP/1.1 200")
        door.write(clients={"one": [0]})
        assert door.ask(request(GOOD, {**door.signed("two"), **CLOSE})) == REFUSED
        kept.sendall(request(GOOD, door.signed("two")))  # a connection that stood before
        assert answered(kept) == REFUSED
        assert door.ask(request(GOOD, {**door.signed("one"), **CLOSE})).startswith(b"HTTP/1.1 200")
        door.write(clients={"one": [0], "two": [1]})
        assert door.ask(request(GOOD, {**door.signed("two"), **CLOSE})).startswith(b"HTTP/1.1 200")


def test_a_key_that_is_replaced_no_longer_opens(tmp_path: Path) -> None:
    with Door(tmp_path / "f").open() as door:
        before = door.signed("two")
        assert door.ask(request(GOOD, {**before, **CLOSE})).startswith(b"HTTP/1.1 200")
        make_client(door.base / "two" / "client.key", door.server / "clients" / "two.pub")
        after = door.signed("two")
        launch.until(
            lambda: door.ask(request(GOOD, {**after, **CLOSE})).startswith(b"HTTP/1.1 200"),
            10,
            lambda: None,
            "a look",
        )
        assert door.ask(request(GOOD, {**before, **CLOSE})) == REFUSED


LARGE = 400 * 10**6  # bytes


@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize("framing", [b"Content-Length: %d" % LARGE, b"Transfer-Encoding: chunked"])
def test_a_large_body_is_refused_unread_and_costs_no_memory(
    framing: bytes, key: bool, door: Door
) -> None:
    head = request(GOOD, door.signed() if key else {}).replace(b"Content-Length: 0", framing)
    door.ask(request(UPLOAD, {**door.signed(), **CLOSE}, bytes(MIB)))
    door.recorder.seen.clear()
    before, sent, piece = door.peak(), 0, bytes(MIB)
    with door.connect() as connection:
        connection.sendall(head)
        try:
            while sent < 50 * MIB:
                connection.sendall(
                    b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in framing else piece
                )
                sent += len(piece)
        except OSError:
            pass  # the door is shut
    assert sent < 50 * MIB and door.peak() - before < 20 * MIB and door.recorder.seen == []


def test_a_gateway_that_reads_bodies_first_would_hold_them_all(tmp_path: Path) -> None:
    with Door(tmp_path / "f", secured=False, mode="buffer").open() as unsafe:
        before = unsafe.peak()
        unsafe.ask(request(GOOD, CLOSE, bytes(50 * MIB)))  # of nobody
        assert unsafe.peak() - before > 50 * MIB


def test_large_bodies_that_are_allowed_pass_through_without_being_kept(tmp_path: Path) -> None:
    with Door(tmp_path / "f", {"request": 200 * MIB, "in_flight_each": 200 * MIB}).open() as door:
        door.ask(request(UPLOAD, {**door.signed(), **CLOSE}, bytes(MIB)))
        before = door.peak()
        door.ask(request(UPLOAD, {**door.signed(), **CLOSE}, bytes(100 * MIB)))
        assert len(door.recorder.seen[-1].body) == 100 * MIB and door.peak() - before < 20 * MIB


@pytest.mark.parametrize(("target", "largest"), [(UPLOAD, 8 * MIB), (GOOD, 2**16)])
def test_an_enrolled_client_is_told_what_is_too_large(
    target: bytes, largest: int, door: Door
) -> None:
    answer = door.ask(request(target, door.signed(), Content_Length=b"%d" % (largest + 1)))
    told = b'{"reason": "too-large", "largest": %d}' % largest
    assert answer.startswith(b"HTTP/1.1 413 ") and told in answer


@pytest.mark.parametrize("name", sorted(PASSED))
def test_no_long_header_reaches_the_superlink_which_would_log_it(name: bytes, door: Door) -> None:
    long = {**door.signed(), b"Content-Type": b"application/protobuf", name.title(): b"X" * 8000}
    if name in door.signed():
        del long[name]
    assert door.ask(request(GOOD, long)) == REFUSED and door.recorder.seen == []


SMALL = {
    "request": 1000,
    "in_flight": 1500,
    "in_flight_each": 1200,
    "wait_seconds": 0.5,
    "connections_each": 2,
    "strangers_each": 3,
    "head_seconds": 60.0,
    "exchange_seconds": 60.0,
}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with Door(tmp_path_factory.mktemp("narrow") / "f", SMALL).open() as opened:
        yield opened


def test_bytes_under_way_are_bounded_over_all_clients_and_the_next_one_waits(narrow: Door) -> None:
    whole = request(GOOD, {**narrow.signed("one"), **CLOSE}, bytes(1000))
    with narrow.connect() as first:
        first.sendall(whole[:-1])
        until_waiting = request(GOOD, {**narrow.signed("two"), **CLOSE}, bytes(1000))
        launch.until(
            lambda: narrow.ask(until_waiting).startswith(b"HTTP/1.1 503 "),
            20,
            lambda: None,
            "a full server",
        )
        small = narrow.ask(request(GOOD, {**narrow.signed("two"), **CLOSE}, bytes(10)))
        assert small.startswith(b"HTTP/1.1 200")  # heartbeats still pass
        first.sendall(whole[-1:])
        assert answered(first).startswith(b"HTTP/1.1 200")
    assert narrow.ask(until_waiting).startswith(b"HTTP/1.1 200")


def refusal(upload: Callable[[], bytes]) -> bytes:
    """What is answered before all is sent: it is lost where the end of the connection comes before
    it is read, so clients send again.
    """
    answers: list[bytes] = []

    def is_answered() -> bool:
        with suppress(OSError):
            answers.append(upload())
        return bool(answers and answers[-1])

    launch.until(is_answered, 30, lambda: None, "an answer")
    return answers[-1]


def test_a_client_sends_no_more_than_its_share_of_an_hour(tmp_path: Path) -> None:
    with Door(tmp_path / "f", {"hour_each": 2 * MIB}).open() as door:
        upload = lambda name, size: door.ask(
            request(UPLOAD, {**door.signed(name), **CLOSE}, bytes(size))
        )
        assert upload("one", MIB).startswith(b"HTTP/1.1 200 ")
        refused = refusal(lambda: upload("one", MIB + 100_000))
        assert b"503 Service Unavailable" in refused and b'{"reason": "quota"}' in refused
        assert upload("one", MIB - 100_000).startswith(b"HTTP/1.1 200 ")
        assert upload("two", 2 * MIB).startswith(b"HTTP/1.1 200 ")  # it has its own
        heartbeat = request(GOOD, {**door.signed("one"), **CLOSE}, bytes(2**16))
        assert door.ask(heartbeat).startswith(b"HTTP/1.1 200 ")  # nothing is stored of it


def test_a_share_comes_back_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    quota = connections.Quota(3600)
    assert quota.spend(b"one", 3600) and not quota.spend(b"one", 1)
    now[0] += 100
    assert quota.spend(b"one", 100) and not quota.spend(b"one", 1)
    now[0] += 10_000
    assert not quota.spend(b"one", 3601)
    assert quota.spend(b"two", 1) and quota._left.keys() == {b"two"}  # one has all of it again


def test_answers_of_clients_do_not_fill_the_disk(tmp_path: Path) -> None:
    with Door(tmp_path / "f", {"spare": 2**60}).open() as door:
        upload = door.ask(request(UPLOAD, {**door.signed(), **CLOSE}, bytes(10)))
        assert upload.startswith(b"HTTP/1.1 503 ") and b'{"reason": "disk"}' in upload
        other = door.ask(request(GOOD, {**door.signed(), **CLOSE}, bytes(10)))
        assert other.startswith(b"HTTP/1.1 200 ") and len(door.recorder.seen) == 1


def test_connections_of_one_client_are_bounded(narrow: Door) -> None:
    held = [narrow.connect() for _ in range(2)]
    for connection in held:
        connection.sendall(request(GOOD, narrow.signed("one")))
        assert answered(connection, 1).startswith(b"HTTP/1.1 200")
    assert b'"reason": "connections"' in narrow.ask(request(GOOD, narrow.signed("one")))
    assert narrow.ask(request(GOOD, {**narrow.signed("two"), **CLOSE})).startswith(b"HTTP/1.1 200")
    held.pop().close()
    again = request(GOOD, {**narrow.signed("one"), **CLOSE})
    launch.until(
        lambda: narrow.ask(again).startswith(b"HTTP/1.1 200"), 10, lambda: None, "a free place"
    )
    held.pop().close()


def test_strangers_push_out_each_other_and_no_client(narrow: Door) -> None:
    with narrow.connect() as client:
        client.sendall(request(GOOD, narrow.signed("two")))
        assert answered(client, 1).startswith(b"HTTP/1.1 200")
        silent = [narrow.connect() for _ in range(4)]
        assert everything(silent[0]) == b""  # the oldest had to go
        client.sendall(request(GOOD, narrow.signed("two")))
        assert answered(client, 1).startswith(b"HTTP/1.1 200")
        for connection in silent:
            connection.close()


def test_who_is_slow_is_left(tmp_path: Path) -> None:
    quick = {"handshake_seconds": 0.5, "head_seconds": 0.5, "exchange_seconds": 0.5}
    with Door(tmp_path / "f", quick).open() as door:
        with socket.create_connection(("127.0.0.1", door.host.port), timeout=10) as no_handshake:
            assert everything(no_handshake) == b""
        assert door.ask(b"POST /v1/fleet/pull") == b""  # half a head
        # most of a body
        assert door.ask(request(GOOD, door.signed(), bytes(10))[:-1]).startswith(b"HTTP/1.1 503 ")
        with door.connect() as idle:
            idle.sendall(request(GOOD, door.signed()))
            assert answered(idle, 1).startswith(b"HTTP/1.1 200")
            assert everything(idle) == b""


def test_the_log_is_short_and_holds_nothing_that_strangers_wrote(tmp_path: Path) -> None:
    with Door(tmp_path / "f").open() as door:
        for number in range(50):
            door.ask(request(b"/forged\x1b[31m-%d" % number, {b"X": b"forged"}))
        assert (
            0 < len(door.log().splitlines()) <= 2
            and "forged" not in door.log()
            and "\x1b" not in door.log()
        )


def test_a_superlink_that_is_away_is_told_as_something_that_passes(tmp_path: Path) -> None:
    with Door(tmp_path / "f").open() as door:
        door.write(inner_port=launch.free_port())
        with ProcessGroup(tmp_path / "logs", {}) as processes:
            door.write(port=(port := launch.free_port()))
            processes.start(
                "gateway",
                [sys.executable, "-m", "fedblocks.flower.gateway.gateway", str(door.server)],
            )
            door.host = door.host.model_copy(update={"port": port})
            launch.until(lambda: launch.is_open(door.host), 60, processes.check, "the gateway")
            assert door.ask(request(GOOD, door.signed())).startswith(b"HTTP/1.1 503 ")


class Spy:
    """A key that counts the signatures that it is to check, and finds them wrong."""

    checks = 0

    def verify(self, *words: object) -> None:
        self.checks += 1
        raise InvalidSignature


def test_a_strangers_signature_is_checked_as_that_of_a_client_is(tmp_path: Path) -> None:
    """Otherwise the time of an answer tells which keys are enrolled."""
    door = Door(tmp_path / "f")
    enrolled, headers = members.Members(door.server), door.signed("one")
    assert enrolled.check(headers) is not None
    enrolled._nobody = nobody = Spy()
    assert enrolled.check({**headers, members.KEY: b"unknown"}) is None and nobody.checks == 1
    assert (
        enrolled.check({k: v for k, v in headers.items() if k != members.KEY}) is None
        and nobody.checks == 2
    )
    enrolled._keys[headers[members.KEY]] = one = Spy()
    assert enrolled.check(headers) is None and one.checks == 1
    door.recorder.server_close()


COMMANDS = [
    *(
        b"/v1/control/list-runs",
        b"/v1/control/start-run",
        b"/v1/runtime/acquire-task",
        b"/docs",
        b"/openapi.json",
    ),
    *(GOOD, b"/v1/fleet/push-object"),  # clients come through the gateway
]
NOBODY = 65534


def as_another_user(
    port: int, trust: ssl.SSLContext, path: bytes, is_patient: bool = True
) -> bytes:
    """What a process of another user is answered by the SuperLink's own port."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(writing, asked(port, trust, path, is_patient))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def asked(port: int, trust: ssl.SSLContext, path: bytes, is_patient: bool = True) -> bytes:
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    with trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        method = b"GET" if b"/v1/" not in path else b"POST"
        content = (
            b"Content-Length: 0\r\nContent-Type: application/protobuf\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + content)
        return everything(connection) if is_patient else b""


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("defended", [True, False])
def test_all_routes_of_the_inner_port_are_for_the_servers_own_user(
    defended: bool, tmp_path: Path
) -> None:
    set_up(
        tmp_path / "f", "127.0.0.1", {"one": [0]}, launch.free_port(), port := launch.free_port()
    )
    folder = tmp_path / "f" / "server"
    host = launch.ServerHost.read(folder)
    command = launch.superlink(host, folder)
    if not defended:
        command = ["flower-superlink", *command[3:]]
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with ProcessGroup(tmp_path / "logs", launch.environment(folder)) as processes:
        processes.start("superlink", command)
        launch.until(lambda: launch.healthy(host, folder), 60, processes.check, "the SuperLink")
        others = [as_another_user(port, trust, path) for path in COMMANDS]
        for _ in range(20):  # send, and be gone before the kernel is asked
            as_another_user(port, trust, COMMANDS[0], is_patient=False)
        ours = [asked(port, trust, path) for path in COMMANDS]
        health = as_another_user(port, trust, b"/health")
        assert health.startswith(b"HTTP/1.1 404 " if defended else b"HTTP/1.1 200 ")
        log = processes.log("superlink").read_text()
    refused = [
        answer.startswith(b"HTTP/1.1 404 ") and answer.endswith(b"\r\n\r\n") for answer in others
    ]
    assert refused == [defended] * len(COMMANDS)
    assert not any(answer.startswith(b"HTTP/1.1 404 ") for answer in ours)
    assert (log.count('list-runs HTTP/1.1" 200') == 1) == defended  # our own


def test_a_kernel_that_is_asked_for_one_socket_needs_no_table(monkeypatch) -> None:
    monkeypatch.setattr(owners, "owner_in_tables", lambda *_: pytest.fail("the table was read"))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as mine,
    ):
        assert owner_of(mine.getsockname(), listener.getsockname()) == os.getuid()


@pytest.mark.parametrize("owner_of", [owner_of, owners.owner_in_tables])
def test_the_kernel_names_the_owner_of_open_sockets_only(owner_of) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as mine:
            theirs, address = listener.accept()
            assert owner_of(address, listener.getsockname()) == os.getuid()
            assert owner_of((address[0], 1), listener.getsockname()) is None
            mine.sendall(b"last words")
        # shown as of user 0 until it is forgotten
        assert owner_of(address, listener.getsockname()) is None
        theirs.close()
    with (
        socket.socket(socket.AF_INET6) as mapped,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        mapped.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        _, address = listener.accept()
        assert owner_of(address, listener.getsockname()) == os.getuid()
