"""Flower's own programs: their commands and environment; they send and install nothing unasked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.core.errors import UserError
from fedblocks.core.full_disks import writing
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.trust import trust_in

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    POLL: "0.2",  # seconds; Flower's own second is felt in every message
    "RAY_USAGE_STATS_ENABLED": "0",
}
SERVER = "FEDBLOCKS_SERVER"  # where the server's app finds its folder


def need_flower() -> None:
    """Say what to install where Flower is missing."""
    if find_spec("flwr") is None:
        raise UserError(
            "a real federation needs Flower, which is not installed",
            "pip install 'fedblocks[flower]'",
        )


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a federation's processes: Flower's home is in this
    folder, and nothing is sent out.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**QUIET, "FLWR_HOME": str(folder / "flower"), "PATH": path, "PYTHONUNBUFFERED": "1"}


def superlink(host: ServerHost, folder: Path) -> list[str]:
    """Return the command of Flower's server, which keeps its state in a file and runs
    apps in other processes.
    """
    command = [sys.executable, "-m", "fedblocks.flower.gateway.superlink", "--isolation", "process"]
    command += ["--host", "127.0.0.1", "--port", str(host.inner_port)]
    command += ["--database", str(folder / "flower.db")]
    command += ["--disable-runtime-dependency-installation"]
    if host.insecure:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(folder / "ca.crt")]
    command += ["--ssl-certfile", str(folder / "server.crt")]
    command += ["--ssl-keyfile", str(folder / "server.key")]
    return [*command, "--enable-supernode-auth"]


def superexec(host: ServerHost, folder: Path) -> list[str]:
    """Return the command of the process that starts the server's app, and outlives a
    SuperLink that is killed.
    """
    secured = ["--insecure"] if host.insecure else ["--root-certificates", str(folder / "ca.crt")]
    command = [sys.executable, "-m", "fedblocks.flower.hosts.superexec", *secured]
    return [*command, "--runtime-api-address", f"127.0.0.1:{host.inner_port}"]


def connect(host: ServerHost, folder: Path) -> None:
    """Tell Flower's commands where this federation is."""
    secured = {"insecure": True} if host.insecure else {"root-certificates": str(folder / "ca.crt")}
    link = {"address": f"127.0.0.1:{host.inner_port}", **secured}
    home = folder / "flower"
    settings = {"superlink": {"default": "federation", "federation": link}}
    with writing(home):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / "config.toml").write_text(tomli_w.dumps(settings))


def ask(folder: Path, *words: str) -> dict[str, Any]:
    """Run one of Flower's commands and return its answer."""
    command = ["flwr", *words, "--format", "json"]
    variables = {**os.environ, **environment(folder)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError as error:
        text = (done.stderr or done.stdout).strip()[-300:]
        raise UserError(
            f"flwr {words[0]} failed: {text}", "see that the server is running"
        ) from error
    if not answer.get("success", done.returncode == 0):
        raise UserError(
            f"flwr {words[0]} failed: {answer.get('error-message', answer)}", "see the server's log"
        )
    return answer


def log_of(folder: Path, number: str) -> str:
    """Return what an app said so far, by the number that Flower gave its run."""
    command = ["flwr", "log", number, "--show"]
    variables = {**os.environ, **environment(folder)}
    return subprocess.run(command, env=variables, capture_output=True, text=True).stdout


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def refuse_used(host: str, port: int) -> None:
    """Refuse a port that is taken, before anything is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            fix = "stop what uses it, or choose another port"
            raise UserError(
                f"port {port} of {host} cannot be used: {error.strerror}", fix
            ) from error


def healthy(host: ServerHost, folder: Path) -> bool:
    """Whether the SuperLink answers."""
    secured = None if host.insecure else trust_in(folder)
    address = f"http{'' if host.insecure else 's'}://127.0.0.1:{host.inner_port}/health"
    try:
        with urllib.request.urlopen(address, timeout=5, context=secured) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def is_open(host: ServerHost) -> bool:
    """Whether the gateway takes connections."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.bind, host.bind)
    try:
        with socket.create_connection((here, host.port), timeout=5):
            return True
    except OSError:
        return False


def until(
    is_ready: Callable[[], bool], seconds: float, check: Callable[[], object], what: str
) -> None:
    """Wait until `is_ready`; `check` is called all the while, and may raise."""
    end = time.monotonic() + seconds
    while not is_ready():
        check()
        if time.monotonic() > end:
            raise UserError(f"{what} is not ready after {seconds:g} s", "see the logs")
        time.sleep(0.1)
