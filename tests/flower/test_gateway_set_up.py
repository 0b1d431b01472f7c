"""The gateway in this process: its last answers, bodies in pieces, and how it is set up."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fedblocks.flower.gateway import answers
from fedblocks.flower.gateway import gateway as module
from fedblocks.flower.gateway.gateway import Gateway
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.gateway.members import Members, anybody
from fedblocks.flower.gateway.requests import ROUTES, UNKEYED, Body
from fedblocks.flower.hosts.folders import ServerHost

from .writer import Writer


@pytest.mark.parametrize("can_end", [True, False])
@pytest.mark.parametrize(("sent", "left"), [(b"", b""), (b"x" * 3, b""), (b"x" * 9, b"x")])
def test_the_last_answer_is_followed_by_silence_and_some_of_what_comes_is_thrown_away(
    can_end: bool, sent: bytes, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PIECE", 2)
    monkeypatch.setattr(answers, "LEFTOVERS", 4)  # 8 bytes

    async def go() -> tuple[bool, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        again = await answers.close_with(reader, writer, b"no")  # type: ignore[arg-type]
        return again, await reader.read()

    writer = Writer(can_end)
    assert asyncio.run(go()) == (False, left)
    assert writer.came == b"no" and writer.ended is can_end


def test_an_answer_of_the_gateway_itself_is_json_and_the_last_one() -> None:
    text = json.dumps({"reason": "quota"})
    head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    own = answers.json_answer(module.HTTPStatus.SERVICE_UNAVAILABLE, {"reason": "quota"})
    length = f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}"
    assert own.decode() == head + length
    some = [(b"Accept", b"1"), (b"cookie", b"2"), (b"FLWR-Timestamp", b"3")]
    assert answers.pick_headers(some) == [(b"accept", b"1"), (b"flwr-timestamp", b"3")]


def test_a_body_comes_in_pieces_and_ends_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.flower.gateway.requests.PIECE", 4)

    async def read(content: bytes, length: int) -> tuple[list[bytes], int]:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        body = Body(reader, length)
        return [piece async for piece in body.pieces()], body.left

    assert asyncio.run(read(b"0123456789", 9)) == ([b"0123", b"4567", b"8"], 0)
    assert asyncio.run(read(b"0", 0)) == ([], 0)
    with pytest.raises(EOFError, match="the other side has gone"):
        asyncio.run(read(b"0123", 5))


def test_the_client_of_the_superlink_has_bounds_and_ignores_proxies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **options: made.append(options))
    module.superlink("http://inside:1", False)
    room = httpx.Limits(max_connections=128, max_keepalive_connections=32, keepalive_expiry=2.0)
    waits = httpx.Timeout(60.0, connect=5.0)
    assert made == [
        {"base_url": "http://inside:1", "verify": False, "timeout": waits, "limits": room,
         "trust_env": False}
    ]  # fmt: skip


@pytest.mark.parametrize("insecure", [True, False])
@pytest.mark.parametrize(("bind", "family"), [("127.0.0.1", "AF_INET"), ("::1", "AF_INET6")])
def test_the_door_is_where_server_toml_says_and_checks_keys_where_there_are_some(
    insecure: bool, bind: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    host = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, bind=bind,
                      insecure=insecure)  # fmt: skip
    create = lambda *what, **more: made.append((*what, more)) or nullcontext("here")
    monkeypatch.setattr(module.socket, "create_server", create)
    monkeypatch.setattr(module, "trust_in", lambda folder: "trust")
    monkeypatch.setattr(module, "superlink", lambda *what: what)
    monkeypatch.setattr(module, "certificate", lambda folder: "tls")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=folder))

    async def serve(self: Gateway, listener: Any, tls: Any) -> None:
        made.append((self, listener, tls))

    monkeypatch.setattr(Gateway, "serve", serve)
    asyncio.run(module.run(host, tmp_path))
    options = {"family": getattr(socket, family), "backlog": 1024}
    assert made[0] == ((bind, 11), options)
    door, listener, tls = made[1]
    assert (listener, tls) == ("here", None if insecure else "tls")
    assert door.free() == tmp_path and door.limits == Limits()
    if insecure:
        assert door.check is anybody and door.routes == ROUTES | UNKEYED
        assert door.link == ("http://127.0.0.1:12", False)
        door.uses.report({})
        assert not (tmp_path / "shared_keys.json").exists()
    else:
        assert isinstance(door.check.__self__, Members) and door.routes == ROUTES
        assert door.link == ("https://127.0.0.1:12", "trust")
        door.uses.report({})
        assert (tmp_path / "shared_keys.json").read_text() == "{}"


def test_tls_is_that_of_a_server_and_no_older_than_its_last_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Any] = []
    own = SimpleNamespace(load_cert_chain=lambda *what: loaded.append(what))
    monkeypatch.setattr(module.ssl, "SSLContext", lambda kind: loaded.append(kind) or own)
    assert module.certificate(Path("/f")) is own  # type: ignore[comparison-overlap]
    assert own.minimum_version == ssl.TLSVersion.TLSv1_3
    assert loaded == [ssl.PROTOCOL_TLS_SERVER, (Path("/f/server.crt"), Path("/f/server.key"))]
