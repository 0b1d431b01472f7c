"""The process of a machine's clients: how it begins and ends, and which runs it takes part in."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from fedblocks.core.errors import UserError
from fedblocks.flower.client import app, node, prepare
from fedblocks.flower.client.lock import InUseError
from fedblocks.flower.client.node import Lines, Node
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.wire.messages import Malformed
from fedblocks.flower.wire.records import HELLO

META = SimpleNamespace(run_id=9, created_at=90.0, ttl=10.0, message_type="train")
MESSAGE: Any = SimpleNamespace(metadata=META, content={"run": {"json": "a spec"}})
HOST = ClientHost(
    federation="f", server="127.0.0.1:1", clients=(0, 3), insecure=True, data={"name": "x"}
)


@pytest.fixture
def alone(tmp_path: Path) -> Node:
    HOST.write(tmp_path)
    return Node(tmp_path, "client 0: 5 examples")


def fails(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise error

    return raise_it


def test_a_traceback_is_set_in_and_each_line_holds_only_text() -> None:
    record = logging.makeLogRecord({"msg": "odd\x1b[1m\nsecond " + "x" * 3000})
    # 2000 letters of a line: "second " has 7 of them
    assert Lines("%(message)s").format(record) == "odd [1m\n    second " + "x" * 1993


def test_each_kind_of_message_has_its_own_answer(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone._sides = lambda spec: f"sides of {spec}"  # type: ignore[assignment, method-assign]
    monkeypatch.setattr(app, "hello", lambda message, sides: ("hello", message, sides()))
    monkeypatch.setattr(app, "work", lambda message, sides: ("work", message, sides))
    assert alone.reply(MESSAGE) == ("work", MESSAGE, "sides of a spec")
    hello: Any = SimpleNamespace(
        metadata=SimpleNamespace(message_type=HELLO), content=MESSAGE.content
    )
    assert alone.reply(hello) == ("hello", hello, "sides of a spec")
    hello.metadata.message_type = "q" * 41
    with pytest.raises(Malformed) as refused:
        alone.reply(hello)
    said = f'a fedblocks run sends nothing like "{"q" * 40}"'
    assert (refused.value.reason, refused.value.detail) == ("not-fedblocks", said)


@pytest.mark.parametrize("cause", [None, KeyError("ward")])
def test_why_a_client_cannot_take_part_is_logged_with_its_cause_and_shown_without(
    cause: Exception | None,
    alone: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = UserError("no data", "bring them")
    error.__cause__ = cause
    monkeypatch.setattr(node, "_sides", fails(error))
    for _ in range(2):
        with pytest.raises(UserError):
            alone._sides("{}")
    text = f"this client cannot take part: {error}"
    more = " ('ward')" if cause else ""
    said = (text + more).replace("\n", " ")
    assert [record.getMessage() for record in caplog.records] == [said]
    standing = Standing.read(alone.folder)
    assert standing is not None and standing.text == text.replace("\n", " ")


@pytest.mark.parametrize(
    ("asked", "cores", "threads"), [(None, 8, 3), (2, 8, 2), (5, 4, 4), (5, None, 1)]
)
def test_a_run_takes_the_threads_that_it_asks_for_and_the_machine_has(
    asked: int | None, cores: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(node, "threads_at_start", 3)
    monkeypatch.setattr(node.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(node.torch, "set_num_threads", taken.append)
    spec = SimpleNamespace(threads=asked)
    monkeypatch.setattr(node.RunSpec, "model_validate_json", lambda text: spec)
    monkeypatch.setattr(prepare, "sides_at", lambda folder, spec: (folder, spec))
    inner = node._sides.__wrapped__
    assert inner(Path("here"), "{}", b"") == (Path("here"), spec) and taken == [threads]
    assert node._sides.cache_parameters()["maxsize"] == 2


class Heart:
    """Stands in for Flower's heart: it notes that it was started and stopped."""

    def __init__(self, beat: Any) -> None:
        self.beat, self.is_running = beat, False
        self.done: list[str] = []

    def start(self) -> None:
        self.is_running = True
        self.done.append("started")

    def stop(self) -> None:
        self.done.append("stopped")


@pytest.mark.parametrize("leaving", [None, httpx.ConnectError("away")])
def test_a_client_connects_again_whenever_it_is_lost_and_leaves_in_the_end(
    leaving: Exception | None, alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearts: list[Heart] = []
    monkeypatch.setattr(
        node, "HeartbeatSender", lambda beat: hearts.append(Heart(beat)) or hearts[0]
    )
    done: list[Any] = []
    ends = iter([httpx.ConnectError("away"), ValueError("odd"), KeyboardInterrupt()])
    alone._connect = lambda: done.append("connected")  # type: ignore[method-assign]
    alone._answer_messages = lambda: fails(next(ends))()  # type: ignore[method-assign]
    alone._tell_cause = lambda error: done.append(str(error))  # type: ignore[method-assign]
    alone.number = 4

    def leave(number: int) -> None:
        done.append(number)
        if leaving is not None:
            raise leaving

    alone.fleet.leave = leave  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        alone.run()
    assert done == ["connected", "away", "connected", "odd", "connected", 4]
    assert hearts[0].done == ["started", "stopped"] and hearts[0].beat == alone._beat


def test_a_client_that_never_connected_does_not_leave(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart = Heart(None)
    monkeypatch.setattr(node, "HeartbeatSender", lambda beat: heart)
    alone._connect = fails(KeyboardInterrupt())  # type: ignore[method-assign]
    left: list[int] = []
    alone.fleet.leave = left.append  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        alone.run()
    assert heart.done == [] and left == []


def test_what_a_machine_holds_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOST.write(tmp_path)
    asked: list[Any] = []
    rows = {name: SimpleNamespace(sizes=SimpleNamespace(sum=lambda n=n: n))
            for name, n in (("train", 4), ("validation", 2), ("test", 1))}  # fmt: skip
    data = SimpleNamespace(parts=rows)
    monkeypatch.setattr(prepare, "data_of", lambda *what: asked.append(what) or data)
    assert node.check(tmp_path) == "client 0, 3: 7 examples, kept here"
    assert asked == [(HOST, tmp_path)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"allow": {"methods": ["fedavg", "fedavgg"]}},
            'allow.methods: "fedavgg" is not installed',
        ),
        ({"device": "cuda:7"}, "device: "),
    ],
)
def test_what_is_wrong_with_the_settings_is_named_by_file_and_key(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "data_of", lambda *_: SimpleNamespace(parts={}))
    HOST.write(tmp_path)
    assert node.check(tmp_path) == "client 0, 3: 0 examples, kept here"
    ClientHost.model_validate({**HOST.model_dump(), **changes}).write(tmp_path)
    with pytest.raises(UserError) as wrong:
        node.check(tmp_path)
    assert wrong.value.message.startswith(f"{tmp_path / 'client.toml'}: {said}")
    assert wrong.value.fix


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("ends", "code", "said", "state"),
    [
        (None, 0, [], None),
        (KeyboardInterrupt(), 0, [], None),
        (UserError("no data", "bring them"), 1, ["no data; bring them"], "failed"),
        (InUseError(Path("here")), 3, ["another process already works for here; end that one "
         "first, or use another folder"], None),
    ],
)  # fmt: skip
def test_the_process_ends_with_a_code_and_the_reason(
    ends: BaseException | None,
    code: int,
    said: list[str],
    state: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node, "ended_politely", nothing)
    formats: list[Any] = []
    handler = SimpleNamespace(setFormatter=formats.append)
    logs = SimpleNamespace(
        WARNING=logging.WARNING,
        basicConfig=lambda level: formats.append(level),
        getLogger=lambda: SimpleNamespace(handlers=[handler]),
    )
    monkeypatch.setattr(node, "logging", logs)
    monkeypatch.setattr(node, "check", lambda folder: "much")
    ran: list[Any] = []

    def make(folder: Path, holds: str) -> Any:
        ran.append((folder, holds))
        return SimpleNamespace(run=(lambda: None) if ends is None else fails(ends))

    monkeypatch.setattr(node, "Node", make)
    before = Standing("connected", "", "", 5, 1)
    before.write(tmp_path)
    assert node.main(tmp_path) == code and formats[0] == logging.WARNING
    assert isinstance(formats[1], Lines) and formats[1]._fmt == "%(asctime)s %(message)s"
    assert ran == [(tmp_path, "much")]
    assert [record.getMessage() for record in caplog.records] == said
    failed = Standing("failed", "no data", "bring them", 5, os.getpid())
    assert Standing.read(tmp_path) == (failed if state else before)
