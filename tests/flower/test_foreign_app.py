"""A server's operator starts an app of his own: nothing of it runs on a client, though
it would on one of Flower's.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.flower.client.host import start_client
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up

from .deployments import descendants, stands

pytestmark = pytest.mark.timeout(300)

LISTENING = "0A"  # the state of a socket, in the kernel's table
PAGE = """
[project]
name = "foreign"
version = "1.0.0"
description = "not of this library"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.server:app"
clientapp = "foreign.client:app"
[tool.flwr.app.config]
"""
SERVER = """
import json, time
from contextlib import suppress
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    question = RecordDict({{"config": ConfigRecord({{"do": "as I say"}})}})
    questions = [Message(question, node, "train") for node in nodes]
    replies = grid.send_and_receive(questions, timeout=60)
    said = [reply.error.reason if reply.has_error() else "done" for reply in replies]
    Path({answers!r}).write_text(json.dumps(said))
"""
CLIENT = """
from contextlib import suppress
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
Path({imported!r}).touch()
app = ClientApp()
@app.train()
def train(message, context):
    Path({called!r}).touch()
    return Message(RecordDict(), reply_to=message)
"""


class Foreign:
    """An app, and the traces that it leaves."""

    def __init__(self, base: Path) -> None:
        self.imported, self.called, self.answers = (
            base / name for name in ("imported", "called", "answers")
        )
        paths = {name: str(getattr(self, name)) for name in ("imported", "called", "answers")}
        self.app = base / "app"
        (self.app / "foreign").mkdir(parents=True)
        (self.app / "pyproject.toml").write_text(PAGE)
        (self.app / "foreign" / "__init__.py").touch()
        (self.app / "foreign" / "server.py").write_text(SERVER.format(**paths))
        (self.app / "foreign" / "client.py").write_text(CLIENT.format(**paths))

    def start(self, server: Path, processes: ProcessGroup) -> list[str]:
        """Let the operator run it; what the clients answered."""
        launch.ask(server, "run", str(self.app))
        launch.until(self.answers.exists, 120, processes.check, "the end of the app")
        lines: list[str] = json.loads(self.answers.read_text())
        return lines


def stock(server: Path, folder: Path) -> list[str]:
    """Flower's own client, with the same key, past the gateway: that passes no apps."""
    inside = f"127.0.0.1:{ServerHost.read(server).inner_port}"
    address = ["--superlink", inside, "--host", "127.0.0.1", "--port", str(launch.free_port())]
    key = [
        "--root-certificates",
        str(folder / "ca.crt"),
        "--auth-supernode-private-key",
        str(folder / "client.key"),
    ]
    return ["flower-supernode", *address, *key]


def ports_of(pid: int) -> set[str]:
    """The ports on which a process, or one that it started, waits for others to connect."""
    held = set()
    for one in (pid, *descendants(pid)):
        with suppress(OSError):  # it ended meanwhile, or closed the file
            held |= {os.readlink(file) for file in Path(f"/proc/{one}/fd").iterdir()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == LISTENING and f"socket:[{line[9]}]" in held}


def test_nothing_of_a_foreign_app_runs_on_a_client_and_nobody_can_connect_to_it(
    tmp_path: Path,
) -> None:
    server, folder = tmp_path / "f" / "server", tmp_path / "f" / "one"
    data = {"name": "digits", "clients": 1}
    set_up(
        tmp_path / "f", "127.0.0.1", {"one": [0]}, launch.free_port(), launch.free_port(), data=data
    )
    variables = {**launch.environment(server), launch.SERVER: str(server)}
    with ProcessGroup(tmp_path / "logs", variables) as processes:
        running.start_server(processes, server, print)
        start_client(processes, folder, "one")
        launch.until(lambda: stands(folder, "connected"), 60, processes.check, "the client")
        assert ports_of(processes.running["one"].pid) == set()
        ours = Foreign(tmp_path / "ours")
        assert ours.start(server, processes) == [
            "refused: not-fedblocks: the message is not of a fedblocks run"
        ]
        assert not ours.imported.exists() and not ours.called.exists()
        assert "the message is not of a fedblocks run" in processes.log("one").read_text()
        processes.running["one"].send_signal(signal.SIGTERM)
        processes.running.pop("one").wait(30)
        # without this defence
        processes.start("stock", stock(server, folder), **launch.environment(folder))
        theirs = Foreign(tmp_path / "theirs")
        assert theirs.start(server, processes) == ["done"]
        assert theirs.imported.exists() and theirs.called.exists()
        assert ports_of(processes.running["stock"].pid) != set()
    assert processes.living() == []
