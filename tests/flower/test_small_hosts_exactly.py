"""Small parts of servers and clients of a federation, with stand-ins for the network and clocks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import UserError
from fedblocks.flower.client import fleet
from fedblocks.flower.gateway import refusals
from fedblocks.flower.gateway.connections import Connections
from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.hosts import key_watch, launch, process_group, running
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.server import pulling


class Task:
    """A connection that knows whether it was ended."""

    def __init__(self) -> None:
        self.ended = False

    def add_done_callback(self, leave: Any) -> None: ...

    def cancel(self) -> None:
        self.ended = True


def test_the_oldest_stranger_makes_room_and_is_counted_no_more() -> None:
    connections = Connections(Limits(strangers=2, strangers_each=1))
    tasks: list[Any] = [Task() for _ in range(5)]
    for task, address in zip(tasks, "aabbc", strict=True):
        connections.enter(task, address)
    # the second of "a" ends the first, the second of "b" too, and "c" the oldest of two
    assert [task.ended for task in tasks] == [True, True, True, False, False]
    assert list(connections._strangers) == tasks[3:]


@pytest.mark.parametrize("is_due", [True, False])
def test_jobs_are_looked_for_when_that_is_due(
    is_due: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    monkeypatch.setattr(running, "take_up", lambda server, tell: done.append("taken up"))
    monkeypatch.setattr(running, "check_submitted", lambda server, tell: done.append("looked for"))
    group: Any = SimpleNamespace(
        revive=lambda: ["gateway"],
        trim_logs=lambda: done.append("trimmed"),
        due=lambda what, seconds: is_due and (what, seconds) == ("jobs", running.LOOK),
    )
    running.look_after(group, tmp_path, done.append)
    first = ["gateway had ended and was started again", "trimmed", "taken up"]
    assert done == [*first, *(["looked for"] if is_due else [])]


def test_pauses_between_two_tries_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fleet.time, "sleep", slept.append)
    monkeypatch.setattr(fleet.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(fleet, "BEGIN", 1.0)
    monkeypatch.setattr(fleet, "MOST", 5.0)
    tries = iter([httpx.ConnectError("away")] * 4)

    def action() -> str:
        error = next(tries, None)
        if error is not None:
            raise error
        return "done"

    assert fleet.patiently(action, time.time() + 1e6) == "done"
    assert slept == [1.0, 2.0, 4.0, 5.0]


@pytest.mark.parametrize(("there", "asked"), [("abcd", "abcde"), ("a", "ab"), ("", "ab")])
def test_pieces_are_fetched_until_one_has_not_come(
    there: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time of five; those after a piece that is missing are not asked for."""
    monkeypatch.setattr(pulling, "BATCH", 2)
    arriving = pulling._Arriving("answer", list("abcde"), most=100)
    seen: list[str] = []

    def pull(some: list[str], fetch_one: Any) -> None:
        seen.extend(some)
        arriving.pieces.update({name: b"" for name in some if name in there})

    monkeypatch.setattr(pulling, "pull_objects", pull)
    arriving._fetch_pieces(lambda name: b"")
    assert "".join(seen) == asked and "".join(sorted(arriving.pieces)) == there


def test_a_process_has_time_to_end_by_itself(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.3); print('  \\x1b[31mgoodbye\\x1b[0m '); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    group = ProcessGroup(tmp_path, {})
    group.start("one", [sys.executable, "-c", code])
    while "ready" not in group.log("one").read_text():
        time.sleep(0.02)
    group.stop()
    assert group.last_words("one") == "ready | goodbye" and not group.running


def test_living_processes_are_named_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ProcessGroup(tmp_path, {})
    here: Any = [SimpleNamespace(pid=70, poll=lambda: None), SimpleNamespace(pid=8, poll=lambda: 0)]
    group.running = {"a": here[0], "b": here[1]}
    monkeypatch.setattr(process_group, "find_marked", lambda mark: [900, 33])
    assert group.living() == [33, 70, 900]


def test_what_flower_says_is_told_without_the_blanks_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(stdout="no json", stderr="\n  it is away  \n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(launch, "environment", lambda folder: {})
    with pytest.raises(UserError) as told:
        launch.ask(tmp_path, "ls")
    assert told.value.message == "flwr ls failed: it is away"


def test_keys_that_were_not_taken_up_are_tried_again_when_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([UserError("it is away", "wait"), None])
    tried: list[int] = []

    def enrol(*_: Any) -> None:
        tried.append(1)
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr(key_watch.running, "enrol", enrol)
    monkeypatch.setattr(key_watch.ServerHost, "read", lambda folder: None)
    monkeypatch.setattr(key_watch, "read_shared", lambda folder: {})
    told: list[str] = []
    file = tmp_path / key_watch.ServerHost.file()
    watch = key_watch.KeyWatch(tmp_path, told.append)
    assert watch._seen == (0, 0)  # nobody has written it yet
    due: dict[str, bool] = {"keys": False}
    group: Any = SimpleNamespace(due=lambda what, seconds: due[what])
    watch.follow(group)
    assert tried == []
    file.write_text("")
    watch.follow(group)
    assert len(tried) == 1 and told == ["changes of keys were not taken up: it is away"]
    watch.follow(group)
    assert len(tried) == 1  # not due yet
    due["keys"] = True
    watch.follow(group)
    watch.follow(group)
    assert len(tried) == 2 and len(told) == 1


def test_refusals_are_counted_by_kind_and_address_and_told_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: now[0])
    log = refusals.Refusals()
    log.count("no key", "a")
    assert capsys.readouterr().out.endswith("refused: 1 x no key (a)\n")
    for _ in range(2):
        log.count("no key", "a")
    log.count("too large", "")
    assert capsys.readouterr().out == ""  # ten seconds have not passed
    now[0] += refusals.EVERY + 1
    log.count("too large", "")
    said = capsys.readouterr().out
    assert said.endswith("refused: 2 x no key (a), 2 x too large\n")


def test_refusals_of_many_kinds_are_one_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty-one kinds, one more than are told."""
    monkeypatch.setattr(refusals.time, "monotonic", lambda: 0.0)
    log = refusals.Refusals()
    for number in range(refusals.KINDS):
        log.count("no key", str(number))
    assert len(log._counts) == refusals.KINDS
    log.count("no key", "another")
    assert dict(log._counts) == {"of many kinds": refusals.KINDS + 1}
