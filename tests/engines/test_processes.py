"""Several processes end where one process with one thread ends, to the bit; and no
worker outlives its work.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.processes import engine as module
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.shared_memory import (
    Room,
    open_tree,
    put,
    room_for,
    shapes_of,
    share,
)
from fedblocks.engines.processes.workers import Channel, WorkerError, Workers
from fedblocks.engines.round import evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def engine():
    built = Processes(count=2)
    yield built
    built.close()


def pids(engine: Processes) -> list[int]:
    return [worker.process.pid for worker in engine.worker_group.workers.workers]


def outcome(name: str, engine) -> tuple:
    example = EXAMPLES[name]()
    experiment = example.experiment()
    state = experiment.start()
    reports = []
    for cohort in example.cohorts()[:2]:
        state, report = run_round(experiment, state, cohort, engine, "test")
        reports.append((report.bytes_down, report.bytes_up, report.counts, report.refusals))
    scores = [
        evaluate(experiment, state, example.everybody, engine, joining=joining)
        for joining in (False, True)
    ]
    return state_leaves(state), reports, scores


# plain; on request; adaptation; two blocks
@pytest.mark.parametrize("name", ["fedavg", "fedmn", "pfedmb", "scaffold"])
def test_processes_end_where_the_sequential_engine_ends_to_the_bit(name, engine) -> None:
    (ours, *rest), (theirs, *expected) = (
        outcome(name, engine),
        outcome(name, Sequential(replay=False)),
    )
    assert ours.keys() == theirs.keys() and rest == expected
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []


def test_workers_stay_from_round_to_round_and_are_forked_anew_for_another_method(engine) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    state, _ = run_round(experiment, experiment.start(), example.everybody, engine)
    first = pids(engine)
    run_round(experiment, state, example.everybody, engine)
    assert pids(engine) == first
    other = EXAMPLES["fedper"]().experiment()
    run_round(other, other.start(), example.everybody, engine)
    assert not set(first) & set(pids(engine)) and not any(map(alive, first))


def test_workers_train_each_of_two_seeds_with_its_own_batches(engine) -> None:
    """Both have one method and one federation, which workers keep."""
    example = EXAMPLES["fedavg"]()
    first = example.experiment()
    for seed in (0, 1, 0):
        experiment = replace(first, seed=seed)
        ours, theirs = (
            state_leaves(run_round(experiment, first.start(), example.everybody, one)[0])
            for one in (engine, Sequential(replay=False))
        )
        assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def test_results_of_an_earlier_job_are_not_written_over_by_a_later_one(engine) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    method = experiment.methods["all"]
    job = experiment.job(
        "all", example.everybody, experiment.start(), method.phases(), True, "train"
    )
    first = engine.train(job).blocks["model"]
    before = {k: v.clone() for k, v in first.items()}
    engine.train(replace(job, cohort=replace(job.cohort, round=7)))
    assert all(torch.equal(first[k], before[k]) for k in first)


def test_a_killed_worker_is_replaced_and_its_clients_are_trained_again(engine) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    state, _ = run_round(experiment, experiment.start(), example.everybody, engine)
    expected, _ = run_round(experiment, state, example.everybody, Sequential(replay=False))
    victim, other = pids(engine)
    os.kill(victim, signal.SIGKILL)
    after, _ = run_round(experiment, state, example.everybody, engine)
    assert not alive(victim) and pids(engine)[1] == other and victim not in pids(engine)
    ours, theirs = state_leaves(after), state_leaves(expected)
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def dying(monkeypatch, deaths: Path, most: int, client: int) -> None:
    """Let whoever trains a client be killed, so many times."""
    whole = module.Sequential.train

    def train(self, job, score=None):
        if job.ids == [client] and len(list(deaths.iterdir())) < most:
            (deaths / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, job, score)

    monkeypatch.setattr(module.Sequential, "train", train)


def test_a_worker_killed_over_a_client_is_replaced_in_the_same_round(
    engine, monkeypatch, tmp_path
) -> None:
    example = EXAMPLES["pfedmb"]()
    experiment = example.experiment()
    start = experiment.start()
    expected, _ = run_round(experiment, start, example.everybody, Sequential(replay=False))
    dying(monkeypatch, tmp_path, most=1, client=1)
    after, report = run_round(experiment, start, example.everybody, engine)
    assert len(list(tmp_path.iterdir())) == 1 and report.refusals == []
    ours, theirs = state_leaves(after), state_leaves(expected)
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def test_a_client_that_costs_two_workers_is_absent(engine, monkeypatch, tmp_path) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    start = experiment.start()
    everybody = list(example.everybody)
    others = [client for client in everybody if client != 1]
    expected, _ = run_round(experiment, start, others, Sequential(replay=False))
    dying(monkeypatch, tmp_path, most=99, client=1)
    ((after, report),) = Lanes([experiment]).run_round([start], [everybody], engine)
    (refusal,) = report.refusals
    assert (refusal.client, refusal.reason) == (1, "failed") and "SIGKILL" in refusal.detail
    assert report.clients == others and len(list(tmp_path.iterdir())) == 2
    ours, theirs = state_leaves(after), state_leaves(expected)
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def test_an_error_in_a_worker_says_which_client_and_where(engine, monkeypatch) -> None:
    def broken(self, job, score=None):
        raise RuntimeError("this cannot be")

    monkeypatch.setattr(module.Sequential, "train", broken)
    experiment = EXAMPLES["fedavg"]().experiment()
    with pytest.raises(WorkerError, match=r"(?s)worked on client \d.*this cannot be"):
        run_round(experiment, experiment.start(), [0, 1], engine)


def test_what_a_user_can_mend_is_said_as_it_is_in_one_process(engine, monkeypatch) -> None:
    def refused(self, job, score=None):
        raise UserError("too large", "make it smaller")

    monkeypatch.setattr(module.Sequential, "train", refused)
    experiment = EXAMPLES["fedavg"]().experiment()
    with pytest.raises(UserError, match="too large") as caught:
        run_round(experiment, experiment.start(), [0, 1], engine)
    assert caught.value.fix == "make it smaller" and not isinstance(caught.value, WorkerError)


def test_workers_end_with_an_engine_that_nobody_holds() -> None:
    example = EXAMPLES["fedavg"]()
    experiment, engine = example.experiment(), Processes(count=2)
    run_round(experiment, experiment.start(), example.everybody, engine)
    actual = pids(engine)
    del engine
    assert not any(map(alive, actual))


ORPHANS = """
import os, signal
from fedblocks.engines.round import run_round
from fedblocks.engines.processes.engine import Processes
from fedblocks.testing import EXAMPLES
experiment, engine = EXAMPLES["fedavg"]().experiment(), Processes(count=2)
run_round(experiment, experiment.start(), [0, 1], engine)
print(*[worker.process.pid for worker in engine.worker_group.workers.workers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_worker_outlives_a_parent_that_was_killed() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True)
    actual = [int(word) for word in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL and len(actual) == 2
    for pid in actual:
        wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    """A descriptor of the process becomes readable when it ends; nothing here waits for
    a fixed time.
    """
    import select

    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_shared_tree_comes_back_as_it_was_and_repeated_rows_take_the_room_of_one() -> None:
    one = torch.arange(6.0).view(1, 2, 3)
    tree = {
        "a": {"x": one.expand(1000, 2, 3), "empty": {}},
        "b": torch.tensor([1, 2]),
        "c": torch.tensor(True),
    }
    built = share(tree)
    actual, size = open_tree(built.descriptor, built.places), os.fstat(built.descriptor).st_size
    built.close()
    assert (
        actual.tree["a"]["empty"] == {}
        and torch.equal(actual.tree["b"], tree["b"])
        and bool(actual.tree["c"])
    )
    assert (
        torch.equal(actual.tree["a"]["x"], tree["a"]["x"]) and actual.tree["a"]["x"].stride(0) == 0
    )
    assert size < 256  # bytes; a thousand rows of their own would take 24,000


def test_rows_are_put_to_their_place() -> None:
    one = {"w": torch.ones(1, 2), "n": {"k": torch.tensor([3])}}
    room = room_for(shapes_of(one, 3))
    put(room.tree, 1, one)
    room.close()
    assert room.tree["w"].tolist() == [[0, 0], [1, 1], [0, 0]] and room.tree["n"]["k"].tolist() == [
        0,
        3,
        0,
    ]


def test_a_room_serves_again_once_nobody_looks_at_what_is_in_it() -> None:
    room, shapes = Room(), {"a": ["float32", [3, 2]]}
    first = room.of(shapes)["a"].fill_(1)
    file, row = os.fstat(room.descriptor).st_ino, first[1]
    assert room.key(0) is not None and room.key(0) is None  # a worker opens it once
    del first
    second = room.of(shapes)["a"].fill_(2)  # `row` is still there
    assert (
        row.tolist() == [1, 1]
        and os.fstat(room.descriptor).st_ino != file
        and room.key(0) is not None
    )
    file = os.fstat(room.descriptor).st_ino
    del second
    room.of(shapes)
    assert (
        os.fstat(room.descriptor).st_ino == file and room.key(0) is None and room.key(1) is not None
    )
    room.of({"a": ["float32", [4, 2]]})
    assert os.fstat(room.descriptor).st_ino != file
    room.close()


def test_results_are_written_to_the_same_room_round_after_round(engine) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    state, files = experiment.start(), set()
    for _ in range(3):
        state, _ = run_round(experiment, state, example.everybody, engine)
        files.add(os.fstat(engine.worker_group.rooms["train"].descriptor).st_ino)
    assert len(files) == 1


def test_a_message_of_any_length_arrives_whole() -> None:
    def echo(channel: Channel) -> None:
        while True:
            channel.send(channel.receive()[0])

    workers = Workers(1, echo)
    long = {"text": "x" * 3_000_000}
    workers.workers[0].channel.send(long)
    assert workers.workers[0].channel.receive() == (long, None)
    workers.close()


def test_a_channel_whose_other_side_is_gone_says_so() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(EOFError):
        Channel(ours).receive()
