"""The gateway in this process: what it refuses and with which words, what it passes on and how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from fedblocks.flower.gateway import answers
from fedblocks.flower.gateway.gateway import Gateway
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.gateway.members import Sender
from fedblocks.flower.gateway.requests import ROUTES, HttpRequest

from .writer import Writer

ANN = Sender("ann", b"key")
LATE = Sender("ann", b"key", clock_is_right=False)
UP, DOWN = b"/v1/fleet/push-object", b"/v1/fleet/pull-messages"
LIMITS = Limits(request=100, spare=1000, hour_each=150)


def asked(path: bytes = DOWN, length: int = 0, closing: bool = False, **headers: bytes) -> Any:
    every = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return HttpRequest(path, every, length, closing)


def gateway(link: Any = None, free: int = 10**6, limits: Limits = LIMITS) -> Gateway:
    return Gateway(lambda headers: ANN, ROUTES, link, limits, lambda: free)


@pytest.mark.parametrize(
    ("request_", "sender", "free", "status", "content"),
    [
        (asked(length=100), ANN, 0, None, {}),
        (asked(length=101), ANN, 0, 413, {"reason": "too-large", "largest": 100}),
        (asked(UP, 101), ANN, 9999, 413, {"reason": "too-large", "largest": 100}),
        (asked(UP, 100), ANN, 1100, None, {}),
        (asked(UP, 100), ANN, 1099, 503, {"reason": "disk"}),
        (asked(UP, 1), LATE, 9999, 401, {"reason": "clock"}),
    ],
)
def test_a_client_is_turned_away_with_a_status_and_a_reason(
    request_: Any, sender: Sender, free: int, status: int | None, content: dict[str, Any]
) -> None:
    async def problem() -> Any:
        return gateway(free=free)._problem(request_, sender)

    told = asyncio.run(problem())
    if status is None:
        assert told is None
        return
    code, words = told
    if status == 401:
        assert words.pop("server_time").endswith("+00:00")
    assert (code, words) == (status, content)


def test_uploads_are_counted_and_other_requests_are_small_and_are_not() -> None:
    limits = Limits(hour_each=2**20, request=2**20, spare=0)
    own = gateway(free=2**20, limits=limits)

    async def problems() -> list[Any]:
        small = asked(length=64 * 1024)
        some = [small, asked(length=64 * 1024 + 1), asked(UP, 2**20), small, asked(UP, 2**15)]
        return [own._problem(one, ANN) for one in some]

    large = (413, {"reason": "too-large", "largest": 64 * 1024})
    assert asyncio.run(problems()) == [None, large, None, None, (503, {"reason": "quota"})]


def test_a_client_with_too_many_connections_is_told_so_before_anything_else() -> None:
    own = gateway(limits=Limits(connections_each=1))

    async def problems() -> list[Any]:
        task = asyncio.create_task(asyncio.sleep(9))
        assert own.connections.admit(task, ANN.key)
        told = [own._problem(asked(), LATE)]
        task.cancel()
        return told

    assert asyncio.run(problems()) == [(503, {"reason": "connections"})]


class Link:
    """In the SuperLink's place: it answers one request, or fails."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.sent = answer, list[Any]()
        self.build_request = httpx.AsyncClient(base_url="http://inside:1").build_request

    async def send(self, request: httpx.Request, stream: bool) -> Any:
        body = b"".join([piece async for piece in request.stream])  # type: ignore[union-attr]
        self.sent.append((request, stream, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Pieces(httpx.AsyncByteStream):
    def __init__(self, *pieces: Any) -> None:
        self.pieces, self.closed = pieces, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        self.closed = True


def passed_on(own: Gateway, request: Any, body: bytes, writer: Writer) -> bool:
    async def go() -> bool:
        reader = asyncio.StreamReader()
        reader.feed_data(body)
        reader.feed_eof()
        return await own._pass_on(request, ANN, reader, writer)  # type: ignore[arg-type]

    return asyncio.run(go())


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("length", ["5", None])
def test_a_request_and_its_answer_pass_with_few_headers(closing: bool, length: str | None) -> None:
    stream = Pieces(b"go", b"od!")
    headers = {"content-type": "application/protobuf", "server": "x", "Date": "today"}
    headers |= {"content-length": length} if length else {}
    own = gateway(Link(httpx.Response(200, headers=headers, stream=stream)))
    head = {"flwr_signature": b"s", "cookie": b"c", "content_type": b"t"}
    request = asked(UP, 4, closing, **head)
    writer = Writer()
    assert passed_on(own, request, b"body and more", writer) is not closing
    ((sent, streamed, body),) = own.link.sent  # type: ignore[attr-defined]
    assert body == b"body" and streamed and sent.method == "POST"
    assert str(sent.url) == "http://inside:1/v1/fleet/push-object"
    shown = {name.lower(): value for name, value in sent.headers.raw}
    own_headers = {b"flwr-signature": b"s", b"content-type": b"t", b"content-length": b"4"}
    assert own_headers.items() <= shown.items() and shown[b"accept-encoding"] == b"identity"
    assert b"cookie" not in shown
    kept = b"close" if closing else b"keep-alive"
    framing = b"content-length: 5" if length else b"transfer-encoding: chunked"
    content = b"good!" if length else b"2\r\ngo\r\n3\r\nod!\r\n0\r\n\r\n"
    lines = [b"HTTP/1.1 200 OK", b"content-type: application/protobuf", framing,
             b"connection: " + kept, b"", content]  # fmt: skip
    assert writer.came == b"\r\n".join(lines)
    assert stream.closed and writer.drains == 3 and own.flow._bytes == {}


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), TimeoutError()])
def test_a_superlink_that_does_not_answer_is_busy(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gateway(Link(error))
    counted: list[Any] = []
    monkeypatch.setattr(own.refusals, "count", lambda *what: counted.append(what))
    busy = answers.json_answer(HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "busy"})
    writer = Writer()
    assert passed_on(own, asked(UP, 0), b"", writer) is False
    assert writer.came == busy and writer.ended
    assert counted == [(f"ann, no answer from the SuperLink: {type(error).__name__}", "")]


def test_an_answer_that_breaks_off_ends_the_connection() -> None:
    stream = Pieces(b"go", httpx.ReadError("gone"))
    answer = httpx.Response(200, headers={"content-length": "5"}, stream=stream)
    with pytest.raises(ConnectionError, match="the answer broke off"):
        passed_on(gateway(Link(answer)), asked(), b"", Writer())
    assert stream.closed
