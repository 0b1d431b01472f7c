"""The engine for several CPU cores: processes with one thread each train the clients of
a cohort side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

from fedblocks.core.errors import UserError
from fedblocks.core.server import Download
from fedblocks.core.trees import take
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.processes.shared_memory import (
    Room,
    SharedTree,
    Tree,
    open_tree,
    put,
    shapes_of,
    share,
)
from fedblocks.engines.processes.workers import (
    Channel,
    Message,
    Worker,
    WorkerError,
    Workers,
    cores,
)
from fedblocks.engines.sequential import Sequential

Act = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Processes:
    """One client after another in each process; to the bit what `Sequential` does with
    one thread.
    """

    name: str = "processes"
    count: int = field(default_factory=cores)  # worker processes
    worker_group: WorkerGroup = field(
        default_factory=lambda: WorkerGroup(), compare=False, repr=False
    )

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of every client; `score` names a part of the data to try the
        trained models on.
        """
        trained = Trained(**self.worker_group.work(self.count, job, "train", score))
        return replace(trained, bytes_down={**job.sent.bytes_down, **trained.bytes_down})

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated:
        """Every view of every client's model on parts of its data, after one adaptation."""
        return Evaluated(**self.worker_group.work(self.count, job, "evaluate", list(parts)))

    def close(self) -> None:
        """End the workers; the next job would start others."""
        self.worker_group.close()


class WorkerGroup:
    """Workers that know some kinds of job; for a job of a new kind they are forked again."""

    def __init__(self) -> None:
        self.kinds: dict[Hashable, Job] = {}  # jobs without what changes from round to round
        self.workers: Workers | None = None
        self.rooms: dict[Act, Room] = {"train": Room(), "evaluate": Room()}

    def work(self, count: int, job: Job, act: Act, scored: str | list[str] | None) -> Tree:
        """What all clients of a job end with, as a tree of tensors [clients, ...]."""
        kind = self._kind(job)
        workers = self._start(count)
        sent = {"blocks": job.sent.blocks, "on_request": job.sent.on_request}
        request = share({**_cohort_tensors(job), **sent})
        message = {
            "kind": kind,
            "act": act,
            "scored": scored,
            "cohort": {"round": job.cohort.round, "seed": job.cohort.seed},
            "places": request.places,
        }
        try:
            return Assignment(job, workers, message, request, self.rooms[act]).carry_out()
        except BaseException:  # Ctrl-C, too: nobody knows what the workers are at
            self.close()
            raise
        finally:
            request.close()

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()
        self.workers = None
        for room in self.rooms.values():
            room.close()

    def _kind(self, job: Job) -> int:
        """The number of a kind of job; the jobs are kept, so that no other object gets
        their identity.
        """
        key = (id(job.method), id(job.data), job.purpose, job.training, job.seed)
        if key not in self.kinds:
            self.close()
            self.kinds[key] = replace(job, sent=Download({}, {}, {}, {}))
        return list(self.kinds).index(key)

    def _start(self, count: int) -> Workers:
        if self.workers is None:
            kinds = list(self.kinds.values())
            self.workers = Workers(count, lambda channel: _serve(channel, kinds))
        return self.workers


class Assignment:
    """One job handed out client by client: whoever is done gets the next."""

    def __init__(
        self, job: Job, workers: Workers, message: Message, request: SharedTree, room: Room
    ) -> None:
        self.job = job
        self.workers = workers
        self.message = message
        self.request = request
        self.room = room
        # longest first
        self.waiting = deque(sorted(range(len(job.cohort)), key=lambda member: -job.sizes[member]))
        self.busy: dict[int, deque[int]] = {}  # worker -> clients, first the one that it works on
        self.results: Tree | None = None

    def carry_out(self) -> Tree:
        """Hand out all clients, and wait for what they end with."""
        here = self.workers.workers[: len(self.waiting)]
        for worker in here:
            self._say(worker, self.message, self.request.descriptor)
            self._next(worker, 1)
        for worker in self.workers.incoming(here):
            self._hear(worker)
            if not self.busy:
                break
        if self.results is None:
            raise ValueError("a job without clients")
        return self.results

    def _next(self, worker: Worker, count: int) -> None:
        """So many clients for a worker, as long as there are some."""
        own = self.busy.setdefault(worker.number, deque())
        while self.waiting and len(own) < count:
            own.append(self.waiting.popleft())
            self._say(worker, {"member": own[-1]})
        if not own:
            del self.busy[worker.number]

    def _hear(self, worker: Worker) -> None:
        try:
            message, _ = worker.channel.receive()
        except (EOFError, ConnectionError):
            raise worker.gone(self._doing(worker)) from None
        if "error" in message:
            self._fail(worker, message)
        elif "shapes" in message:
            self.results = self.results or self.room.of(message["shapes"])
            self._say(worker, {"places": self.room.places}, self.room.key(worker.number))
        else:
            self.busy[worker.number].popleft()
            many = len(self.waiting) > 2 * len(self.workers.workers)
            self._next(worker, 2 if many else 1)  # one ahead, so that it need not wait for us

    def _say(self, worker: Worker, message: Message, descriptor: int | None = None) -> None:
        try:
            worker.channel.send(message, descriptor)
        except ConnectionError:
            raise worker.gone(self._doing(worker)) from None

    def _fail(self, worker: Worker, message: Message) -> NoReturn:
        if message["fix"] is not None:
            raise UserError(message["error"], message["fix"])
        raise WorkerError(
            f"worker {worker.number} failed while it {self._doing(worker)}:\n{message['error']}"
        )

    def _doing(self, worker: Worker) -> str:
        own = self.busy.get(worker.number)
        return f"worked on client {self.job.ids[own[0]]}" if own else "waited"


def _serve(channel: Channel, kinds: list[Job]) -> None:
    """A worker's part: jobs, and clients of a job, as they come."""
    engine = Sequential()  # what it wrote down for one client serves the others
    job: Job | None = None
    message: Message = {}
    results: Tree | None = None
    rooms: dict[Act, Tree] = {}  # of the jobs before
    while True:
        said, descriptor = channel.receive()
        if "kind" in said and descriptor is not None:
            message = said
            results = None
            job = _job(kinds[said["kind"]], said, open_tree(descriptor, said["places"]))
        elif job is not None:
            one = _work(engine, _part(job, said["member"]), message)
            if results is None:
                act = message["act"]
                results = _room(channel, one, len(job.cohort), rooms.get(act))
                rooms[act] = results
            put(results, said["member"], one)
            channel.send({"done": said["member"]})


def _room(channel: Channel, one: Tree, count: int, last: Tree | None) -> Tree:
    """Room for the results of all clients, which the parent makes when it hears of the
    first; often the last one.
    """
    channel.send({"shapes": shapes_of(one, count)})
    said, descriptor = channel.receive()
    if descriptor is None:
        if last is None:
            raise EOFError
        return last
    results = open_tree(descriptor, said["places"])
    results.close()
    return results.tree


def _cohort_tensors(job: Job) -> Tree:
    return {"ids": job.cohort.ids, "sizes": job.cohort.sizes, "tags": job.cohort.tags}


def _job(kind: Job, message: Message, request: SharedTree) -> Job:
    """The job of this round, as the worker sees it."""
    request.close()
    tree = request.tree
    cohort = replace(
        kind.cohort, ids=tree["ids"], sizes=tree["sizes"], tags=tree["tags"], **message["cohort"]
    )
    return replace(kind, cohort=cohort, sent=Download(tree["blocks"], {}, tree["on_request"], {}))


def _part(job: Job, member: int) -> Job:
    """The same job with one client in it."""
    row = slice(member, member + 1)
    tags = take(job.cohort.tags, row)
    cohort = replace(job.cohort, ids=job.cohort.ids[row], sizes=job.cohort.sizes[row], tags=tags)
    return replace(job, cohort=cohort, sent=replace(job.sent, blocks=take(job.sent.blocks, row)))


def _work(engine: Sequential, job: Job, message: Message) -> dict[str, Any]:
    """What the client of a job ends with, as the reference engine does it."""
    act = engine.train if message["act"] == "train" else engine.evaluate
    end = act(job, message["scored"])
    return {own.name: getattr(end, own.name) for own in fields(end)}
