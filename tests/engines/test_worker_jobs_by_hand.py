"""A worker's part of a job message by message, and what its parent keeps and closes."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.server import Download
from fedblocks.engines import failing_operations
from fedblocks.engines.failures import ClientFailures
from fedblocks.engines.job import Evaluated, Trained
from fedblocks.engines.processes import engine as module
from fedblocks.engines.processes import shared_memory, workers
from fedblocks.engines.processes.engine import Processes, WorkerGroup
from fedblocks.engines.processes.shared_memory import (
    Room,
    open_tree,
    room_for,
    shapes_of,
    share,
)
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedper import FedPer
from fedblocks.testing.federations import small_federation, small_net

aten = torch.ops.aten
pytestmark = pytest.mark.skipif(not workers.available(), reason="workers are of Linux alone")


class Line:
    """The way to the parent: what it says, with files, and what it hears."""

    def __init__(self, *said: Any) -> None:
        self.said, self.heard = [*said], []  # type: ignore[var-annotated]

    def receive(self) -> Any:
        if not self.said:
            raise EOFError
        return self.said.pop(0)

    def send(self, message: Any) -> None:
        self.heard.append(message)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand-ins for all that a worker does with a job; each notes what it was asked."""
    done: list[Any] = []
    monkeypatch.setattr(module, "open_tree", lambda file, places: (file, places))
    job = lambda kind, said, tree: SimpleNamespace(about=(kind, said["n"], tree), cohort=range(4))
    monkeypatch.setattr(module, "_job", job)
    monkeypatch.setattr(module, "_part", lambda job, member: (job.about, member))

    def work(engine: Any, part: Any, message: Any) -> Any:
        done.append(("work", *part, message["act"]))
        if part[1] == 3:
            raise ValueError("odd")
        if part[1] == 2:
            raise UserError("mend", "so")
        return f"end of {part[1]}"

    monkeypatch.setattr(module, "_work", work)

    def room(channel: Any, one: Any, count: int, last: Any) -> int:
        done.append(("room", one, count, last))
        return len(done)

    monkeypatch.setattr(module, "_room", room)
    monkeypatch.setattr(module, "put", lambda *args: done.append(("put", *args)))
    return done


def test_a_worker_asks_for_room_once_a_job_and_goes_on_after_an_error(serving: list[Any]) -> None:
    first = {"kind": 1, "n": "first", "act": "train", "places": "p"}
    second = {"kind": 0, "n": "second", "act": "train", "places": "q"}
    members = [({"member": m}, None) for m in (0, 3, 1)]
    line: Any = Line((first, 5), *members, (second, 6), ({"member": 0}, None))
    with pytest.raises(EOFError):
        module._serve(line, ["kind 0", "kind 1"])  # type: ignore[list-item]
    one, two = ("kind 1", "first", (5, "p")), ("kind 0", "second", (6, "q"))
    assert serving == [
        ("work", one, 0, "train"),
        ("room", "end of 0", 4, None),
        ("put", 2, 0, "end of 0"),
        ("work", one, 3, "train"),
        ("work", one, 1, "train"),
        ("put", 2, 1, "end of 1"),
        ("work", two, 0, "train"),
        ("room", "end of 0", 4, 2),  # that of the job before
        ("put", 8, 0, "end of 0"),
    ]
    done, failed, *rest = line.heard
    assert done == {"done": 0} and rest == [{"done": 1}, {"done": 0}]
    assert "ValueError: odd" in failed["error"]


def test_what_a_user_can_mend_ends_a_worker(serving: list[Any]) -> None:
    job = {"kind": 0, "n": 1, "act": "evaluate", "places": "p"}
    line: Any = Line(({"member": 0}, None), ({"kind": 0}, None), (job, 5), ({"member": 2}, None))
    with pytest.raises(UserError, match="mend"):
        module._serve(line, ["kind"])  # type: ignore[list-item]
    assert len(serving) == 1 and line.heard == []  # the first two say nothing


def test_room_is_the_parents_or_that_of_the_job_before() -> None:
    one, last = {"w": torch.ones(1, 3)}, {"w": torch.zeros(2, 3)}
    shapes = {"w": ["float32", [2, 3]]}
    line: Any = Line(({"places": {}}, None))
    assert module._room(line, one, 2, last) is last and line.heard == [{"shapes": shapes}]
    with pytest.raises(EOFError):
        module._room(Line(({"places": {}}, None)), one, 2, None)  # type: ignore[arg-type]
    shared = room_for(shapes)
    theirs = os.dup(shared.descriptor)
    room = module._room(Line(({"places": shared.places}, theirs)), one, 2, last)  # type: ignore[arg-type]
    room["w"][1] = 7
    assert shared.tree["w"].tolist() == [[0.0] * 3, [7.0] * 3]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(theirs)  # it is closed
    shared.close()


def test_a_worker_does_what_it_is_told_with_what_it_is_sent() -> None:
    engine: Any = SimpleNamespace(
        train=lambda job, score: Trained({"job": job}, {}, {}, {}, {"score": score}),
        evaluate=lambda job, parts: Evaluated({"job": job}, {"parts": parts}),
    )
    job: Any = "job"
    train = module._work(engine, job, {"act": "train", "scored": "test"})
    assert [*train] == ["blocks", "weights", "wanted", "bytes_down", "counts"]
    assert train["blocks"] == {"job": "job"} and train["counts"] == {"score": "test"}
    evaluate = module._work(engine, job, {"act": "evaluate", "scored": ["a"]})
    assert evaluate == {"counts": {"job": "job"}, "portraits": {"parts": ["a"]}}


def test_a_job_of_a_round_is_its_kind_with_what_was_sent() -> None:
    experiment = Experiment.of(FedPer(small_net()), small_federation(tags=["kind"]))
    job = experiment.training_job("all", [4, 1], experiment.start())
    other = experiment.training_job("all", [0, 3], experiment.start())
    kind = replace(other, sent=Download({}, {}, {}, {}, {"frozen": {}}))
    closed: list[int] = []
    pool = {"pool": {"w": torch.ones(2)}}
    tree = {**module._cohort_tensors(job), "blocks": job.sent.blocks, "on_request": pool}
    request: Any = SimpleNamespace(tree=tree, close=lambda: closed.append(1))
    own = module._job(kind, {"cohort": {"round": 6, "seed": 8}}, request)
    assert own.cohort.ids.tolist() == [4, 1] and own.cohort.tags["kind"].tolist() == [0, 1]
    assert torch.equal(own.cohort.sizes, job.cohort.sizes)
    assert (own.cohort.round, own.cohort.seed, closed) == (6, 8, [1])
    assert own.sent.blocks is job.sent.blocks and own.sent.on_request is pool
    assert own.sent.frozen == {"frozen": {}} and own.method is job.method


class Group(WorkerGroup):
    """Whose workers are none."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    def _start(self, count: int) -> Any:
        return f"{count} workers"

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "closed"), [(None, 0), (ClientFailures({}), 0), (KeyboardInterrupt(), 1)]
)
def test_workers_are_sent_home_unless_a_job_or_its_clients_alone_ended(
    error: BaseException | None, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.of(FedPer(small_net()), small_federation())
    job = experiment.training_job("all", [4, 1], replace(experiment.start(), round=3))
    given: list[Any] = []

    def carry_out(*args: Any) -> Any:
        given.extend(args)
        os.fstat(args[3].descriptor)  # it is open
        if error is not None:
            raise error
        return {"end": 1}

    assignment = lambda *args: SimpleNamespace(carry_out=lambda: carry_out(*args))
    monkeypatch.setattr(module, "Assignment", assignment)
    group = Group()
    group._kind(job)
    group.closed = 0
    if error is None:
        assert group.work(3, job, "train", "test") == {"end": 1}
    else:
        with pytest.raises(type(error)):
            group.work(3, job, "train", "test")
    assert group.closed == closed
    of, crew, message, request, rooms = given
    assert of is job and crew == "3 workers" and rooms is group.rooms
    assert message == {
        "kind": 0, "act": "train", "scored": "test", "places": request.places,
        "cohort": {"round": 3, "seed": job.cohort.seed},
    }  # fmt: skip
    assert request.tree["ids"].tolist() == [4, 1]
    assert request.tree.keys() == {"ids", "sizes", "tags", "blocks", "on_request"}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(request.descriptor)  # it is closed


def test_a_group_of_workers_closes_them_and_its_rooms_and_starts_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    def start(count: int, serve: Any) -> Any:
        started.append(count)
        return SimpleNamespace(close=lambda: started.append(-count))

    monkeypatch.setattr(module, "Workers", start)
    group = WorkerGroup()
    group.close()  # nothing was begun
    group._start(3)
    assert group._start(3) is group.workers and started == [3]
    for room in group.rooms.values():
        room.of({"w": ["float32", [1]]})
    group.close()
    assert started == [3, -3] and group.workers is None
    assert [room.descriptor for room in group.rooms.values()] == [None, None]
    group._start(2)
    assert started == [3, -3, 2]


def test_bytes_of_a_second_download_are_told_with_those_of_the_first() -> None:
    asked: list[Any] = []
    ends = {"blocks": {}, "weights": {}, "wanted": {}, "bytes_down": {"pool": 2}, "counts": {}}

    def work(*args: Any) -> Any:
        asked.append(args)
        return ends if args[2] == "train" else {"counts": {}, "portraits": {}}

    group: Any = SimpleNamespace(work=work, close=lambda: asked.append("closed"))
    engine = Processes(count=4, worker_group=group)
    job: Any = SimpleNamespace(sent=SimpleNamespace(bytes_down={"model": 1, "pool": 0}))
    assert engine.train(job, "test").bytes_down == {"model": 1, "pool": 2}
    assert engine.evaluate(job, ("a", "b")) is not None
    engine.close()
    assert asked == [(4, job, "train", "test"), (4, job, "evaluate", ["a", "b"]), "closed"]


def test_freed_memory_is_kept_up_to_a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    library = SimpleNamespace(mallopt=lambda *args: asked.append(args))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    workers._keep_memory()
    assert asked == [(-1, 1073741824), (-3, 1073741824)]  # switches of malloc.h
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    workers._keep_memory()  # a library without them


def test_trees_are_shared_by_their_files_and_empty_ones_too() -> None:
    one = share({"a": torch.tensor([1, 2]), "b": {"c": torch.ones(1, 2).expand(3, 2)}})
    again = open_tree(one.descriptor, one.places)
    assert again.tree["a"].tolist() == [1, 2] and again.tree["b"]["c"].tolist() == [[1.0, 1.0]] * 3
    one.tree["a"][0] = 9
    assert again.tree["a"].tolist() == [9, 2]
    one.close()
    empty = share({})
    assert empty.tree == {} and os.fstat(empty.descriptor).st_size == 1
    empty.close()
    assert shapes_of({"a": {"b": torch.zeros(1, 2, 3).half()}}, 5) == {
        "a": {"b": ["float16", [5, 2, 3]]}
    }
    single = torch.ones(2).as_strided((1, 2), (0, 1))
    assert shared_memory._leaf(single)[2] is False and not shared_memory._leaf(torch.ones(()))[2]


def test_a_room_in_use_is_not_given_again() -> None:
    room, shapes = Room(), {"w": ["float32", [2]]}
    first = room.of(shapes)
    assert room.key(0) is not None
    second = room.of(shapes)
    second["w"].fill_(3)
    assert first["w"].tolist() == [0.0, 0.0] and room.key(0) is not None
    del second
    gc.collect()
    assert room.of(shapes)["w"].tolist() == [3.0, 3.0] and room.key(0) is None
    room.close()


def test_errors_of_operations_are_those_that_their_kernels_raise() -> None:
    error_of = failing_operations.error_of
    assert error_of(aten.linalg_inv_ex.default) is torch.linalg.LinAlgError  # type: ignore[attr-defined]
    for table in (aten.index.Tensor, aten.take.default, aten.nll_loss_forward.default):
        assert error_of(table) is IndexError and not failing_operations.checks_matrices(table)
    for place in (aten.scatter.src, aten.put_.default):
        assert error_of(place) is RuntimeError
