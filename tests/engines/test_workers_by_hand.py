"""Worker processes one by one: what they answer, and how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from fedblocks.core.errors import UserError
from fedblocks.engines.processes.workers import Channel, Workers, available

pytestmark = pytest.mark.skipif(not available(), reason="workers are forked on Linux alone")


def serve(channel: Channel) -> None:
    while True:
        message, file = channel.receive()
        if message.get("fail") == "user":
            raise UserError("wrong", "mend it")
        if message.get("fail"):
            raise ValueError("by surprise")
        text = os.read(file, 9).decode() if file is not None else None
        channel.send({**message, "pid": os.getpid(), "read": text})


@pytest.fixture
def workers() -> Iterator[Workers]:
    both = Workers(2, serve)
    yield both
    both.close()


def test_workers_are_processes_with_numbers_that_answer(workers: Workers) -> None:
    assert [worker.number for worker in workers.workers] == [0, 1]
    for worker in workers.workers:
        worker.channel.send({"n": worker.number, "long": "x" * 300_000})
        answer, file = worker.channel.receive()
        assert answer["pid"] == worker.process.pid != os.getpid()
        assert (answer["n"], len(answer["long"]), answer["read"], file) == (
            worker.number, 300_000, None, None,
        )  # fmt: skip


def test_only_those_that_have_something_to_say_are_heard(workers: Workers) -> None:
    workers.workers[1].channel.send({})
    assert [worker.number for worker in workers.incoming([0, 1])] == [1]


def test_a_file_can_be_handed_over(workers: Workers) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"hello")
    workers.workers[0].channel.send({}, ours)
    assert workers.workers[0].channel.receive()[0]["read"] == "hello"
    os.close(ours)
    os.close(theirs)


def test_errors_are_told_and_end_the_worker(workers: Workers) -> None:
    first, second = workers.workers
    first.channel.send({"fail": "user"})
    assert first.channel.receive()[0] == {"error": "wrong", "fix": "mend it"}
    second.channel.send({"fail": "other"})
    said = second.channel.receive()[0]
    assert "ValueError: by surprise" in said["error"]
    assert (said["fix"], said["forward"]) == (None, None)
    assert str(second.gone("trained")).startswith(
        f"worker 1 (process {second.process.pid}) ended with code 0 while it trained"
    )


def test_a_worker_that_is_killed_is_told_and_replaced(workers: Workers) -> None:
    dead = workers.workers[1]
    os.kill(dead.process.pid or 0, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionError)):
        dead.channel.receive()
    assert "was ended by SIGKILL while it trained" in str(dead.gone("trained"))
    new = workers.replace(dead)
    assert workers.workers[1] is new and new.number == 1
    new.channel.send({})
    assert new.channel.receive()[0]["pid"] == new.process.pid != dead.process.pid


def test_closing_ends_all_of_them_at_once() -> None:
    both = Workers(2, serve)
    processes = [worker.process for worker in both.workers]
    both.close()
    assert both.workers == [] and [process.is_alive() for process in processes] == [False, False]
    both.close()  # there is nothing left to do
