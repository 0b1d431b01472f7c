"""What Flower's programs are started with, word by word, with certificates and without."""

from __future__ import annotations

import socket
import sys
import tomllib
from pathlib import Path

import pytest

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ServerHost

FOLDER = Path("/somewhere")
OPEN = ServerHost(
    federation="f", address="127.0.0.1", bind="127.0.0.1", insecure=True, port=7, inner_port=8
)
CLOSED = ServerHost(federation="f", address="fl.example.org", port=7, inner_port=8)
LINK = [
    sys.executable, "-m", "fedblocks.flower.gateway.superlink", "--isolation", "process",
    "--host", "127.0.0.1", "--port", "8", "--database", "/somewhere/flower.db",
    "--disable-runtime-dependency-installation",
]  # fmt: skip


def test_the_server_of_flower_has_its_certificates_and_knows_its_clients_by_keys() -> None:
    assert launch.superlink(OPEN, FOLDER) == [*LINK, "--insecure"]
    assert launch.superlink(CLOSED, FOLDER) == [
        *LINK, "--ssl-ca-certfile", "/somewhere/ca.crt", "--ssl-certfile", "/somewhere/server.crt",
        "--ssl-keyfile", "/somewhere/server.key", "--enable-supernode-auth",
    ]  # fmt: skip


def test_the_process_that_starts_apps_trusts_the_same_authority() -> None:
    inner = ["--runtime-api-address", "127.0.0.1:8"]
    starter = [sys.executable, "-m", "fedblocks.flower.hosts.superexec"]
    assert launch.superexec(OPEN, FOLDER) == [*starter, "--insecure", *inner]
    assert launch.superexec(CLOSED, FOLDER) == [
        *starter, "--root-certificates", "/somewhere/ca.crt", *inner,
    ]  # fmt: skip


@pytest.mark.parametrize("host", [OPEN, CLOSED], ids=["open", "closed"])
def test_commands_of_flower_find_the_federation(host: ServerHost, tmp_path: Path) -> None:
    launch.connect(host, tmp_path)
    settings = tomllib.loads((tmp_path / "flower" / "config.toml").read_text())
    secured = (
        {"insecure": True} if host.insecure else {"root-certificates": str(tmp_path / "ca.crt")}
    )
    link = {"address": "127.0.0.1:8", **secured}
    assert settings == {"superlink": {"default": "federation", "federation": link}}
    assert (tmp_path / "flower").stat().st_mode & 0o777 == 0o700


def test_nothing_is_sent_out_and_home_is_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    own = launch.environment(FOLDER)
    assert own == {
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", launch.POLL: "0.2",
        "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": "/somewhere/flower",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def test_a_port_in_use_is_refused_and_an_open_one_is_seen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert launch.is_open(OPEN.model_copy(update={"port": port}))
        assert launch.is_open(OPEN.model_copy(update={"port": port, "bind": "0.0.0.0"}))
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 cannot be used"):
            launch.refuse_used("127.0.0.1", port)
    launch.refuse_used("127.0.0.1", port)
    assert not launch.is_open(OPEN.model_copy(update={"port": port}))
    assert not launch.healthy(OPEN.model_copy(update={"inner_port": port}), FOLDER)


def test_somebody_who_waits_looks_after_the_processes_meanwhile() -> None:
    checks: list[int] = []
    launch.until(lambda: len(checks) == 2, 60, lambda: checks.append(1), "it")
    assert len(checks) == 2
    with pytest.raises(UserError, match="it is not ready after 0 s"):
        launch.until(lambda: False, 0, lambda: None, "it")
