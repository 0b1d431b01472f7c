"""How long a client tries again, and which keys it takes."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedblocks.core.errors import UserError
from fedblocks.flower.client import fleet
from fedblocks.flower.client.fleet import RunOverError
from fedblocks.flower.keys.client_keys import make_client


def refused(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:1")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


def patient(
    errors: list[Exception], end: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[float]]:
    """What comes of an action that fails so, on a clock that stands at 100, and the pauses."""
    slept: list[float] = []
    clock = SimpleNamespace(time=lambda: 100.0, sleep=slept.append)
    monkeypatch.setattr(fleet, "time", clock)
    monkeypatch.setattr(fleet.random, "uniform", lambda low, high: low)
    left = iter(errors)

    def action() -> str:
        if (error := next(left, None)) is not None:
            raise error
        return "done"

    try:
        return fleet.patiently(action, end), slept
    except (httpx.HTTPError, RunOverError) as error:
        return error, slept


@pytest.mark.parametrize(
    ("error", "end", "comes"),
    [(refused(500), 1000.0, "done"), (refused(499), 1000.0, refused), (refused(503), 100.5, "done"),
     (refused(503), 100.4, refused), (httpx.ConnectError("away"), 100.5, "done"),
     (httpx.ConnectError("away"), 100.4, None), (refused(403), 1000.0, RunOverError)],
)  # fmt: skip
def test_only_losses_are_tried_again_and_only_in_time(
    error: Exception, end: float, comes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pause is half a second: it may end just in time."""
    result, slept = patient([error], end, monkeypatch)
    if comes == "done":
        assert result == "done" and slept == [0.5 * 0.7]
    else:
        assert slept == []
        assert isinstance(result, RunOverError) if comes is RunOverError else result is error


def test_losses_are_told_once_with_the_seconds_that_are_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert (fleet.BEGIN, fleet.MOST) == (0.5, 20.0)
    result, slept = patient([httpx.ConnectError("away")] * 7, 160.0, monkeypatch)
    # 0.5 s, doubled up to 20 s, each of it 0.7
    pauses = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    assert result == "done" and slept == pytest.approx([0.7 * pause for pause in pauses])
    said = "lost on the way, trying again until 60 s from now: away"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_message_ends_when_its_time_is_over() -> None:
    message: Any = SimpleNamespace(metadata=SimpleNamespace(created_at=100.0, ttl=20.0))
    assert fleet.ends(message) == 120.0


def test_a_clients_key_is_one_that_flower_takes(tmp_path: Path) -> None:
    make_client(tmp_path / "key", tmp_path / "key.pub")
    private, public = fleet._keys(tmp_path / "key")
    assert private.public_key() == public
    form = serialization.PrivateFormat.OpenSSH
    text = serialization.NoEncryption()
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "other").write_bytes(other.private_bytes(serialization.Encoding.PEM, form, text))
    for name, said in (
        ("other", "is not a key that Flower takes"),
        ("none", "cannot read the key"),
    ):
        with pytest.raises(UserError, match=said):
            fleet._keys(tmp_path / name)
