"""One group of clients in one round, as an engine is given it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.blocks import Federated, Private
from fedblocks.core.client import ClientStack, Each, RowSource
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.server import Cohort, Download, request
from fedblocks.core.trees import map_leaves
from fedblocks.data.federation import Federation
from fedblocks.data.sets.text import scores_of
from fedblocks.engines.batching import Positions
from fedblocks.engines.cuda_graphs import records_graphs
from fedblocks.engines.plans import Origin, Roster, StackPlan
from fedblocks.engines.row_tables import RowTables

# phase, place in `rates_of` -> [clients], where clients have their own
Rates = Mapping[tuple[int, int], Tensor]
# view -> [clients, 3 + measured]: right labels, scored labels, sum of losses, and each metric that
# needs the outputs
Counts = dict[str, Tensor]


# purpose of a job -> the function of the method that says its phases
COURSES = {"train": "phases", "adapt": "adaptation", "join": "joining"}


@dataclass(frozen=True, eq=False)
class Job:
    """Clients of one method, what they were sent, and what they are to do."""

    method: Method
    phases: Sequence[Phase]
    cohort: Cohort
    sent: Download
    bytes_per_slot: Mapping[str, int]
    data: Federation
    seed: int
    training: bool  # False: an evaluation, whose results nobody keeps
    purpose: str  # names the stream of randomness: "train", "adapt", "join"
    tables: RowTables = field(default_factory=RowTables, repr=False)

    @property
    def device(self) -> torch.device:
        return self.data.device

    @cached_property
    def ids(self) -> list[int]:
        ids: list[int] = self.cohort.ids.tolist()
        return ids

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self.data.train.sizes_of(self.ids)

    def held(self, members: Sequence[int]) -> tuple[Federation, list[int]]:
        """The data of some clients, and their numbers in them: what is in a file is read now."""
        ids = [self.ids[m] for m in members]
        if not self.data.streamed:
            return self.data, ids
        return self.tables.read(self.data, ids), list(range(len(ids)))

    @property
    def words(self) -> Mapping[str, Any]:
        """The special words of a text federation, some of which are left out of some
        scores; else nothing.
        """
        vocabulary = self.data.about.get("vocabulary")
        return vocabulary if isinstance(vocabulary, Mapping) and "oov" in vocabulary else {}

    @property
    def scores(self) -> Sequence[str]:
        """The ways to count right answers: all labels, and for texts without some special words."""
        return scores_of(self.words)

    @property
    def kept_blocks(self) -> set[str]:
        """The blocks that matter after local training: what is uploaded, and what stays
        on the client.
        """
        layout = self.method.blocks().items()
        up = {block.of or name for name, block in layout if isinstance(block, Federated)}
        return up | {name for name, block in layout if isinstance(block, Private)}

    @cached_property
    def batches(self) -> list[list[list[Positions]]]:
        """Every client's batches, phase by phase."""
        return [self.roster.batches(member) for member in range(len(self.ids))]

    @cached_property
    def roster(self) -> Roster:
        phases, origins, sizes = self.phases, self.origins, self.sizes
        return Roster(self.method, phases, self.purpose, origins, sizes, self.device)

    def plan(self, members: Sequence[int]) -> StackPlan:
        """What a stack of the clients does, whatever it was sent."""
        key = tuple(members)
        if key not in self._plans:
            self._plans[key] = self.tables.plan(self.roster, members)
        return self._plans[key]

    @cached_property
    def _plans(self) -> dict[tuple[int, ...], StackPlan]:
        return {}

    @cached_property
    def origins(self) -> list[Origin]:
        return [(self.seed, self.cohort.round, i) for i in self.ids]

    @cached_property
    def rates(self) -> Rates:
        return {}

    @cached_property
    def own_numbers(self) -> dict[str, Any]:
        """Trees of tensors [clients]: what clients have of their own where they are lanes."""
        return {"options": {}, "optimizers": {}}

    def part_rows(self, part: str, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The rows of a part of some clients' data, [clients, longest], and how many
        are real, [clients].
        """
        data, ids = self.held(members)
        return self.tables.pad(data.parts[part], ids, self.device, torch.double)

    def requested(self, wanted: Mapping[str, Tensor], local: ClientStack) -> Blocks:
        """The second download of some clients, by what each `wants`."""
        return {name: request(slots, wanted[name]) for name, slots in self.sent.on_request.items()}

    def one(self, member: int) -> ClientStack:
        """One client; where steps are recorded, its rows are padded, too."""
        return self._local([member], lambda fn: fn, lambda t: t[0])

    def several(self, members: Sequence[int], each: Each) -> ClientStack:
        """A stack of clients, their data padded to the longest."""
        return self._local(members, each, lambda t: t)

    def _local(
        self, members: Sequence[int], each: Each, shape: Callable[[Tensor], Tensor]
    ) -> ClientStack:
        where = (
            slice(members[0], members[0] + 1)
            if len(members) == 1
            else torch.as_tensor(members, device=self.device)
        )
        keep = self.method.keep_optimizer and self.training
        rates = {key: values[where] for key, values in self.rates.items()}
        data, _ = self.held(members)
        return ClientStack(
            RowSource(data.x, self.tables.targets(data.y, self.method.net.dtype), data.task),
            self._tensors(members, where, shape),
            self.cohort.round,
            self.training,
            each,
            keep,
            rates,
            frozen=self.sent.frozen,
            method=self.method,
            course=COURSES[self.purpose],
        )

    def _tensors(
        self, members: Sequence[int], where: slice | Tensor, shape: Callable[[Tensor], Tensor]
    ) -> dict[str, Any]:
        data, ids = self.held(members)
        dtype, few = self.method.net.dtype, records_graphs(self.device)
        pad = self.tables.pad
        rows, sizes = pad(data.train, ids, self.device, dtype, few)
        validation, validation_sizes = pad(data.validation, ids, self.device, dtype, few)
        plan = self.plan(members)
        return {
            "rows": shape(rows),
            "size": shape(sizes),
            "validation_rows": shape(validation),
            "validation_size": shape(validation_sizes),
            "id": shape(self.cohort.ids[where]),
            "key": shape(plan.keys),
            "steps": shape(plan.counts),
            "tags": {name: shape(values[where]) for name, values in self.cohort.tags.items()},
            **map_leaves(lambda values: shape(values[where]), self.own_numbers),
        }


@dataclass(frozen=True, eq=False)
class Evaluated:
    """How a group of clients did, along the first dimension."""

    counts: dict[str, Counts]  # by part of the data
    portraits: dict[str, Tensor]  # name -> [clients, ...], what `portrait` said


@dataclass(frozen=True, eq=False)
class Trained:
    """What a group of clients ends a round with, along the first dimension."""

    blocks: Blocks
    weights: dict[str, Tensor]  # what `writes` said
    wanted: dict[str, Tensor]  # what `wants` said
    bytes_down: dict[str, Tensor]  # block -> [clients]
    counts: Counts  # how the models did right after training, if the engine was asked
