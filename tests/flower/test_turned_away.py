"""Whoever the gateway turns away is counted, with the reason."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.flower.gateway import gateway as module
from fedblocks.flower.gateway.gateway import Gateway

KNOWN = b"POST /known HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
SENDER = SimpleNamespace(name="ann", key=b"")


@pytest.mark.parametrize(
    ("head", "sender", "problem", "counted"),
    [
        (KNOWN.replace(b"/known", b"/other"), SENDER, None, "a request"),
        (b"nonsense\r\n\r\n", SENDER, None, "a request"),
        (b"x" * 200 + b"\r\n\r\n", SENDER, None, "a request"),  # longer than a head may be
        (KNOWN, None, None, "a key"),
        (KNOWN, SENDER, (429, {"reason": "too-many"}), "ann, too-many"),
        (KNOWN, SENDER, None, ""),
        (b"", SENDER, None, ""),  # the other side has gone
    ],
)
def test_who_is_turned_away_is_counted(
    head: bytes, sender: Any, problem: Any, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[str, str]] = []

    async def passed(*_: object) -> bool:
        return True

    async def closed(*_: object) -> bool:
        return False

    monkeypatch.setattr(module, "close_with", closed)
    monkeypatch.setattr(module, "json_answer", lambda *told: told)
    own: Any = SimpleNamespace(
        limits=SimpleNamespace(head_seconds=5),
        routes={b"/known"},
        refusals=SimpleNamespace(count=lambda what, who: counts.append((what, who))),
        check=lambda _: sender,
        uses=SimpleNamespace(note=lambda *_: None),
        _problem=lambda *_: problem,
        _pass_on=passed,
    )

    async def exchange() -> bool:
        reader = asyncio.StreamReader(limit=128)
        reader.feed_data(head)
        reader.feed_eof()
        return await Gateway.exchange(own, reader, None, "1.2.3.4")  # type: ignore[arg-type]

    assert asyncio.run(exchange()) == (head == KNOWN and not counted)
    assert counts == ([(counted, "1.2.3.4")] if counted else [])
