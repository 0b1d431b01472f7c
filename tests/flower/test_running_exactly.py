"""A server's processes and jobs, call by call: what is started, what is told, what is tried
again.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.server.jobs import load_job

from .stored_jobs import job_of, stored

HOST = ServerHost(federation="f", address="127.0.0.1", port=11, inner_port=12, insecure=True,
                  bind="127.0.0.1")  # fmt: skip


class Processes:
    """Stands in for a group of processes."""

    def __init__(self, done: list[Any]) -> None:
        self.done = done
        self.check = lambda: None

    def start(self, name: str, command: list[str], **more: str) -> None:
        self.done.append((name, [str(word) for word in command], more))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of `launch`."""
    own: list[Any] = []
    monkeypatch.setattr(launch, "refuse_used", lambda *what: own.append(("free", *what)))
    monkeypatch.setattr(launch, "connect", lambda *what: own.append(("connect", *what)))
    monkeypatch.setattr(launch, "healthy", lambda *what: what)
    monkeypatch.setattr(launch, "is_open", lambda *what: what)
    monkeypatch.setattr(launch, "superlink", lambda host, folder: ["link", host.port])
    monkeypatch.setattr(launch, "superexec", lambda host, folder: ["exec", host.port])

    def until(is_ready: Any, seconds: float, check: Any, what: str) -> None:
        own.append((is_ready(), seconds, what))

    monkeypatch.setattr(launch, "until", until)
    return own


def test_a_superlink_is_there_before_the_process_that_starts_apps(
    done: list[Any], tmp_path: Path
) -> None:
    running.start_superlink(Processes(done), HOST, tmp_path, "--more")  # type: ignore[arg-type]
    assert done == [
        ("free", "127.0.0.1", 12),
        ("connect", HOST, tmp_path),
        ("superlink", ["link", "11", "--more"], {}),
        ((HOST, tmp_path), 60.0, "the SuperLink"),
        ("superexec", ["exec", "11"], {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}),
    ]


def test_the_door_opens_last(
    done: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOST.write(tmp_path)
    monkeypatch.setattr(running, "start_superlink", lambda *what: done.append("superlink"))
    monkeypatch.setattr(running, "enrol", lambda *what: done.append(what))
    assert running.start_server(Processes(done), tmp_path, done.append) == HOST  # type: ignore[arg-type]
    gateway = [sys.executable, "-m", "fedblocks.flower.gateway.gateway", str(tmp_path)]
    assert done == [
        ("free", "127.0.0.1", 11),
        "starting the server",
        "superlink",
        ("gateway", gateway, {}),
        (HOST, tmp_path, done.append),
        ((HOST,), 60.0, "the gateway"),
    ]


class Control:
    """Stands in for Flower's interface for commands."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes, self.done = nodes, list[Any]()

    def ListNodes(self, request: Any) -> Any:
        return SimpleNamespace(nodes_info=self.nodes)

    def RegisterNode(self, request: Any) -> None:
        self.done.append(("new", bytes(request.public_key), request.name))

    def UnregisterNode(self, request: Any) -> None:
        self.done.append(("gone", request.node_id))


def node(key: bytes, number: int, status: str = "online") -> Any:
    return SimpleNamespace(public_key=key, node_id=number, status=status)


def open_to(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_control", lambda host, folder: nullcontext(control))
    monkeypatch.setattr(running, "locked", lambda folder: nullcontext())


SECURE = HOST.model_copy(update={"insecure": False})


def test_flower_learns_new_keys_and_is_told_to_cut_off_those_that_were_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(b"a", 1), node(b"r", 2), node(b"s", 3), node(b"t", 4, "unregistered"),
             node(b"u", 5, "unregistered"), node(b"v", 6)]  # fmt: skip
    control = Control(nodes)
    open_to(control, monkeypatch)
    wanted = {b"a": "ann", b"b": "zoe", b"c": "bob", b"u": "una", b"d": "cid", b"e": "dan"}
    monkeypatch.setattr(running, "_names_by_key", lambda folder, tell: wanted)
    revoked = {b"r", b"s", b"t", b"a"}
    monkeypatch.setattr(running, "revoked_keys", lambda folder: revoked)
    told: list[str] = []
    running.enrol(SECURE, tmp_path, told.append)
    # "a" is enrolled again, "t" was cut off before, "v" is only taken out of the list
    assert sorted(control.done, key=str) == [
        ("gone", 2), ("gone", 3), ("new", b"b", "zoe"), ("new", b"c", "bob"),
        ("new", b"d", "cid"), ("new", b"e", "dan"),
    ]  # fmt: skip
    assert told == [
        running._not_taken_back("una", tmp_path),
        "enrolling bob, cid, dan, zoe",
        "cut off: 2 revoked or replaced keys",
    ]
    assert told[0].startswith("warning: una is not let in: its key was cut off before")
    assert told[0].endswith(f"then: fedblocks federation enrol {tmp_path} una.json")


def test_nothing_is_told_where_nothing_changed_and_nothing_asked_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control([node(b"a", 1)])
    open_to(control, monkeypatch)
    monkeypatch.setattr(running, "_names_by_key", lambda folder, tell: {b"a": "ann"})
    monkeypatch.setattr(running, "revoked_keys", lambda folder: set())
    told: list[str] = []
    running.enrol(SECURE, tmp_path, told.append)
    control.nodes = []
    running.enrol(HOST, tmp_path, told.append)
    assert told == [] and control.done == []


@pytest.mark.parametrize(
    ("host", "rows"),
    [
        (SECURE, [("ann", "online", "1")]),
        (HOST, [("node 1", "online", "1"), ("node 3", "offline", "3")]),
    ],
)
def test_machines_are_listed_by_the_names_of_their_keys(
    host: ServerHost, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(b"a", 1), node(b"b", 2, "unregistered"), node(b"c", 3, "offline")]
    open_to(Control(nodes), monkeypatch)
    names = {b"a": "ann", b"b": "bob"}
    monkeypatch.setattr(running, "_names_by_key", lambda folder, tell: names)
    assert running.list_nodes(host, tmp_path) == rows


@contextmanager
def flower(answer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[Any] = []

    def ask(server: Path, *words: str) -> Any:
        asked.append(words)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(launch, "ask", ask)
    yield asked


@pytest.mark.parametrize(
    ("submissions", "error", "status", "reason", "count"),
    [
        (0, None, "submitted", "", 1),
        (2, None, "submitted", "", 3),
        (0, UserError("away", "wait"), "failed", "away", 1),
        (2, UserError("away", "wait"), "running", "", 2),
        (0, KeyboardInterrupt(), "stopped", "", 1),
    ],
)
def test_a_job_that_flower_does_not_take_is_as_it_was_before_or_fails_the_first_time(
    submissions: int,
    error: BaseException | None,
    status: str,
    reason: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = stored(tmp_path, status="running", submissions=submissions, flower_run="6")
    with flower(error or {"run-id": 7}, monkeypatch) as asked:
        if error is None:
            assert running._start(tmp_path, before).flower_run == "7"
        else:
            with pytest.raises(type(error)):
                running._start(tmp_path, before)
    app = tmp_path / "jobs" / before.name
    assert asked == [("run", str(app))] and (app / "pyproject.toml").is_file()
    after = load_job(tmp_path, before.name)
    assert (after.status, after.reason, after.submissions) == (status, reason, count)


@pytest.mark.parametrize("kind", ["train", "adapt"])
def test_a_training_is_checked_and_settled_before_it_is_handed_over(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    for name in ("refuse_going_on", "refuse_copy", "_settle"):
        monkeypatch.setattr(running, name, lambda *what, name=name: done.append((name, *what)))
    monkeypatch.setattr(running, "_start", lambda *what: what)
    job = job_of("/run", kind=kind)
    server, record = running.submit(tmp_path, job)  # type: ignore[misc]
    assert server == tmp_path and record.job == job
    first = [("refuse_going_on", tmp_path, "/run"), ("refuse_copy", tmp_path, job),
             ("_settle", Path("/run"))]  # fmt: skip
    assert done == (first if kind == "train" else [])


@pytest.mark.parametrize(
    ("kind", "status", "refused"),
    [("train", "submitted", True), ("train", "running", True), ("train", "finished", False),
     ("adapt", "running", False)],
)  # fmt: skip
def test_a_run_that_is_being_trained_is_not_trained_twice(
    kind: str, status: str, refused: bool, tmp_path: Path
) -> None:
    stored(tmp_path, kind=kind, status=status)
    running.refuse_going_on(tmp_path, "/other")
    if refused:
        with pytest.raises(RunFolderError, match="the server is training /run already"):
            running.refuse_going_on(tmp_path, "/run")
    else:
        running.refuse_going_on(tmp_path, "/run")


@pytest.mark.parametrize(
    ("status", "after"),
    [("failed", ["interrupted"]), ("interrupted", ["interrupted"]), ("running", []),
     ("finished", [])],
)  # fmt: skip
def test_a_run_that_failed_is_interrupted_before_it_goes_on(
    status: str, after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    folder = SimpleNamespace(status=status, set_status=done.append)
    monkeypatch.setattr(running.RunFolder, "open", lambda path: nullcontext(folder))
    running._settle(Path("/run"))
    assert done == after
