"""The engine for several CPU cores: processes with one thread each train the clients of
a cohort side by side.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedblocks.core.errors import UserError
from fedblocks.core.server import Download
from fedblocks.core.trees import take
from fedblocks.engines.failures import ClientFailures, raise_failures
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
    Workers,
    cores,
    failure_message,
    worker_error,
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
            return Assignment(job, workers, message, request, self.rooms).carry_out()
        except ClientFailures:  # the workers have done their part
            raise
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
            self.kinds[key] = replace(job, sent=Download({}, {}, {}, {}, job.sent.frozen))
        return list(self.kinds).index(key)

    def _start(self, count: int) -> Workers:
        if self.workers is None:
            kinds = list(self.kinds.values())
            self.workers = Workers(count, lambda channel: _serve(channel, kinds))
        return self.workers


class Assignment:
    """One job handed out client by client: whoever is done gets the next."""

    def __init__(
        self,
        job: Job,
        workers: Workers,
        message: Message,
        request: SharedTree,
        rooms: Mapping[Act, Room],
    ) -> None:
        self.job = job
        self.workers = workers
        self.message = message
        self.request = request
        self.rooms = rooms
        self.room = rooms[message["act"]]
        # longest first
        self.waiting = deque(sorted(range(len(job.cohort)), key=lambda member: -job.sizes[member]))
        self.busy: dict[int, deque[int]] = {}  # worker -> clients, first the one that it works on
        self.results: Tree | None = None
        self.failures: dict[int, Exception] = {}  # client -> why it did not end
        self.losses: Counter[int] = Counter()  # client -> workers that were lost over it
        self.spare = 2 * (len(job.cohort) + len(workers.workers))  # more are not started

    def carry_out(self) -> Tree:
        """Hand out all clients, and wait for what they end with."""
        for worker in self.workers.workers[: len(self.waiting)]:
            self._begin(worker)
        while self.busy:
            for worker in self.workers.incoming(self.busy):
                self._hear(worker)
        if self.failures:
            raise_failures(self.failures, len(self.job.cohort))
        if self.results is None:
            raise ValueError("a job without clients")
        return self.results

    def _begin(self, worker: Worker) -> None:
        """Tell a worker of the job, and give it its first client."""
        try:
            worker.channel.send(self.message, self.request.descriptor)
            self._next(worker, 1)
        except ConnectionError:
            self._replace(worker)

    def _next(self, worker: Worker, count: int) -> None:
        """So many clients for a worker, as long as there are some."""
        own = self.busy.setdefault(worker.number, deque())
        while self.waiting and len(own) < count:
            own.append(self.waiting.popleft())
            worker.channel.send({"member": own[-1]})
        if not own:
            del self.busy[worker.number]

    def _hear(self, worker: Worker) -> None:
        try:
            message, _ = worker.channel.receive()
            self._heed(worker, message)
        except (EOFError, ConnectionError):
            self._replace(worker)

    def _heed(self, worker: Worker, message: Message) -> None:
        if "error" in message:
            self._fail(worker, message)
        elif "shapes" in message:
            self.results = self.results or self.room.of(message["shapes"])
            worker.channel.send({"places": self.room.places}, self.room.key(worker.number))
            return
        self.busy[worker.number].popleft()
        many = len(self.waiting) > 2 * len(self.workers.workers)
        self._next(worker, 2 if many else 1)  # one ahead, so that it need not wait for us

    def _replace(self, worker: Worker) -> None:
        """Another worker in the place of one that is gone; its clients are trained again, but for
        one that has cost two workers.
        """
        lost = worker.gone(self._doing(worker))
        own = self.busy.pop(worker.number, deque())
        if own:
            self.losses[own[0]] += 1
            if self.losses[own[0]] > 1:
                self.failures[own.popleft()] = lost
        self.waiting.extendleft(reversed(own))
        for room in self.rooms.values():
            room.forget(worker.number)
        if self.waiting:
            self.spare -= 1
            if self.spare < 0:
                raise lost
            self._begin(self.workers.replace(worker))

    def _fail(self, worker: Worker, message: Message) -> None:
        if message["fix"] is not None:
            raise UserError(message["error"], message["fix"])
        said = f"worker {worker.number} failed while it {self._doing(worker)}"
        self.failures[self.busy[worker.number][0]] = worker_error(said, message)

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
            try:
                one = _work(engine, _part(job, said["member"]), message)
            except UserError:
                raise
            except Exception as error:  # of this client's; the others go on
                channel.send(failure_message(error))
                continue
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
    sent = Download(tree["blocks"], {}, tree["on_request"], {}, kind.sent.frozen)
    return replace(kind, cohort=cohort, sent=sent)


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
