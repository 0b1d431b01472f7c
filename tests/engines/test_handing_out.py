"""How clients are handed out to workers, what becomes of those that are lost, and how workers end:
every step of it, with workers that are none.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.forward_errors import ForwardNote, note_of, put_note
from fedblocks.engines.failures import ClientFailures
from fedblocks.engines.processes import workers as life
from fedblocks.engines.processes.engine import Assignment, _part
from fedblocks.engines.processes.workers import Channel, Worker, WorkerError, _end, worker_error
from fedblocks.engines.round import Experiment
from fedblocks.methods import METHODS
from fedblocks.testing.federations import SIZES, small_federation, small_net


class Line:
    """The way to a worker, and what it is to answer next."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.answers: deque[Any] = deque()

    def send(self, message: Any, descriptor: Any = None) -> None:
        if self.sent == ["gone"]:
            raise ConnectionError
        self.sent.append(message if descriptor is None else (message, descriptor))

    def receive(self) -> tuple[Any, None]:
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer, None

    @property
    def members(self) -> list[int]:
        return [own["member"] for own in self.sent if "member" in own]


class Crew:
    """Workers that say something when they are told to."""

    def __init__(self, count: int) -> None:
        self.workers: list[Any] = [self._worker(number) for number in range(count)]
        self.replaced: list[int] = []

    def _worker(self, number: int) -> Any:
        gone = lambda doing: WorkerError(f"worker {number} is gone while it {doing}")
        return SimpleNamespace(number=number, channel=Line(), gone=gone)

    def replace(self, dead: Any) -> Any:
        self.replaced.append(dead.number)
        self.workers[dead.number] = self._worker(dead.number)
        return self.workers[dead.number]


class Place:
    """Room for results."""

    places = "places"

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def of(self, shapes: Any) -> Any:
        return {"room of": shapes}

    def key(self, number: int) -> str:
        return f"key {number}"

    def forget(self, number: int) -> None:
        self.forgotten.append(number)


def assignment_of(sizes: list[int], workers: int) -> Assignment:
    job: Any = SimpleNamespace(
        cohort=range(len(sizes)), sizes=np.array(sizes), ids=[10 + i for i in range(len(sizes))]
    )
    message = {"act": "train"}
    request: Any = SimpleNamespace(descriptor=5)
    rooms: Any = {"train": Place(), "evaluate": Place()}
    crew: Any = Crew(workers)
    return Assignment(job, crew, message, request, rooms)


def begin(own: Assignment) -> list[Line]:
    for worker in own.workers.workers[: len(own.waiting)]:
        own._begin(worker)
    return [worker.channel for worker in own.workers.workers]  # type: ignore[misc]


def hear(own: Assignment, number: int, answer: Any) -> None:
    worker: Any = own.workers.workers[number]
    worker.channel.answers.append(answer)
    own._hear(worker)


def test_the_longest_clients_are_handed_out_first_and_each_worker_has_the_next_when_done() -> None:
    own = assignment_of([3, 9, 5, 7], 2)
    first, second = begin(own)
    assert first.sent == [({"act": "train"}, 5), {"member": 1}] and second.members == [3]
    hear(own, 1, {"done": 3})
    hear(own, 1, {"done": 2})
    assert second.members == [3, 2, 0] and first.members == [1]
    hear(own, 1, {"done": 0})
    assert [*own.busy] == [0]
    hear(own, 0, {"done": 1})
    assert not own.busy and not own.waiting


@pytest.mark.parametrize(("clients", "ahead"), [(6, 1), (7, 2)])
def test_a_worker_has_one_client_ahead_while_more_than_twice_as_many_as_workers_wait(
    clients: int, ahead: int
) -> None:
    """Of two workers: after the first two, and with one of them done, 4 or 5 are waiting."""
    own = assignment_of([1] * clients, 2)
    first, _ = begin(own)
    hear(own, 0, {"done": 0})
    assert len(own.busy[0]) == ahead and first.members == [0, 2, 3][: 1 + ahead]


def test_no_more_workers_begin_than_there_are_clients() -> None:
    own = assignment_of([1], 3)
    lines = begin(own)
    assert [len(line.sent) for line in lines] == [2, 0, 0] and [*own.busy] == [0]


def test_room_is_made_once_and_every_worker_gets_the_key_to_it() -> None:
    own = assignment_of([1, 1], 2)
    lines = begin(own)
    for number in (1, 0):
        hear(own, number, {"shapes": f"of {number}"})
    assert own.results == {"room of": "of 1"} and [*own.busy] == [0, 1]
    for number in (0, 1):
        assert lines[number].sent[-1] == ({"places": "places"}, f"key {number}")


def test_clients_of_a_lost_worker_are_trained_again_by_its_successor_in_their_order() -> None:
    own = assignment_of([1] * 7, 2)
    begin(own)
    hear(own, 0, {"done": 0})  # it has two clients now
    hear(own, 0, EOFError())
    crew: Any = own.workers
    assert crew.replaced == [0] and crew.workers[0].channel.members == [2]
    assert [*own.waiting] == [3, 4, 5, 6] and own.losses == {2: 1} and own.spare == 2 * (7 + 2) - 1
    assert [room.forgotten for room in own.rooms.values()] == [[0], [0]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [EOFError(), ConnectionError()])
def test_a_client_that_costs_two_workers_fails_and_the_others_go_on(error: Exception) -> None:
    own = assignment_of([2, 1], 1)
    begin(own)
    hear(own, 0, error)
    assert not own.failures
    hear(own, 0, error)
    assert {place: str(own) for place, own in own.failures.items()} == {
        0: "worker 0 is gone while it worked on client 10"
    }
    crew: Any = own.workers
    assert crew.workers[0].channel.members == [1] and crew.replaced == [0, 0]
    hear(own, 0, {"done": 1})
    assert not own.busy


def test_nobody_is_started_in_the_place_of_a_worker_that_has_nothing_left_to_do() -> None:
    own = assignment_of([1, 1], 2)
    begin(own)
    own.losses[0] = 1
    hear(own, 0, EOFError())
    crew: Any = own.workers
    assert crew.replaced == [] and [*own.failures] == [0] and [*own.busy] == [1]


def test_workers_are_not_started_without_end() -> None:
    own = assignment_of([1], 1)
    begin(own)
    own.spare, own.losses = 1, {0: -9}  # type: ignore[assignment]
    hear(own, 0, EOFError())
    with pytest.raises(WorkerError, match="gone while it worked on client 10"):
        hear(own, 0, EOFError())


def test_a_worker_that_is_gone_before_it_begins_is_replaced() -> None:
    own = assignment_of([1], 1)
    dead: Any = own.workers.workers[0]
    dead.channel.sent = ["gone"]
    begin(own)
    crew: Any = own.workers
    assert crew.replaced == [0] and crew.workers[0].channel.members == [0]
    assert own.losses == {}


def test_an_error_that_a_user_can_mend_ends_the_job_and_others_are_of_their_client() -> None:
    own = assignment_of([1, 1], 1)
    begin(own)
    with pytest.raises(UserError, match="mend me") as error:
        hear(own, 0, {"error": "mend me", "fix": "so"})
    assert error.value.fix == "so"
    hear(own, 0, {"error": "trace", "fix": None, "forward": None})
    assert str(own.failures[0]).startswith("worker 0 failed while it worked on client 10:\ntrace")
    assert own.busy == {0: deque([1])}


def test_a_job_ends_with_its_results_or_says_who_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [{"shapes": "s"}, {"done": 0}, {"done": 1}]
    own = assignment_of([1, 1], 1)
    own.workers.incoming = lambda among: [own.workers.workers[n] for n in among]  # type: ignore[method-assign, misc]
    worker: Any = own.workers.workers[0]
    worker.channel.answers.extend(answers)
    assert own.carry_out() == {"room of": "s"}
    own = assignment_of([], 1)
    with pytest.raises(ValueError, match="a job without clients"):
        own.carry_out()
    own = assignment_of([1, 1], 1)
    own.workers.incoming = lambda among: [own.workers.workers[n] for n in among]  # type: ignore[method-assign, misc]
    worker = own.workers.workers[0]
    failure = {"error": "trace", "fix": None, "forward": None}
    worker.channel.answers.extend([failure, {"shapes": "s"}, {"done": 1}])
    with pytest.raises(ClientFailures) as failed:
        own.carry_out()
    assert [*failed.value.by_member] == [0]


def test_a_worker_has_the_tags_sizes_and_blocks_of_the_client_that_it_was_given() -> None:
    experiment = Experiment.of(METHODS["fedper"](small_net()), small_federation(tags=["kind"]))
    job = experiment.training_job("all", [4, 1, 3], experiment.start())
    for member, client in enumerate([4, 1, 3]):
        part = _part(job, member)
        tensors = part.one(0).tensors
        assert part.cohort.ids.tolist() == [client] and tensors["id"] == client
        assert part.cohort.sizes.tolist() == [SIZES[client]] and tensors["size"] == SIZES[client]
        assert part.cohort.tags["kind"].tolist() == [client % 2]
        assert tensors["tags"]["kind"] == client % 2
        for name, block in part.sent.blocks.items():
            for key, value in block.items():
                assert torch.equal(value[0], job.sent.blocks[name][key][member])


class Process:
    """A process that lives until it is killed, or has ended by itself."""

    pid = 77

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode, self.calls = exitcode, []  # type: ignore[var-annotated]

    def join(self, seconds: float | None = None) -> None:
        self.calls.append(("join", seconds))

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.calls.append(("kill", None))


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "was ended by SIGKILL"), (1, "ended with code 1"), (0, "ended with code 0")],
)
def test_a_worker_that_ended_by_itself_says_how(code: int, how: str) -> None:
    process: Any = Process(code)
    channel: Any = None
    lost = Worker(3, process, channel).gone("slept")
    assert lost.message == f"worker 3 (process 77) {how} while it slept"
    assert lost.exit_code == 1 and process.calls == [("join", 5)]


def test_workers_are_let_go_and_killed_if_they_stay() -> None:
    closed: list[int] = []
    processes = [Process(0), Process(None)]
    crew: Any = [
        SimpleNamespace(
            process=process,
            channel=SimpleNamespace(socket=SimpleNamespace(close=lambda n=n: closed.append(n))),
        )
        for n, process in enumerate(processes)
    ]
    _end(crew)
    assert closed == [0, 1] and crew == []
    assert processes[0].calls == [("join", 0.2)]
    assert processes[1].calls == [("join", 0.2), ("kill", None), ("join", None)]


def _forward_error() -> Exception:
    error = ValueError("odd shape")
    put_note(error, ForwardNote("the net fails", "look at it"))
    return error


def _raise(error: BaseException) -> Callable[[Channel], None]:
    def serve(channel: Channel) -> None:
        raise error

    return serve


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("mend me", "so"), {"error": "mend me", "fix": "so"}),
        (ValueError("odd"), {"fix": None, "forward": None}),
        (SystemExit(2), {"fix": None, "forward": None}),
        (_forward_error(), {"fix": None, "forward": ["the net fails", "look at it"]}),
        (EOFError(), None),
        (ConnectionError(), None),
    ],
)
def test_a_worker_tells_why_it_ends_unless_its_parent_is_gone(
    error: BaseException, said: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[Any] = []
    for module, name in ((life.signal, "signal"), (life.torch, "set_num_threads")):
        monkeypatch.setattr(module, name, lambda *args: changed.append(args))
    for module, name in ((life.gc, "freeze"), (life, "_keep_memory")):
        monkeypatch.setattr(module, name, lambda name=name: changed.append(name))
    ours, theirs = socket.socketpair()
    other, rest = socket.socketpair()
    with ours, theirs, rest:
        life._live(theirs, [other], _raise(error))
        assert other.fileno() == -1  # those of other workers are closed
        theirs.shutdown(socket.SHUT_WR)
        if said is None:
            with pytest.raises(EOFError):
                Channel(ours).receive()
        else:
            message, _ = Channel(ours).receive()
            assert message.items() >= said.items()
            assert type(error).__name__ in message["error"] or said["fix"]
    sigint = (life.signal.SIGINT, life.signal.SIG_IGN)
    assert changed == [sigint, "freeze", (1,), "_keep_memory"]


def test_an_error_of_a_worker_keeps_the_note_of_a_forward_pass() -> None:
    error = worker_error("it failed", {"error": "trace", "forward": ["the net fails", "look"]})
    assert error.message == "it failed:\ntrace"
    assert note_of(error) == ForwardNote("the net fails", "look")
    assert note_of(worker_error("it failed", {"error": "trace", "forward": None})) is None
