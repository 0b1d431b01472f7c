"""How many clients fit into a given memory at once.

What a round takes grows with the clients that are trained at once, and with all clients of the
cohort, whose results are kept until the server has them. Both are measured, on a step of one or
two clients: branches, components, activations and what hooks and evaluations need are in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedblocks.core.blocks import Pool, Selection, server_name
from fedblocks.core.errors import UserError
from fedblocks.core.phases import Phase
from fedblocks.core.server import sent_copies
from fedblocks.core.state import State
from fedblocks.engines.close_round import ClientResults, close_round
from fedblocks.engines.job import Job
from fedblocks.engines.round import Experiment, evaluation_job
from fedblocks.engines.vectorised import Vectorised

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def bytes_of(text: str) -> int:
    """The number of bytes that a text such as "8GiB" means."""
    amount = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = amount[2].upper() if amount else ""
    if not amount or unit not in UNITS or float(amount[1]) <= 0:
        raise UserError(
            f'"{text}" is not an amount of memory',
            'write a number and a unit, e.g. "8GiB" or "500MB"',
        )
    return int(float(amount[1]) * UNITS[unit])


@dataclass(frozen=True)
class Stages:
    """The most bytes of each stage of a round with some clients, some of them at once."""

    training: int
    kept: int  # what is there when training has ended
    closing: int  # the server's share
    evaluation: int


@dataclass(frozen=True)
class Need:
    """The bytes that a round takes besides the data: two and three clients, one after the other
    and at once, tell what each further one takes.
    """

    in_turn: tuple[Stages, Stages]
    together: tuple[Stages, Stages]

    def bytes(self, cohort: int, chunk: int) -> int:
        """The most that a round of a cohort takes, with so many clients at once."""
        two, three = self.in_turn
        kept, closing = three.kept - two.kept, three.closing - two.closing  # of a client
        both, all_three = self.together
        training, evaluation = (
            all_three.training - both.training,
            all_three.evaluation - both.evaluation,
        )
        return max(
            both.training + (chunk - 2) * training + (cohort - chunk) * kept,
            # results of several stacks become one, and that is put into the order of the cohort
            two.kept + (3 * cohort - 2) * kept if chunk < cohort else 0,
            two.closing + (cohort - 2) * closing,
            both.evaluation + (chunk - 2) * evaluation,
        )

    def chunk(self, memory: int, cohort: int, most: int) -> int:
        """Clients that may be trained at once: as many as were asked for, or as fit."""
        for chunk in range(min(most, cohort), 0, -1):
            if self.bytes(cohort, chunk) <= memory:
                return most if chunk == cohort else chunk
        raise UserError(
            f"a round of {cohort} clients, trained one after another, needs about "
            f"{_mib(self.bytes(cohort, 1))}, more than the {_mib(memory)} that may be used",
            "give more memory, or use fewer clients a round, a smaller net or a smaller batch",
        )


def _mib(number: int) -> str:
    return f"{number / 2**20:.1f} MiB" if number >= 2**20 else f"{number / 2**10:.1f} KiB"


def measure_need(experiment: Experiment, group: str, parts: Sequence[str]) -> Need:
    """What a round and an evaluation of a group take, from those of a few clients like its
    largest.
    """
    sizes = experiment.data.train.sizes
    members = experiment.members(range(experiment.data.clients))[group]
    largest = max(members, key=lambda client: int(sizes[client]))

    def measure(clients: int, chunk: int) -> Stages:
        return _measure_stages(experiment, group, [largest] * clients, chunk, parts)

    return Need((measure(2, 1), measure(3, 1)), (measure(2, 2), measure(3, 3)))


def _measure_stages(
    experiment: Experiment, group: str, clients: Sequence[int], chunk: int, parts: Sequence[str]
) -> Stages:
    """One step of each phase, the server's share, and an evaluation."""
    engine, state = Vectorised(chunk=chunk, graphs=False), experiment.start()
    method = experiment.methods[group]
    phases = [_one_step(phase) for phase in method.phases()]
    with ByteCount() as count:
        job = _with_all_slots(experiment.job(group, clients, state, phases, True, "train"), state)
        trained = engine.train(job)
        training, kept = count.restart()
        results = ClientResults.of(job, trained)
        state, _ = close_round({group: method}, state, {group: results}, experiment.share)
        del results, trained, job
        closing, _ = count.restart()
        tried = evaluation_job(experiment, group, clients, state, joining=False)
        tried = _with_all_slots(tried, state)
        engine.evaluate(replace(tried, phases=[_one_step(own) for own in tried.phases]), parts)
        evaluation, _ = count.restart()
    return Stages(training, kept, closing, evaluation)


def _with_all_slots(job: Job, state: State) -> Job:
    """The same with every slot of each pool: methods that find clusters send one at the start, and
    clients compare all of them later.
    """
    reads, blocks = dict(job.sent.reads), dict(job.sent.blocks)
    for name, block in job.method.blocks().items():
        if isinstance(block, Pool) and isinstance(reads.get(name), Selection):
            every = torch.arange(block.size, device=job.device).expand(len(job.cohort), -1)
            reads[name] = Selection(every)
            blocks[name] = sent_copies(state.server[server_name(name, block)], reads[name])
    return replace(job, sent=replace(job.sent, reads=reads, blocks=blocks))


def _one_step(phase: Phase) -> Phase:
    return replace(phase, steps=min(1, phase.steps or phase.epochs))


class ByteCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of all tensors that were made since, and are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._alive: dict[int, tuple[Any, int]] = {}

    def restart(self) -> tuple[int, int]:
        """The most so far, and what there is now; from here on, the most is counted anew."""
        most = self.most
        self._look()
        self.most = self.now
        return most, self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        inputs = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and _place(tensor) not in inputs:
                storage = tensor.untyped_storage()
                alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._alive.setdefault(_place(tensor), (alive, storage.nbytes()))
        self._look()
        return results

    def _look(self) -> None:
        self._alive = {k: own for k, own in self._alive.items() if not own[0].expired()}
        self.now = sum(size for _, size in self._alive.values())
        self.most = max(self.most, self.now)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
