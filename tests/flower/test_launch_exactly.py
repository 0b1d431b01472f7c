"""Flower's programs as they are started and asked, word for word."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
import urllib.error
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ServerHost

from .key_folders import mode

HOST = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, insecure=True,
                  bind="127.0.0.1")  # fmt: skip
SECURE = HOST.model_copy(update={"insecure": False})


def test_processes_live_in_their_folder_and_send_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/bin")
    assert launch.environment(Path("/f")) == {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": "/f/flower",
        "PATH": f"{Path(sys.executable).parent}:/bin",
        "PYTHONUNBUFFERED": "1",
    }
    monkeypatch.delenv("PATH")
    assert launch.environment(Path("/f"))["PATH"] == f"{Path(sys.executable).parent}:"


def test_the_commands_of_flowers_server_are_these() -> None:
    first = [sys.executable, "-m"]
    link = [*first, "fedblocks.flower.gateway.superlink", "--isolation", "process",
            "--host", "127.0.0.1", "--port", "12", "--database", "/f/flower.db",
            "--disable-runtime-dependency-installation"]  # fmt: skip
    secured = ["--ssl-ca-certfile", "/f/ca.crt", "--ssl-certfile", "/f/server.crt",
               "--ssl-keyfile", "/f/server.key", "--enable-supernode-auth"]  # fmt: skip
    assert launch.superlink(HOST, Path("/f")) == [*link, "--insecure"]
    assert launch.superlink(SECURE, Path("/f")) == [*link, *secured]
    starter = [*first, "fedblocks.flower.hosts.superexec"]
    address = ["--runtime-api-address", "127.0.0.1:12"]
    assert launch.superexec(HOST, Path("/f")) == [*starter, "--insecure", *address]
    trusted = ["--root-certificates", "/f/ca.crt"]
    assert launch.superexec(SECURE, Path("/f")) == [*starter, *trusted, *address]


@pytest.mark.parametrize(
    ("host", "secured"),
    [(HOST, {"insecure": True}), (SECURE, {"root-certificates": "FOLDER/ca.crt"})],
)  # fmt: skip
def test_flowers_commands_find_the_federation_in_a_home_of_their_owner(
    host: ServerHost, secured: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    for _ in range(2):  # the second time it is there already
        launch.connect(host, folder)
    words = {k: v.replace("FOLDER", str(folder)) if k != "insecure" else v
             for k, v in secured.items()}  # fmt: skip
    link = {"address": "127.0.0.1:12", **words}
    stored = tomllib.loads((folder / "flower" / "config.toml").read_text())
    assert stored == {"superlink": {"default": "federation", "federation": link}}
    assert mode(folder / "flower") == 0o700


def flwr(monkeypatch: pytest.MonkeyPatch, out: str, err: str = "", code: int = 0) -> list[Any]:
    calls: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append((command, options))
        return SimpleNamespace(stdout=out, stderr=err, returncode=code)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(launch, "environment", lambda folder: {"FLWR_HOME": str(folder)})
    return calls


@pytest.mark.parametrize(
    ("out", "err", "code", "said"),
    [
        ('{"a": 1}', "", 0, None), ('x {"a": 1}', "", 0, None),
        ('{"a": 1, "success": true}', "", 1, None),
        ('{"a": 1}', "", 1, "{'a': 1}"),
        ('{"success": false, "error-message": "odd"}', "", 0, "odd"),
        ("out", "e" * 301, 0, "e" * 300), ("o" * 301, "", 0, "o" * 300), ("{", "err", 0, "err"),
    ],
)  # fmt: skip
def test_flowers_answer_is_taken_or_its_end_is_told(
    out: str, err: str, code: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flwr(monkeypatch, out, err, code)
    if said is None:
        assert launch.ask(Path("/f"), "run", "x")["a"] == 1
    else:
        with pytest.raises(UserError) as told:
            launch.ask(Path("/f"), "run", "x")
        assert told.value.message == f"flwr run failed: {said}"


def test_the_log_of_a_run_is_asked_for_once_and_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = flwr(monkeypatch, "said")
    assert launch.log_of(Path("/f"), "7") == "said"
    variables = {**os.environ, "FLWR_HOME": "/f"}
    options = {"env": variables, "capture_output": True, "text": True}
    assert calls == [(["flwr", "log", "7", "--show"], options)]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (201, False), (None, False)])
@pytest.mark.parametrize(
    ("host", "address", "trust"),
    [(HOST, "http://127.0.0.1:12/health", None), (SECURE, "https://127.0.0.1:12/health", "/f")],
)
def test_a_superlink_is_healthy_if_it_says_so_within_five_seconds(
    status: int | None,
    healthy: bool,
    host: ServerHost,
    address: str,
    trust: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def fetch(url: str, **options: Any) -> Any:
        asked.append((url, options))
        if status is None:
            raise urllib.error.URLError("away")
        return nullcontext(SimpleNamespace(status=status))

    monkeypatch.setattr(launch.urllib.request, "urlopen", fetch)
    monkeypatch.setattr(launch, "trust_in", str)
    assert launch.healthy(host, Path("/f")) is healthy
    assert asked == [(address, {"timeout": 5, "context": trust})]


@pytest.mark.parametrize(
    ("bind", "here"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1")],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_gateway_is_open_where_it_is_bound(
    bind: str, here: str, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def connect(address: Any, timeout: float) -> Any:
        asked.append((address, timeout))
        if not is_open:
            raise OSError("away")
        return nullcontext()

    monkeypatch.setattr(launch.socket, "create_connection", connect)
    host = SECURE.model_copy(update={"bind": bind})
    assert launch.is_open(host) is is_open and asked == [((here, 11), 5)]


@pytest.mark.parametrize(
    ("ready", "fails"), [(0.0, False), (2.0, False), (2.1, False), (9.0, True)]
)
def test_what_is_not_ready_is_waited_for_and_watched(
    ready: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks every tenth of a second; one at the very end counts."""
    clock = SimpleNamespace(now=100.0, checks=0, slept=list[float]())

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.now = round(clock.now + seconds, 6)

    def check() -> None:
        clock.checks += 1

    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    is_ready = lambda: clock.now >= 100.0 + ready
    if fails:
        with pytest.raises(UserError, match=r"^it is not ready after 2 s"):
            launch.until(is_ready, 2.0, check, "it")
        assert clock.now == 102.1
    else:
        launch.until(is_ready, 2.0, check, "it")
        assert clock.now == 100.0 + ready
    assert {*clock.slept} <= {0.1} and clock.checks == len(clock.slept) + fails


def test_a_free_port_can_be_used_also_right_after_another_used_it() -> None:
    port = launch.free_port()
    launch.refuse_used("127.0.0.1", port)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # this end waits for a while now
    launch.refuse_used("127.0.0.1", port)
