"""Answers of servers, room for requests, questions to Flower: table by table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedblocks import Config
from fedblocks.core.errors import UserError
from fedblocks.flower.client.causes import _cause_of_answer, cause_of
from fedblocks.flower.gateway.connections import ByteFlow
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.keys.public_keys import read_public
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.wire.run_spec import shape_of


@pytest.mark.parametrize(
    ("code", "said"),
    [
        *((code, "does not know the key of this client") for code in (401, 403, 404)),
        (412, "says that a client with this key is connected already"),
        (503, "there:1 cannot serve at the moment (it answers 503)"),
        (405, "there:1 answers 405"),
        (500, "there:1"),
        (418, "there:1 answers 418"),
    ],
)
def test_an_answer_says_why_a_client_is_not_let_in(code: int, said: str) -> None:
    assert said in _cause_of_answer(httpx.Response(code, text=""), "there:1").message


@pytest.mark.parametrize(
    ("under_way", "length", "fits"),
    [
        ({}, 500, True),  # a single one always does
        ({b"a": 30}, 20, True),
        ({b"a": 30}, 21, False),  # more than 50 of one client
        ({b"b": 50}, 50, True),
        ({b"b": 50}, 51, False),  # more than 100 of all
        ({b"b": 60, b"a": 1}, 40, False),
        ({b"b": 59, b"a": 1}, 40, True),
    ],
)
def test_requests_wait_for_room(under_way: dict[bytes, int], length: int, fits: bool) -> None:
    flow = ByteFlow(Limits(in_flight=100, in_flight_each=50))
    flow._bytes.update(under_way)
    assert flow._fits(b"a", length) is fits


def test_the_number_of_an_error_is_left_out() -> None:
    error = cause_of(httpx.ConnectError("[Errno 111] Connection refused"), "there:1")
    assert error.message == "there:1 does not answer (Connection refused)"


def answer(monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> list[Any]:
    calls: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append((command, options))
        return SimpleNamespace(stdout=text, stderr="", returncode=code)

    monkeypatch.setattr(launch.subprocess, "run", run)
    return calls


def test_flower_is_asked_in_the_federations_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = answer(monkeypatch, 'warning\n{"success": true, "runs": []}')
    monkeypatch.setenv("KEPT", "yes")
    assert launch.ask(tmp_path, "list", "--run-id", "7")["runs"] == []
    ((command, options),) = calls
    assert command == ["flwr", "list", "--run-id", "7", "--format", "json"]
    assert options["env"]["KEPT"] == "yes" and options["text"] and options["capture_output"]
    assert launch.environment(tmp_path).items() <= options["env"].items()
    for text, said in (("nothing", "failed: nothing"), ('{"success": false}', "flwr list failed")):
        answer(monkeypatch, text)
        with pytest.raises(UserError, match=said):
            launch.ask(tmp_path, "list")
    answer(monkeypatch, "{}", 1)
    with pytest.raises(UserError):
        launch.ask(tmp_path, "list")


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([{"status": "running"}], "running"),
        ([{"status": "finished", "status-details": "stopped"}], "finished stopped"),
        ([], "unknown"),
        (None, "unreachable"),
    ],
)
def test_flowers_word_on_a_run_is_passed_on(
    runs: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "no JSON" if runs is None else json.dumps({"success": True, "runs": runs}))
    assert running.flower_status(tmp_path, "7") == said


def test_a_public_key_may_have_blank_lines_around_it() -> None:
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    first = read_public(text, "here")
    again = read_public(b"\n  " + text + b"\n\n", "here")
    assert first.public_numbers() == again.public_numbers() == public.public_numbers()


def test_refused_nodes_are_asked_again_after_a_change_of_the_enrolment_only() -> None:
    known = [Enrolment({b"a": [0]}), Enrolment({b"a": [0]}), Enrolment({b"b": [1]})]
    registry: Any = SimpleNamespace(
        _enrolment=None, enrolled=lambda: known.pop(0), refused={7: "why"}, _when={7: 1.0, 8: 2.0}
    )
    read = lambda: Registry._read_enrolment(registry)
    read()
    assert registry._when == {7: 1.0, 8: 2.0}  # the first time there is nothing to compare with
    read()
    assert registry._when == {7: 1.0, 8: 2.0}
    read()
    assert registry._when == {8: 2.0} and registry._enrolment.knows(b"b", 1)
    assert not registry._enrolment.knows(b"a", 0) and not registry._enrolment.knows(b"b", 0)
    assert Enrolment().knows(b"any", 3)


@pytest.mark.parametrize(("tokens", "dtype"), [(True, torch.int64), (False, torch.float32)])
def test_of_data_that_stay_with_clients_the_server_knows_the_shape(
    tokens: bool, dtype: torch.dtype
) -> None:
    options = {"input_shape": [7], "label_shape": [7] if tokens else [], "classes": 5}
    data = {"name": "remote", "clients": 3, "options": {**options, "tokens": tokens}}
    table = {"rounds": 1, "net": "mlp", "method": "fedavg", "data": data}
    shape = shape_of(Config.of(table))
    assert shape.clients == 3 and shape.classes == 5 and shape.train.sizes.tolist() == [0, 0, 0]
    assert shape.x.shape[1:] == (7,) and shape.x.dtype == dtype
    assert list(shape.y.shape[1:]) == options["label_shape"] and shape.y.dtype == torch.int64
