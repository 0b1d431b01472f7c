"""A client's folder has one process; what is in the way of its files, or of its work, is said to
whoever started it.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedblocks.core.errors import UserError
from fedblocks.flower.client import host, node
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.lock import IN_USE, InUseError, alone
from fedblocks.flower.client.node import Node, Trouble
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.folders import SettingsError
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.keys.private_files import hold_server_folder, locked
from fedblocks.flower.wire.records import HELLO, with_spec

DATA = {"name": "digits", "clients": 2}
RUNNING = Standing("connected", "connected", process=4711)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    set_up(tmp_path / "f", "127.0.0.1", {"one": [0], "two": [1]}, insecure=True, data=DATA)
    return tmp_path / "f" / "one"


def test_a_second_process_writes_nothing_into_the_folder_of_the_first(folder: Path) -> None:
    RUNNING.write(folder)
    with alone(folder):
        assert node.main(folder) == IN_USE
        assert Standing.read(folder) == RUNNING
        with pytest.raises(InUseError, match="another process already works"):
            host.host_client(folder, lambda text: None)
    assert not (folder / "logs").exists()


def test_a_host_whose_process_came_second_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: Any = SimpleNamespace(pid=1, poll=lambda: IN_USE)
    processes: Any = SimpleNamespace(running={host.NAME: ended})
    with pytest.raises(InUseError):
        host.watch_client(processes, folder, lambda text: None)


def test_a_folder_in_the_place_of_a_lock_is_named(folder: Path) -> None:
    (folder / ".lock").mkdir()
    assert node.main(folder) == 1
    standing = Standing.read(folder)
    assert standing is not None and f"{folder / '.lock'} is a folder" in standing.text
    with pytest.raises(UserError, match="is a folder"), locked(folder):
        pass
    (folder / "server.pid").mkdir()
    with pytest.raises(UserError, match="is a folder"), hold_server_folder(folder):
        pass


@pytest.mark.parametrize("name", ["client", "superlink", "gateway", "superexec"])
def test_a_named_pipe_in_the_place_of_a_log_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{name}.log")
    with (
        ProcessGroup(tmp_path, {}) as processes,
        pytest.raises(UserError, match=r"\.log is a named pipe"),
    ):
        processes.start(name, ["true"])


def asked(client: Node, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a server hears from a client that it asks who it is."""
    monkeypatch.setattr(client.fleet, "fetch", lambda *_: None)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    question = Message(with_spec(RecordDict({"hello": ConfigRecord({})}), "{}"), 1, HELLO)
    return str(client._fetch_and_reply(1, question, None).error.reason)  # type: ignore[arg-type]


def test_broken_settings_are_shown_to_the_owner_and_named_by_their_kind_to_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Node(folder)
    (folder / "client.toml").write_text("clients = [")
    assert asked(client, monkeypatch) == "its settings cannot be used; its log says why"
    standing = Standing.read(folder)
    assert standing is not None and "client.toml" in standing.text and "TOML" in standing.text


def test_a_trouble_is_shown_once(folder: Path) -> None:
    client = Node(folder)
    handler = Trouble(client.show_trouble)
    record = logging.makeLogRecord({"msg": "client %d cannot", "args": (0,), "levelno": 30})
    handler.emit(record)
    standing = Standing.read(folder)
    assert standing is not None and (standing.state, standing.text) == (
        "connected",
        "client 0 cannot",
    )
    RUNNING.write(folder)
    handler.emit(record)
    assert Standing.read(folder) == RUNNING


def test_what_a_client_says_while_it_works_reaches_its_host(folder: Path) -> None:
    client = Node(folder)
    client.fleet.enter = lambda number: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.run()
    logging.getLogger("fedblocks.flower.client.side").warning("client 0 cannot write")
    standing = Standing.read(folder)
    assert standing is not None and standing.text == "client 0 cannot write"


def test_a_full_disk_of_a_client_is_told_once_on_its_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, None])

    def read(_: Path) -> None:
        if next(looks, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(host, "is_full", lambda path: True)
    monkeypatch.setattr(host.Standing, "read", read)
    monkeypatch.setattr(host, "TEND", 0.0)
    alive: Any = SimpleNamespace(pid=1, poll=lambda: None)
    processes: Any = SimpleNamespace(
        running={host.NAME: alive}, revive=lambda: [], trim_logs=lambda: None
    )
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        host.watch_client(processes, folder, said.append)
    assert len(said) == 1 and "is full" in said[0] and "make room" in said[0]


def test_kinds_of_failures_are_words_and_name_no_class() -> None:
    full = UserError("cannot write /ward")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    excuses = [excuse_for(error) for error in (full, SettingsError("/ward"), UserError("/ward"))]
    assert excuses[0] == "its disk is full"
    assert all("Error" not in text and "ward" not in text for text in excuses)
