"""One client's round before the first one, a step for each phase: whatever a method of somebody
else's returns is looked at once, and blocks that would train without a gradient are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedblocks.core import mode
from fedblocks.core.admission import misfit
from fedblocks.core.aggregate import reduce_groups
from fedblocks.core.blocks import server_name
from fedblocks.core.client import ClientStack, Step
from fedblocks.core.errors import UserError
from fedblocks.core.hook_results import (
    check_all_blocks,
    check_like,
    check_modest,
    check_no_more_blocks,
    check_numbers,
    check_outputs,
    check_reads,
    check_tree,
    check_weights,
)
from fedblocks.core.hooks import is_own, telling
from fedblocks.core.local_round import (
    PhaseRun,
    loss_gradients,
    step_by_step,
    step_key,
    train,
    trained_tensors,
)
from fedblocks.core.method import Method
from fedblocks.core.own_code import last_name
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Pull
from fedblocks.core.server import own_server
from fedblocks.core.state import State
from fedblocks.core.training_batch import batch_of
from fedblocks.core.trees import copy, map_leaves
from fedblocks.core.uploads import uploads_of
from fedblocks.engines.close_round import weight_limits
from fedblocks.engines.job import COURSES, Job
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import one_client
from fedblocks.engines.steadiness import Steadiness
from fedblocks.engines.tried_phases import tried_phases
from fedblocks.engines.unwritten import nothing_written, without_statistics

_ROWS = 2  # examples on which views are tried
_TRIES = 3  # clients that are tried before an error counts as one of the method


def rehearse(experiment: Experiment, clients: Sequence[int], is_padded: bool = True) -> list[str]:
    """Refuse methods whose functions return what no round can use; what to know of the others.

    `clients` are those that could be the cohort; `is_padded`: an engine that pads may train them.
    Methods of the library need no rehearsal.
    """
    notes: list[str] = []
    for group, ids in experiment.members(clients).items():
        has_rows = [i for i in ids if len(experiment.data.train[i])]
        if is_own(experiment.methods[group]) and has_rows:
            notes += Rehearsal(experiment, group, has_rows, experiment.start(), is_padded).play()
    return notes


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """One group's method, tried on one of its clients."""

    experiment: Experiment
    group: str
    clients: Sequence[int]  # that have training rows
    state: State
    is_padded: bool
    untrained: dict[str, str] = field(default_factory=dict)  # block -> where it has no gradient

    @property
    def method(self) -> Method:
        return self.experiment.methods[self.group]

    @cached_property
    def steadiness(self) -> Steadiness:
        net = self.method.net
        is_padded = self.is_padded and not net.unmappable
        return Steadiness(type(self.method).__name__, net.dtype, is_padded)

    def where(self, hook: str) -> str:
        return f"{type(self.method).__name__}.{hook}"

    def play(self) -> list[str]:
        """All functions of a round, on a client of middling size or, if it fails, on others."""
        self._try_reads()
        job = self.experiment.training_job(self.group, self.clients, self.state)
        order = np.argsort(job.sizes, kind="stable")
        places = [len(order) // 2, -1, 0][: min(_TRIES, len(order))]
        errors = []
        for member in [int(order[place]) for place in places]:
            try:
                return self._play(job, member)
            except UserError:
                raise
            except Exception as error:  # of this client's data, perhaps
                errors.append(error)
        raise errors[0]

    def _play(self, job: Job, member: int) -> list[str]:
        method = self.method
        local, sent, _ = one_client(job, member)
        wanted = self._call(local, "wants", sent)
        check_weights(self.where("wants"), wanted, method.blocks())
        check_all_blocks(self.where("wants"), wanted, job.sent.on_request)
        self.steadiness.check_hook(method.wants, local, sent)
        more = job.requested(wanted, local)
        start = self._call(local, "prepare", {**sent, **more})
        self._check_like_sent("prepare", job, member, start)
        self.steadiness.check_hook(method.prepare, local, {**sent, **more})
        self._try_views(job, member, local, start)
        trained = self._train(job, member, start)
        end = self._call(local, "finish", trained, start)
        self._check_like_sent("finish", job, member, end)
        check_no_more_blocks(self.where("finish"), end, {*method.blocks(), *trained})
        check_all_blocks(self.where("finish"), end, sorted(job.kept_blocks))
        self.steadiness.check_hook(method.finish, local, trained, start)
        weights = self._call(local, "writes", end)
        check_weights(self.where("writes"), weights, method.blocks())
        check_modest(self.where("writes"), weights, float(weight_limits(job)[member]))
        self.steadiness.check_hook(method.writes, local, end)
        self._conclude(job, end, weights, wanted)
        for purpose in ("adapt", "join"):
            self._train_before_evaluation(purpose, job.ids[member])
        notes = [
            f'block "{block}" gets no gradient in {place}: leave it out of the step, or use it in '
            f"the loss"
            for block, place in self.untrained.items()
        ]
        self.untrained.clear()
        return [f"{type(method).__name__}: {note}" for note in notes]

    def _call(self, local: ClientStack, name: str, *args: Blocks) -> Any:
        """A function of the method, which changes nothing that it is given."""
        with nothing_written(self.where(name), self.state.server, *args, local.frozen):
            return local.call(getattr(self.method, name), *args)

    def _try_reads(self) -> None:
        layout = self.method.blocks()
        slots = own_server(layout, self.state.server)
        cohort = self.experiment.cohort(self.clients, self.state.round)
        with telling(self.method, "reads"):
            reads = self.method.reads(slots, cohort)
            again = self.method.reads(slots, cohort)
        self.steadiness.check_answers(self.method.reads, reads, again)
        check_reads(self.where("reads"), reads, layout, slots, len(cohort))

    def _try_views(self, job: Job, member: int, local: ClientStack, blocks: Blocks) -> None:
        data, ids = job.held([member])
        rows = torch.as_tensor(list(data.train[ids[0]][:_ROWS]), device=data.x.device)
        wanted = [len(rows), *data.task.output_shape(data.y, data.classes)]
        own = local.whole(blocks)
        for name, view in self.method.views().items():
            what = "predict" if name == "personal" else f'view "{name}"'
            with (
                telling(self.method, last_name(view)),
                mode.mode(training=False, mapped=False, task=data.task),
                torch.no_grad(),
            ):
                with nothing_written(self.where(what), self.state.server, own):
                    outputs = view(own, data.x[rows])
                check_outputs(self.where(what), outputs, wanted)
                self.steadiness.check_view(view, own, data.x[rows], outputs)
        check_numbers(self.where("portrait"), self._call(local, "portrait", blocks))

    def _train(self, job: Job, member: int, start: Blocks) -> Blocks:
        """The first step of every phase."""
        local, _, steps = one_client(job, member)
        course = COURSES[job.purpose]
        phases = tried_phases(job.phases, self.where(course), self.steadiness)
        watch = self._watch(course)
        return train(phases, start, local, [order[:1] for order in steps], watch)

    def _train_before_evaluation(self, purpose: str, client: int) -> None:
        phases = getattr(self.method, COURSES[purpose])()
        is_training = purpose == "join"
        make = self.experiment.job
        job = make(self.group, [client], self.state, phases, is_training, purpose)
        local, sent, _ = one_client(job, 0)
        more = job.requested(local.call(self.method.wants, sent), local)
        self._train(job, 0, local.call(self.method.prepare, {**sent, **more}))

    def _watch(self, course: str) -> Callable[[PhaseRun, Sequence[Step]], None]:
        """Steps as ever, after a look at their losses and gradients."""

        def run(stretch: PhaseRun, order: Sequence[Step]) -> None:
            for step in order:
                self._look_at(stretch, step, course)
            step_by_step(stretch, order)

        return run

    def _look_at(self, stretch: PhaseRun, step: Step, course: str) -> None:
        key = step_key(stretch, 1)
        batch = batch_of(stretch.local, step, key)
        moved: set[str] = set()
        unmoved = without_statistics(stretch.blocks)  # a pass leaves its statistics there
        for place, update in enumerate(stretch.phase.updates):
            if update.pull is not None:
                self._check_pull(update.pull, stretch, course)
                moved.add(update.pull.block)
            if update.loss is None:
                continue
            with nothing_written(self.where(last_name(update.loss)), unmoved):
                grads = loss_gradients(place, stretch, batch, step)
            self.steadiness.check_loss(place, stretch, step, key, grads)
            names = [block for block, _, _ in trained_tensors(update, stretch.blocks)]
            moved |= {name for name, grad in zip(names, grads, strict=True) if grad is not None}
        for name in stretch.phase.train:
            if name not in moved and not all(map(is_statistic, stretch.blocks[name])):
                where = f"phase {stretch.number + 1} of `{course}`"
                self.untrained.setdefault(name, where)

    def _check_pull(self, pull: Pull, stretch: PhaseRun, course: str) -> None:
        """Blocks that are drawn to each other have the same tensors."""
        blocks = stretch.local.whole(stretch.blocks)
        one = {k: v.shape for k, v in blocks[pull.block].items() if not is_statistic(k)}
        other = {k: v.shape for k, v in blocks[pull.to].items()}
        odd = next((key for key in one if one[key] != other.get(key)), None)
        if odd is not None:
            has = f"a {list(other[odd])}" if odd in other else "none"
            message = (
                f'{self.where(course)} pulls block "{pull.block}" to "{pull.to}": the one has '
                f'"{odd}", {list(one[odd])}, and the other {has}'
            )
            raise UserError(message, "pull a block to one of the same tensors: a start, a copy")

    def _check_like_sent(self, hook: str, job: Job, member: int, blocks: Any) -> None:
        """What stays with the client and what it sends is as it was, in names, shapes and types."""
        where = self.where(hook)
        check_tree(where, blocks)
        _, sent, _ = one_client(job, member)
        for name in sorted(job.kept_blocks & blocks.keys() & sent.keys()):
            if sent[name]:  # else the client makes it
                check_like(where, name, blocks[name], sent[name])

    def _conclude(self, job: Job, end: Blocks, weights: Any, wanted: Any) -> None:
        """The server's side, as if every client had ended as this one did."""
        method, count = self.method, len(job.cohort)
        repeat = lambda value: value.detach().expand(count, *value.shape)
        blocks, weights, wanted = (map_leaves(repeat, one) for one in (end, weights, wanted))
        uploads = uploads_of(method, blocks, weights, job.sent.reads, wanted, job.cohort)
        for name, upload in uploads.items():
            wrong = misfit(name, upload, self.state.server[upload.name])
            if wrong is not None:
                fix = "return tensors of the names, shapes and types of its slots"
                raise UserError(
                    f"{self.where('finish')} returns what no slot holds: {wrong[1]}", fix
                )
        layout = method.blocks()
        before = own_server(layout, self.state.server)
        reduced = reduce_groups(self.state, {self.group: uploads})
        server = own_server(layout, reduced.server)
        conclude: Callable[[], Any] = lambda: method.conclude(
            copy(server), before, uploads, job.cohort
        )
        after: Any = {}
        again: Any = {}
        with nothing_written(self.where("conclude"), self.state.server), suppress(Exception):
            # an error may be one of clients that are all alike: the first round says it
            after, again = conclude(), conclude()
        self.steadiness.check_answers(method.conclude, after, again)
        where = self.where("conclude")
        check_tree(where, after, "return the server's blocks: {**server, ...}")
        for name, slots in after.items():
            if name not in before:
                known = ", ".join(server_name(n, layout[n]) for n in before)
                message = f'{where} returns "{name}", which the server does not have'
                raise UserError(message, f"return blocks of the server: {known}")
            check_like(where, name, slots, before[name])
