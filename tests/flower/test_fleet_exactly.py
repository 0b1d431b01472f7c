"""What a client asks of its server, request by request, and what it reads of the answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_DEFAULT_INTERVAL

from fedblocks.flower.client import fleet
from fedblocks.flower.client.fleet import Fleet, Meter, _Carrier
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.wire.messages import TooLargeError

URL = "http://127.0.0.1:1/v1/fleet/pull-object"


def refused(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", URL)
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


class Asked:
    """Stands in for Flower's client: it notes what was asked, and answers or fails."""

    def __init__(self, **answers: Any) -> None:
        self.said: list[tuple[str, Any]] = []
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def ask(request: Any) -> Any:
            self.said.append((name, request))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.said]


def fleet_with(asked: Asked, insecure: bool = True, folder: Path = Path()) -> Fleet:
    host = ClientHost(
        federation="f", server="127.0.0.1:1", clients=(0,), insecure=insecure, data={"name": "x"}
    )
    own = Fleet(host, folder)
    own._ask = asked  # type: ignore[assignment]
    return own


ACTIVE = SimpleNamespace(node_id=7)
KNOWN, UNKNOWN = SimpleNamespace(success=True), SimpleNamespace(success=False)


@pytest.mark.parametrize(
    ("beat", "number", "names"),
    [
        (KNOWN, None, ["RegisterNode", "ActivateNode"]),
        (UNKNOWN, 5, ["SendNodeHeartbeat", "RegisterNode", "ActivateNode"]),
        (refused(404), 5, ["SendNodeHeartbeat", "RegisterNode", "ActivateNode"]),
        (KNOWN, 5, ["SendNodeHeartbeat", "DeactivateNode", "RegisterNode", "ActivateNode"]),
    ],
)
@pytest.mark.parametrize("registered", [None, refused(409)])
def test_an_earlier_process_is_signed_off_where_the_server_still_knows_it(
    beat: Any, number: int | None, names: list[str], registered: Any
) -> None:
    asked = Asked(ActivateNode=ACTIVE, SendNodeHeartbeat=beat, RegisterNode=registered)
    own = fleet_with(asked)
    assert own.enter(number) == 7 and asked.names == names
    last = asked.said[-1][1]
    assert last.heartbeat_interval == HEARTBEAT_DEFAULT_INTERVAL
    assert last.public_key.startswith(b"-----BEGIN PUBLIC KEY")
    assert asked.said[-2][1].public_key == last.public_key
    for name, request in asked.said:
        if name == "DeactivateNode":
            assert request.node_id == 5
        if name == "SendNodeHeartbeat":
            assert request.node.node_id == 5
            assert request.heartbeat_interval == HEARTBEAT_DEFAULT_INTERVAL


def test_a_process_that_entered_stays_while_the_server_knows_it() -> None:
    asked = Asked(ActivateNode=ACTIVE, SendNodeHeartbeat=KNOWN)
    own = fleet_with(asked)
    assert own.enter(None) == 7
    asked.said.clear()
    assert own.enter(7) == 7 and asked.names == ["SendNodeHeartbeat"]


@pytest.mark.parametrize(
    ("insecure", "names"),
    [(True, ["DeactivateNode", "UnregisterNode"]), (False, ["DeactivateNode"])],
)
def test_whoever_leaves_is_in_a_hurry_and_without_keys_takes_its_number_along(
    insecure: bool, names: list[str]
) -> None:
    asked = Asked()
    own = fleet_with(asked)
    own.insecure = insecure
    assert not own._carrier.hurried
    own.leave(9)
    assert own._carrier.hurried and asked.names == names
    assert [request.node_id for _, request in asked.said] == [9] * len(names)


@pytest.mark.parametrize(("messages", "trees"), [([], []), ([1], []), ([], [1])])
def test_there_is_no_next_message_without_its_list_of_pieces(
    messages: list[int], trees: list[int]
) -> None:
    answer = SimpleNamespace(messages_list=messages, message_object_trees=trees)
    asked = Asked(PullMessages=answer)
    assert fleet_with(asked).next(3) is None
    assert asked.said[0][1].node.node_id == 3


def test_the_next_message_comes_with_its_list_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "message_from_proto", lambda head: f"message {head}")
    answer = SimpleNamespace(messages_list=[1, 2], message_object_trees=["a", "b"])
    own = fleet_with(Asked(PullMessages=answer))
    assert own.next(3) == ("message 1", "a")

    def fail(head: Any) -> Any:
        raise KeyError("odd")

    monkeypatch.setattr(fleet, "message_from_proto", fail)
    with pytest.raises(ValueError, match="this is not a message of Flower: 'odd'"):
        own.next(3)


def test_a_meter_lets_its_last_byte_through_and_none_more() -> None:
    meter = Meter(10)
    meter.count(4)
    meter.count(6)
    with pytest.raises(TooLargeError, match="more than the 10 bytes that this client takes"):
        meter.count(1)


def carrier(monkeypatch: pytest.MonkeyPatch, answer: httpx.Response) -> tuple[_Carrier, list[Any]]:
    """A carrier whose requests end here, and what it was made with and asked."""
    seen: list[Any] = []

    class Client:
        def __init__(self, **options: Any) -> None:
            seen.append(options)

        def send(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
            seen.append((request, stream))
            return answer

    monkeypatch.setattr(fleet.httpx, "Client", Client)
    return _Carrier(False), seen


def context(method: str = "fleet/PullObject") -> Any:
    request = httpx.Request("POST", URL, headers={"accept-encoding": "gzip"})
    return SimpleNamespace(rpc_method=method, request=request)


def none(_: Any) -> Any:
    raise AssertionError("the carrier is the last of the chain")


def answer_of(size: int, **headers: str) -> httpx.Response:
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"x" * size))


@pytest.mark.parametrize("hurried", [False, True])
def test_a_request_asks_for_plain_bytes_and_waits_half_a_minute_or_less(
    hurried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answer_of(5, **{"date": "today", "server": "x"})
    own, seen = carrier(monkeypatch, answer)
    own.objects, own.hurried = Meter(5), hurried
    came = own.intercept(context(), none)
    assert seen[0] == {"verify": False, "timeout": 30.0}
    request, stream = seen[1]
    assert stream and request.headers["accept-encoding"] == "identity"
    # 16 letters for 8 bytes
    assert len(request.headers["fedblocks-process"]) == 16
    assert request.headers["flwr-package-name"] and answer.is_closed
    assert came.content == b"x" * 5 and came.status_code == 200 and came.request is request
    assert {*came.headers} == {"date", "content-length"} and came.headers["date"] == "today"
    wait = httpx.Timeout(HEARTBEAT_CALL_TIMEOUT).as_dict()
    assert request.extensions.get("timeout") == (wait if hurried else None)


@pytest.mark.parametrize(
    ("method", "size", "fits"),
    [("PullObject", 8, True), ("PullObject", 9, False), ("Other", 9, True), ("Other", 64, True),
     ("Other", 65, False)],
)  # fmt: skip
def test_objects_have_their_own_bound_and_every_other_answer_that_of_small_ones(
    method: str, size: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet.SMALL == 16 * 1024 * 1024
    monkeypatch.setattr(fleet, "SMALL", 64)
    answer = answer_of(size)
    own, _ = carrier(monkeypatch, answer)
    own.objects = Meter(8)
    if fits:
        assert len(own.intercept(context(method), none).content) == size
    else:
        with pytest.raises(TooLargeError):
            own.intercept(context(method), none)
    assert answer.is_closed


def test_another_version_of_the_server_is_told_once_and_in_few_letters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = fleet.VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY
    own, _ = carrier(monkeypatch, answer_of(0, **{name: "y" * 301}))
    own.intercept(context("Other"), none)
    monkeypatch.setattr(
        own.http, "send", lambda *_, **__: answer_of(0, **{name: "y" * 301}), raising=False
    )
    own.intercept(context("Other"), none)
    said = f"the server has another version of Flower, which may not work: {'y' * 300}"
    assert [record.getMessage() for record in caplog.records] == [said]
