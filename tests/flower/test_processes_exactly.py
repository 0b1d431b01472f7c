"""Groups of processes, and the host of a machine's clients, with stand-ins for the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.flower.client import host as hosting
from fedblocks.flower.client.lock import InUseError
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts import launch, process_group
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely, trim_log

from .key_folders import mode


def process(pid: int, code: int | None = None) -> Any:
    return SimpleNamespace(pid=pid, poll=lambda: code)


def test_a_process_is_started_in_a_session_with_a_log_and_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(
        process_group.subprocess, "Popen", lambda command, **options: started.append(
            (command, {**options, "stdout": os.fstat(options["stdout"].fileno()).st_ino,
                       "stderr": options["stdout"] is options["stderr"]})) or "process"
    )  # fmt: skip
    group = ProcessGroup(tmp_path / "logs", {"A": "1", "B": "1"}, mark="m")
    monkeypatch.setenv("A", "0")
    monkeypatch.setenv("C", "0")
    made: Any = group.start("one", ("run", "it"), B="2")
    assert made == "process" and group.running == {"one": "process"}
    assert group.commands == {"one": (["run", "it"], {"B": "2"})}
    ((command, options),) = started
    assert command == ("run", "it")
    environment = {**os.environ, "A": "1", "B": "2", "FEDBLOCKS_PROCESS_GROUP": "m"}
    assert options == {
        "stdin": subprocess.DEVNULL, "stdout": group.log("one").stat().st_ino, "stderr": True,
        "env": environment, "start_new_session": True,
        "preexec_fn": process_group._end_with_parent, "umask": 0o077,
    }  # fmt: skip
    assert mode(tmp_path / "logs") == 0o700 and mode(group.log("one")) == 0o600
    assert len(ProcessGroup(tmp_path, {}).mark) == 16  # 8 bytes


def test_processes_that_ended_are_started_again_until_it_is_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ProcessGroup(tmp_path, {})
    group.commands = {"a": (["a"], {}), "b": (["b"], {"X": "1"}), "c": (["c"], {})}
    group.running = {"a": process(1), "b": process(2, 3), "c": process(3, 0)}
    started: list[Any] = []
    monkeypatch.setattr(group, "start", lambda *what, **more: started.append((*what, more)))
    assert group.revive(most=4) == ["b", "c"] and group.restarts == 2
    assert started == [("b", ["b"], {"X": "1"}), ("c", ["c"], {})]
    assert group.revive(most=4) == ["b", "c"] and group.restarts == 4
    group.log("b").write_text("odd\n\n  \x1b[1mbroken\x1b[0m  \n")
    with pytest.raises(UserError) as ended:
        group.revive(most=5)
    assert ended.value.message == "b ended with code 3: odd | broken" and len(started) == 4
    assert ended.value.fix == f"see {group.log('b')}"
    group.log("b").write_text("x" * 700)
    assert group.last_words("b") == "x" * 600
    group.log("b").write_text(" \n")
    assert group.last_words("b") == "it said nothing"


def test_something_is_due_once_in_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(process_group.time, "monotonic", lambda: now[0])
    group = ProcessGroup(Path(), {})
    due: list[bool] = []
    for seconds in (0.0, 9.9, 0.1, 0.0, 9.9, 0.2):
        now[0] = round(now[0] + seconds, 6)
        due.append(group.due("jobs", 10.0))
    # after 10 s, and after 10.1 more
    assert due == [False, False, True, False, False, True]
    assert group.due("keys", 10.0) is False  # another thing, asked for the first time


def test_processes_are_asked_to_end_and_killed_when_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, sent, slept = [100.0], list[Any](), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 4.0

    left = iter([[1, 2], [1, 2], [2], [2], []])
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(process_group, "time", clock)
    monkeypatch.setattr(process_group, "_signal", lambda *what: sent.append(what))
    group = ProcessGroup(Path(), {})
    group.running = {"a": process(1), "b": process(2)}
    monkeypatch.setattr(group, "living", lambda: next(left))
    with group:
        pass
    # asked at 100 s; after 8 s, in two pauses, the second is left and killed
    assert sent == [(1, signal.SIGTERM), (2, signal.SIGTERM), (2, signal.SIGKILL)]
    assert slept == [0.05, 0.05, 0.02] and group.running == {}


@pytest.mark.parametrize(("size", "cut"), [(9, False), (10, False), (11, True), (25, True)])
def test_a_log_that_is_too_long_begins_anew_and_its_end_is_kept(
    size: int, cut: bool, tmp_path: Path
) -> None:
    log = tmp_path / "one.log"
    content = bytes(range(size))
    log.write_bytes(content)
    trim_log(log, 10)
    assert log.read_bytes() == (b"" if cut else content)
    kept = tmp_path / "one.log.1"
    assert (kept.read_bytes() if cut else kept.exists()) == (content[-10:] if cut else False)
    trim_log(tmp_path / "none.log", 10)


def test_each_log_is_kept_below_four_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(process_group, "trim_log", lambda *what: done.append(what))
    group = ProcessGroup(Path("logs"), {})
    group.running = {"a": process(1), "b": process(2)}
    group.trim_logs()
    assert done == [(Path("logs") / f"{name}.log", 4 * 2**20) for name in "ab"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_being_asked_to_end_is_an_interruption_and_only_within_the_block(number: int) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    with pytest.raises(KeyboardInterrupt), ended_politely():
        signal.raise_signal(number)
    assert {n: signal.getsignal(n) for n in before} == before


HOST = ClientHost(
    federation="f", server="127.0.0.1:1", clients=(0,), insecure=True, data={"name": "x"}
)


def test_a_client_is_checked_started_and_watched_until_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOST.write(tmp_path)
    done: list[Any] = []
    group = SimpleNamespace(start=lambda *what, **more: done.append((*what, more)))
    make = lambda logs, own: done.append((logs, own)) or nullcontext(group)
    monkeypatch.setattr(hosting, "ended_politely", nullcontext)
    monkeypatch.setattr(hosting, "ProcessGroup", make)
    for name in ("check_client", "refuse_held"):
        monkeypatch.setattr(hosting, name, lambda folder, name=name: done.append((name, folder)))

    def watch(*what: Any) -> None:
        done.append(what)
        raise KeyboardInterrupt

    monkeypatch.setattr(hosting, "watch_client", watch)
    told: list[str] = []
    hosting.host_client(tmp_path, told.append)
    command = [sys.executable, "-m", "fedblocks.flower.client.node", str(tmp_path)]
    assert done == [
        ("check_client", tmp_path), ("refuse_held", tmp_path), (tmp_path / "logs", {}),
        ("client", command, launch.environment(tmp_path)), (group, tmp_path, told.append),
    ]  # fmt: skip
    assert told == ["starting; the server is 127.0.0.1:1", "stopping"]


def watched(
    news: list[Standing | None], monkeypatch: pytest.MonkeyPatch, full: Any = (), code: Any = None
) -> tuple[list[str], Any]:
    """What is told of such news, and the processes; the last of the news ends it."""
    comes: Iterator[Standing | None] = iter(news)
    fills = iter(full)

    def read(folder: Path) -> Standing | None:
        if (some := next(comes, "over")) == "over":
            raise KeyboardInterrupt
        return some  # type: ignore[return-value]

    monkeypatch.setattr(hosting, "is_full", lambda folder: next(fills, False))
    monkeypatch.setattr(hosting, "free_on", lambda folder: "0 left")
    monkeypatch.setattr(hosting.Standing, "read", read)
    slept: list[float] = []
    monkeypatch.setattr(hosting, "time", SimpleNamespace(sleep=slept.append))
    processes: Any = SimpleNamespace(
        running={"client": process(5, code)}, restarts=4, trimmed=0, slept=slept,
        revive=lambda: ["client"] if len(slept) == 1 else [],
    )  # fmt: skip
    processes.trim_logs = lambda: setattr(processes, "trimmed", processes.trimmed + 1)
    told: list[str] = []
    with pytest.raises((KeyboardInterrupt, UserError)) as ended:
        hosting.watch_client(processes, Path("/f"), told.append)
    processes.ended = ended.value
    return told, processes


def test_news_of_a_client_are_told_once_and_only_of_its_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trying = Standing("trying", "away", "wait", None, 5, "much")
    there = Standing("connected", "here", "", 7, 5, "much")
    other = Standing("connected", "another", "", 7, 6, "much")
    told, processes = watched([None, other, trying, trying, there], monkeypatch)
    again = "client had ended and was started again"
    assert told == [again, "much", "away; wait", "here"] and processes.restarts == 0
    assert processes.slept == [0.5] * 5 and processes.trimmed == 5
    assert watched([trying], monkeypatch)[1].restarts == 4


def test_a_full_disk_is_told_again_after_there_was_room(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = watched([None] * 4, monkeypatch, full=[True, True, False, True])
    warnings = [text for text in told if text.startswith("warning")]
    text = "warning: the disk of /f is full (0 left): this client cannot take part in a round"
    assert warnings == [f"{text}; make room"] * 2


def test_what_a_client_cannot_go_on_from_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Standing("failed", "no data", "bring them", None, 5)
    told, processes = watched([failed], monkeypatch)
    assert told == [] and isinstance(processes.ended, UserError)
    assert (processes.ended.message, processes.ended.fix) == ("no data", "bring them")
    assert isinstance(watched([None], monkeypatch, code=3)[1].ended, InUseError)
    assert isinstance(watched([None], monkeypatch, code=1)[1].ended, KeyboardInterrupt)
