"""Federations on one machine and runs on a server, call by call."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import Interrupted, RunFolderError, UserError
from fedblocks.flower.hosts import federation as module
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.keys.private_files import hold_server_folder

from .stored_jobs import stored

HOST = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, insecure=True,
                  bind="127.0.0.1")  # fmt: skip


class Called:
    """What functions of a module are called with, in order; each returns what it is told."""

    def __init__(self, switch: pytest.MonkeyPatch) -> None:
        self.switch, self.done = switch, list[Any]()

    def instead(self, owner: Any, name: str, answer: Any = None, words: int = 99) -> None:
        def call(*what: Any, **more: Any) -> Any:
            self.done.append((name, *what[:words], *([more] if more else [])))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        self.switch.setattr(owner, name, call)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    return Called(monkeypatch)


CHOICES: dict[str, Any] = {"seconds": 9.0}


def local(called: Called, path: Path, port: int | None, watched: Any) -> list[Any]:
    told: list[Any] = []
    server = path / "federation" / "server"
    variables = {"FEDBLOCKS_SERVER": str(server), **launch.environment(server)}
    group = lambda logs, own: called.done.append((logs, own == variables)) or nullcontext("p")
    called.switch.setattr(module, "ProcessGroup", group)
    called.switch.setattr(module, "ended_politely", nullcontext)
    called.instead(launch, "need_flower")
    called.instead(launch, "free_port", 77)
    called.instead(module, "check_run", 3)
    called.instead(module, "deal_out", ["client-000", "client-001"])
    called.instead(module, "hold_run", nullcontext())
    called.instead(module, "forget_connections")
    called.instead(running, "start_server", HOST, words=2)
    called.instead(module, "start_client")
    called.instead(module, "job_for", "a job")
    called.instead(running, "submit", SimpleNamespace(name="train-1"))
    called.instead(module, "command_for", "the command")
    called.instead(module, "watch", watched, words=3)
    called.instead(module, "interruption", Interrupted("stopped", "go on"))
    module.local(path, 2, CHOICES, told.append, told.append, port)  # type: ignore[arg-type]
    return told


@pytest.mark.parametrize("port", [None, 55])
def test_a_federation_on_one_machine_is_dealt_out_started_and_watched(
    port: int | None, called: Called, tmp_path: Path
) -> None:
    told = local(called, tmp_path, port, "the result")
    base = tmp_path / "federation"
    server = base / "server"
    assert [done for done in called.done if done[0] != "watch"] == [
        ("need_flower",),
        ("check_run", tmp_path),
        *([] if port else [("free_port",)]),
        ("deal_out", tmp_path, base, 2, port or 77),
        ("hold_run", server),
        (base / "logs", True),
        ("forget_connections", server),
        ("start_server", "p", server),
        ("start_client", "p", base / "client-000", "client-000"),
        ("start_client", "p", base / "client-001", "client-001"),
        ("job_for", tmp_path, "f", {"kind": "train", **CHOICES}),
        ("submit", server, "a job"),
        ("command_for", server, tmp_path),
    ]
    assert called.done[-1] == ("watch", tmp_path, told.append, told.append)
    text = "starting 2 nodes, and the app that goes through the rounds"
    assert [note.text for note in told] == [text]


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), Interrupted("by itself", "again")])
def test_ctrl_c_says_how_a_local_federation_goes_on_unless_that_was_said(
    ends: BaseException, called: Called, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted) as ended:
        local(called, tmp_path, 1, ends)
    said = ended.value.message
    assert said == ("by itself" if isinstance(ends, Interrupted) else "stopped")
    if said == "stopped":
        assert called.done[-1] == ("interruption", tmp_path, "local")


def test_a_folder_that_another_server_holds_is_that_of_a_run_in_use(tmp_path: Path) -> None:
    with module.hold_run(tmp_path):
        pass
    with (
        hold_server_folder(tmp_path),
        pytest.raises(RunFolderError, match=f"process {os.getpid()}\\) already") as held,
        module.hold_run(tmp_path),
    ):
        pass
    assert held.value.fix == "stop that one first, or wait for it"


@pytest.mark.parametrize(("status", "after"), [("interrupted", ["interrupted"]), ("running", [])])
@pytest.mark.parametrize("last", [None, 4])
def test_a_federation_that_was_ended_says_after_which_round(
    status: str, after: list[str], last: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    store = SimpleNamespace(last_round=lambda: last)
    folder = SimpleNamespace(status=status, set_status=done.append, store=store)
    monkeypatch.setattr(module.RunFolder, "open", lambda path: nullcontext(folder))
    error = module.interruption(Path("/run"), "local")
    assert error.message == f"stopped after round {last or 0}" and done == after
    assert error.fix == "go on with: fedblocks federation local /run"


def test_clients_are_dealt_out_in_turn_and_their_examples_agreed_on(
    called: Called, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    config = SimpleNamespace(resolved=lambda: {"data": {"name": "x", "options": {"path": "a"}}})
    shape = SimpleNamespace(
        clients=5, train=SimpleNamespace(sizes=np.array([1, 10, 100, 1000, 10000]))
    )
    called.switch.setattr(module.RunFolder, "open", lambda path: nullcontext("folder"))
    called.instead(module, "config_of", config)
    called.instead(module, "shape_of", shape)
    called.instead(module, "device_of", ("cuda:1", "why"))
    called.instead(launch, "free_port", 99)
    made: list[Any] = []

    def set_up(folder: Path, address: str, held: Any, *ports: int, **more: Any) -> None:
        made.append((folder, address, {name: [*some] for name, some in held.items()}, ports, more))
        HOST.model_copy(update={"clients": {n: tuple(s) for n, s in held.items()}}).write(
            folder / "server"
        )

    called.switch.setattr(module, "set_up", set_up)
    called.switch.chdir(tmp_path)
    assert module.deal_out(tmp_path, base, 2, 55) == ["client-000", "client-001"]
    held = {"client-000": [0, 2, 4], "client-001": [1, 3]}
    data = {"name": "x", "options": {"path": str(tmp_path / "a")}}
    more = {"insecure": False, "data": data, "device": "cuda:1", "pictures": True}
    assert made == [(base, "127.0.0.1", held, (55, 99), more)]
    examples = {"client-000": 10101, "client-001": 1010}
    assert ServerHost.read(base / "server").examples == examples
    assert module.deal_out(tmp_path, base, 9, 55) == ["client-000", "client-001"]
    assert len(made) == 1  # they stay where they were
    turned = {name: tuple(held[name]) for name in ("client-001", "client-000")}
    ServerHost.read(base / "server").model_copy(update={"clients": turned}).write(base / "server")
    assert module.deal_out(tmp_path, base, 9, 55) == ["client-000", "client-001"]
    assert len(module.deal_out(tmp_path, tmp_path / "many", 9, 55, insecure=True)) == 5
    assert made[1][4]["insecure"] is True
    called.switch.setattr(module, "node_name", lambda number: f"node-{9 - number}")
    assert module.deal_out(tmp_path, tmp_path / "new", 2, 55) == ["node-8", "node-9"]


def test_what_would_hinder_a_new_start_is_removed_and_nothing_else(tmp_path: Path) -> None:
    gone = ["flower.db", "flower.db-wal", "jobs/train-1.json"]
    kept = ["server.toml", "jobs/lock", "jobs/train-1.lock", "my-flower.db"]
    (tmp_path / "jobs").mkdir()
    for name in (*gone, *kept):
        (tmp_path / name).touch()
    module.forget_connections(tmp_path)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {*kept}


@pytest.mark.parametrize(
    ("status", "fix", "error", "said"),
    [
        ("failed", "mend it", UserError, "mend it"), ("failed", "", UserError, "see LOG"),
        ("stopped", "", Interrupted, "go on with: fedblocks federation run /run --server SERVER"),
        ("running", "", None, ""), ("submitted", "", None, ""), ("finished", "", None, ""),
    ],
)  # fmt: skip
def test_a_job_that_failed_or_was_stopped_is_watched_no_longer(
    status: str, fix: str, error: Any, said: str, tmp_path: Path
) -> None:
    record = stored(tmp_path, status=status, fix=fix, reason="odd", exit_code=1)
    if error is None:
        module.check_job(tmp_path, record.name)
        return
    with pytest.raises(error) as ended:
        module.check_job(tmp_path, record.name)
    log = str(tmp_path / "logs" / "superexec.log")
    assert ended.value.fix == said.replace("LOG", log).replace("SERVER", str(tmp_path))
    assert ended.value.message == ("odd" if status == "failed" else "the run was stopped")


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_a_run_on_a_server_is_handed_over_and_watched_unless_it_is_finished(
    status: str, called: Called, tmp_path: Path
) -> None:
    told: list[Any] = []
    HOST.write(tmp_path)
    called.instead(launch, "need_flower")
    called.instead(running, "refuse_going_on")
    called.instead(module, "check_run", 4)
    folder = SimpleNamespace(status=status)
    called.switch.setattr(module.RunFolder, "open", lambda path: nullcontext(folder))
    called.instead(module, "result_of", "as it was")
    called.instead(running, "enrol", words=2)
    called.instead(module, "job_for", "a job")
    called.instead(running, "submit", SimpleNamespace(name="train-1"))
    called.instead(module, "check_job")
    looks = SimpleNamespace(look=lambda: called.done.append("looked"))
    called.switch.setattr(module, "ServerWatch", lambda host, server, tell: looks)

    def watch(path: Path, on_round: Any, on_note: Any, tend: Any, command: str, after: int) -> Any:
        tend()
        return path, command, after

    called.switch.setattr(module, "watch", watch)
    result: Any = module.go_on(tmp_path, Path("/run"), CHOICES, told.append, told.append)
    first = [("need_flower",), ("refuse_going_on", tmp_path, "/run"), ("check_run", Path("/run"))]
    if status == "finished":
        assert result == "as it was" and called.done == [*first, ("result_of", folder)]
        assert [note.text for note in told] == ["/run was finished already; it is as it was"]
        return
    assert result == (Path("/run"), f"fedblocks federation run /run --server {tmp_path}", 4)
    job = ("job_for", Path("/run"), "f", {"kind": "train", **CHOICES})
    assert called.done == [*first, ("enrol", HOST, tmp_path), job, ("submit", tmp_path, "a job"),
                           ("check_job", tmp_path, "train-1"), "looked"]  # fmt: skip
