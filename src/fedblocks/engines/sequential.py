"""The reference engine: clients one after another, plain autograd, nothing padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fedblocks.core.client import ClientStack, Step
from fedblocks.core.errors import UserError
from fedblocks.core.local_round import StepRunner, step_by_step
from fedblocks.core.parts import Blocks
from fedblocks.core.trees import stack, take
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.cuda_graphs import Captured, records_graphs
from fedblocks.engines.failures import raise_failures
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.local_work import adapt, evaluate_locally, train_locally
from fedblocks.engines.replay.replayed import Replayed
from fedblocks.engines.scoring import EvalChunk, chunk_of, chunks_of
from fedblocks.kernels.device_errors import is_of_device


@dataclass(frozen=True)
class Sequential:
    """A loop over clients; with `replay` off the debugger's friend, with the same results."""

    name: str = "sequential"
    replay: bool = True  # write down the operations of a step and repeat them; on a GPU as a graph
    worth: int = 8  # steps of one kind in a round before they are written down
    known: dict[tuple[int, str], Replayed | Captured] = field(
        default_factory=dict, compare=False, repr=False
    )

    def runner(self, job: Job) -> StepRunner:
        """How the steps of a job are run."""
        if not self.replay or job.data.streamed:
            return step_by_step
        key = (id(job.method), job.purpose)
        if key not in self.known:
            graphs = records_graphs(job.device)
            self.known[key] = Captured(job.method) if graphs else Replayed(job.method, self.worth)
        return self.known[key]

    @contextmanager
    def _noting(self, job: Job, member: int, failures: dict[int, Exception]) -> Iterator[None]:
        """Note an error of one client, so that the others go on; not one of all."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if is_of_device(error):
                raise
            failures[member] = error
            self.known.pop((id(job.method), job.purpose), None)  # half written down, perhaps

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of every client; `score` names a part of the data to try the
        trained models on.
        """
        ends: list[Trained] = []
        blocks: Blocks = {}
        failures: dict[int, Exception] = {}
        for member in range(len(job.cohort)):
            with self._noting(job, member, failures):
                chunks = [] if score is None else _chunks(job, member, score)
                end = train_locally(job, *one_client(job, member), chunks, self.runner(job))
                _put(blocks, end.blocks, member, len(job.cohort))
                # so that the next client works where this one did, in warm memory
                ends.append(replace(end, blocks={}))
        if failures:
            raise_failures(failures, len(job.cohort))
        return Trained(
            blocks,
            stack([end.weights for end in ends]),
            stack([end.wanted for end in ends]),
            {**job.sent.bytes_down, **stack([end.bytes_down for end in ends])},
            stack([end.counts for end in ends]),
        )

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated:
        """Every view of every client's model on parts of its data, after one adaptation."""
        ends: list[Evaluated] = []
        failures: dict[int, Exception] = {}
        for member in range(len(job.cohort)):
            with self._noting(job, member, failures):
                chunks = {part: _chunks(job, member, part) for part in parts}
                ends.append(
                    evaluate_locally(job, *one_client(job, member), chunks, self.runner(job))
                )
        if failures:
            raise_failures(failures, len(job.cohort))
        portraits = stack([end.portraits for end in ends])
        return Evaluated(stack([end.counts for end in ends]), portraits)


def adapted_blocks(job: Job, member: int) -> Blocks:
    """The blocks of one client of a job as its evaluation uses them, frozen ones too."""
    return {**adapt(job, *one_client(job, member)), **job.sent.frozen}


def one_client(job: Job, member: int) -> tuple[ClientStack, Blocks, list[list[Step]]]:
    """A client of a job, what it is sent, and its steps in each phase."""
    steps = [steps_of_one(batches, job.device) for batches in job.batches[member]]
    return job.one(member), take(job.sent.blocks, member), steps


def _put(stack: Blocks, blocks: Blocks, member: int, count: int) -> None:
    """Write one client's blocks to its place in the stack, which the first client's make."""
    for name, block in blocks.items():
        into = stack.setdefault(name, {})
        for key, value in block.items():
            if count == 1:
                into[key] = value.detach().unsqueeze(0)
                continue
            if key not in into:
                into[key] = value.new_empty(count, *value.shape)
            into[key][member].copy_(value.detach())


def _chunks(job: Job, member: int, part: str) -> list[EvalChunk]:
    rows, sizes = job.part_rows(part, [member])
    return chunks_of(rows[0], sizes[0], chunk_of(job.data))
