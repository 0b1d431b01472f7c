"""The client's side of a round: the local work of a simulation, on data and personal
blocks that never leave.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.admission import admit
from fedblocks.core.blocks import Federated, Fresh, Pool, Private
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER, Blocks, Params
from fedblocks.core.phases import Phase
from fedblocks.core.server import Download
from fedblocks.core.state import initial_copy, initial_private, statistics_name, to_device
from fedblocks.core.uploads import private_of
from fedblocks.data.federation import Federation, Rows
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.job import Evaluated, Job
from fedblocks.engines.local_work import adapt
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import (
    ApologyHeader,
    Counts,
    DownloadHeader,
    Envelope,
    Malformed,
    MoreHeader,
    Picture,
    RequestHeader,
    Slots,
    UploadHeader,
    Wire,
    blocks_from,
    blocks_schema,
    header_of,
    reply,
    tensors_of,
    wire,
)
from fedblocks.flower.wire.plans import Specs, plan_hash, plan_specs, several
from fedblocks.flower.wire.readable import LOGGED, readable
from fedblocks.flower.wire.uploads import upload_arrays
from fedblocks.runs.rounds import SMALL

log = logging.getLogger(__name__)


def alone(data: Federation, client: int) -> Federation:
    """Return a federation of one client, under the number that it has in the whole federation."""
    if data.clients != 1:
        raise UserError(
            f"a client brings its own data, not those of {data.clients}",
            "use federation.subset([client])",
        )
    own = data.compact()
    rows: dict[str, Any] = {
        part: Rows(r.index, np.array([0] * (client + 1) + [len(r.index)]))
        for part, r in own.parts.items()
    }
    tags = {name: np.array([0] * client + [int(tag[0])]) for name, tag in own.tags.items()}
    return replace(own, **rows, tags=tags, names=())


@dataclass(frozen=True, eq=False)
class ClientSide:
    """One client: its method, its data and its own disk."""

    client: int
    run: str
    experiment: Experiment  # of this client alone
    store: PersonalStore
    sends: frozenset[str] = frozenset(Allow().send)  # what may leave, by the names in client.toml

    @staticmethod
    def of(
        method: Method, data: Federation, client: int, seed: int, run: str, store: PersonalStore
    ) -> ClientSide:
        """Return the side of a client with these data, a federation of one."""
        return ClientSide(client, run, Experiment.of(method, alone(data, client), seed), store)

    @property
    def method(self) -> Method:
        return next(iter(self.experiment.methods.values()))

    @cached_property
    def plan(self) -> str:
        return plan_hash(self.method, self.specs, self.experiment.seed)

    @cached_property
    def specs(self) -> dict[str, Specs]:
        return plan_specs(self.method, self.experiment.seed)

    @cached_property
    def _fresh(self) -> Blocks:
        """What a client that never took part holds."""
        return initial_private(self.method, self.experiment.seed)

    def answer(self, message: Wire) -> Wire:
        """Return the client's answer to a message; an apology if it cannot do what it is asked."""
        header = header_of(message)
        try:
            self._check(header)
            match header:
                case DownloadHeader():
                    if header.refused:
                        refusal = readable(header.refused)
                        log.warning(
                            "the last answer of client %d was not used: %s", self.client, refusal
                        )
                    return self._first(header, message)
                case MoreHeader():
                    return self._second(header, message)
                case _:
                    raise Malformed("envelope", f'a client is not sent "{header.kind}"')
        except Malformed as error:
            return wire(ApologyHeader(**reply(header), reason=error.reason, detail=error.detail))
        except UserError as error:
            log.warning(
                "client %d cannot do what it was asked: %s",
                self.client,
                readable(error.message, LOGGED),
            )
            return wire(
                ApologyHeader(**reply(header), reason="client-error", detail=excuse_for(error))
            )

    def _check(self, header: Envelope) -> None:
        if header.run != self.run:
            raise Malformed("wrong-run", f'this client takes part in run "{self.run}"')
        if header.client != self.client:
            raise Malformed("wrong-client", f"this is client {self.client}")
        if header.plan != self.plan:
            raise Malformed(
                "plan-mismatch",
                "server and client have another version, method, options, net or seed",
            )
        if isinstance(header, DownloadHeader) and header.train and "updates" not in self.sends:
            raise Malformed(
                "not-allowed",
                "this client sends no updates; it can be evaluated, and given a model",
            )

    def _first(self, header: DownloadHeader, message: Wire) -> Wire:
        """Answer the first message of a round: do the work, or ask for slots first."""
        received = self._received(header, message)
        pools = {
            n: b for n, b in self.method.blocks().items() if isinstance(b, Pool) and b.on_request
        }
        if not pools:
            return self._work(header, received, {})
        held = self._held(header, received)
        train = (
            self._wanted(header, held, self.method.phases(), True, "train") if header.train else {}
        )
        tried = self._wanted(header, held, *self._trial(header)) if header.evaluate else {}
        self.store.put_aside(
            header.round, {"header": header.model_dump_json(), "blocks": received}, self.plan
        )
        return wire(RequestHeader(**reply(header), train=train, evaluate=tried))

    def _second(self, header: MoreHeader, message: Wire) -> Wire:
        """Answer the second message of a round: do the work with the slots that were asked for."""
        aside = self.store.aside(header.round, self.plan)
        first = header_of(Wire(aside["header"], {}))
        if not isinstance(first, DownloadHeader) or first.nonce != header.nonce:
            raise Malformed(
                "lost-download", "the first download of this attempt at the round is gone"
            )
        layout = {
            n: b for n, b in self.method.blocks().items() if isinstance(b, Pool) and b.on_request
        }
        if header.slots.keys() != layout.keys():
            raise Malformed("names", "the slots are not those of the pools on request")
        blocks = {
            n: several(self.specs[n], len(header.slots[n])) for n in layout if header.slots[n]
        }
        some = blocks_from(tensors_of(message.arrays, blocks_schema(blocks), self._device), blocks)
        more = {
            n: self._whole(n, b.size, header.slots[n], some.get(n, {})) for n, b in layout.items()
        }
        return self._work(
            first, {n: to_device(b, self._device) for n, b in aside["blocks"].items()}, more
        )

    @property
    def _device(self) -> torch.device:
        return self.experiment.data.x.device

    def _whole(self, name: str, size: int, slots: Sequence[int], some: Params) -> Params:
        """Return all slots of a pool: those that came, and zero for the others."""
        if any(not 0 <= slot < size for slot in slots):
            raise Malformed("shape", f'pool "{name}" has {size} slots')
        empty = {
            k: torch.zeros((size, *s), dtype=t, device=self._device)
            for k, (t, s) in self.specs[name].items()
        }
        where = torch.tensor(slots, dtype=torch.long, device=self._device)
        return {k: v.index_copy(0, where, some[k]) if some else v for k, v in empty.items()}

    def _received(self, header: DownloadHeader, message: Wire) -> Blocks:
        if unknown := header.copies.keys() - self.specs.keys():
            raise Malformed("names", f'the method has no block "{min(unknown)}"')
        blocks = {name: several(self.specs[name], copies) for name, copies in header.copies.items()}
        return blocks_from(tensors_of(message.arrays, blocks_schema(blocks), self._device), blocks)

    def _held(self, header: DownloadHeader, received: Blocks) -> Blocks:
        """Return what the client starts with: what came, what it kept, what starts anew."""
        seed, fresh = self.experiment.seed, self._fresh
        kept = self.store.load(header.kept, self.plan) if self.method.stateful else {}
        held: Blocks = {name: block for name, block in kept.items() if name.startswith(OPTIMIZER)}
        for name, block in self.method.blocks().items():
            match block:
                case Private():
                    held[name] = kept.get(name, fresh[name])
                case Fresh() if block.part is not None:
                    held[name] = initial_copy(block.part, seed)
                case Pool(on_request=True):
                    pass
                case _ if isinstance(block, Federated):
                    own = kept.get(statistics_name(name)) or fresh.get(statistics_name(name)) or {}
                    held[name] = {**received.get(name, {}), **own}
        return {name: to_device(block, self._device) for name, block in held.items()}

    def _wanted(
        self,
        header: DownloadHeader,
        held: Blocks,
        phases: list[Phase],
        training: bool,
        purpose: str,
    ) -> Slots:
        job = self._job(header, held, {}, phases, training, purpose)
        wanted: dict[str, Tensor] = job.one(0).call(self.method.wants, held)
        return {
            name: tuple(torch.nonzero(mask).flatten().tolist()) for name, mask in wanted.items()
        }

    def _job(
        self,
        header: DownloadHeader,
        held: Blocks,
        more: Blocks,
        phases: list[Phase],
        training: bool,
        purpose: str,
    ) -> Job:
        """Return the work of a round for a cohort of one."""
        sent = Download(
            {n: {k: v[None] for k, v in b.items()} for n, b in held.items()}, {}, more, {}
        )
        experiment = self.experiment
        cohort = experiment.cohort([self.client], header.round)
        sizes = dict.fromkeys(more, 0)  # bytes are counted where they are sent
        return Job(
            self.method,
            phases,
            cohort,
            sent,
            sizes,
            experiment.data,
            experiment.seed,
            training,
            purpose,
        )

    def _trial(self, header: DownloadHeader) -> tuple[list[Phase], bool, str]:
        """Return how models are evaluated: after adaptation, or after joining."""
        return (
            (self.method.joining(), True, "join")
            if header.joining
            else (self.method.adaptation(), False, "adapt")
        )

    def _keep_model(self, job: Job, header: DownloadHeader) -> None:
        """Store the whole model of a client that joins."""
        sent = {
            name: {k: v[0] for k, v in block.items()} for name, block in job.sent.blocks.items()
        }
        steps = [steps_of_one(batches, job.device) for batches in job.batches[0]]
        self.store.keep_model(header.round, adapt(job, job.one(0), sent, steps))

    def _work(self, header: DownloadHeader, received: Blocks, more: Blocks) -> Wire:
        """Evaluate and train, keep what is personal, and only then send the rest."""
        held = self._held(header, received)
        counts: dict[str, Counts] = {}
        pictures: dict[str, Picture] = {}
        if header.evaluate:
            evaluated = Sequential().evaluate(
                self._job(header, held, more, *self._trial(header)), header.evaluate
            )
            for part, views in evaluated.counts.items():
                counts |= {f"{part}/{view}": _three(values[0]) for view, values in views.items()}
            pictures = self._pictures(held, evaluated) if "pictures" in self.sends else {}
        if header.joining:
            self._keep_model(self._job(header, held, more, *self._trial(header)), header)
        if not header.train:
            return wire(UploadHeader(**reply(header), counts=self._show(counts), pictures=pictures))
        job = self._job(header, held, more, self.method.phases(), True, "train")
        trained = Sequential().train(job, header.score)
        counts |= {view: _three(values[0]) for view, values in trained.counts.items()}
        self._keep(header, private_of(self.method, trained.blocks), job.cohort.ids)
        arrays, decided = upload_arrays(
            self.method, trained, header.copies, float(job.cohort.sizes[0])
        )
        answer = UploadHeader(
            **reply(header), decided=decided, counts=self._show(counts), pictures=pictures
        )
        return wire(answer, arrays)

    def _show(self, counts: dict[str, Counts]) -> dict[str, Counts]:
        """Return how models did, if the server may know."""
        return counts if "scores" in self.sends else {}

    def _pictures(self, held: Blocks, evaluated: Evaluated) -> dict[str, Picture]:
        """Return what a report draws of a model: its portraits, and small blocks that
        the client keeps.
        """
        drawn = {name: values[0] for name, values in evaluated.portraits.items()}
        kept = [name for name, block in self.method.blocks().items() if isinstance(block, Private)]
        drawn |= {
            name: torch.cat([v.flatten() for v in held[name].values()])
            for name in kept
            if name not in drawn
        }
        small = {
            name: value.flatten().tolist()
            for name, value in drawn.items()
            if value.numel() <= SMALL
        }
        return {name: tuple(map(float, numbers)) for name, numbers in small.items()}

    def _keep(self, header: DownloadHeader, private: Blocks, ids: Tensor) -> None:
        """Store the personal blocks of this round; refuse those that are not finite."""
        _, refusals = admit({}, private, ids)
        if refusals:
            raise Malformed(refusals[0].reason, refusals[0].detail)
        if self.method.stateful:
            own = {name: {k: v[0] for k, v in block.items()} for name, block in private.items()}
            self.store.commit(header.round + 1, own, header.kept, self.plan)


def member_of(side: ClientSide, group: str = "all") -> Member:
    """Return what a client says of itself to the server."""
    data, client = side.experiment.data, side.client
    own = data.train[client]
    labels = data.y[own].numel()  # a method may weigh by labels, of which a sequence has several
    tags = {name: int(values[client]) for name, values in data.tags.items()}
    return Member(client, len(own), float(max(1, labels)), tags, group)


def _three(values: Tensor) -> Counts:
    correct, scored, loss = values.tolist()
    return correct, scored, loss
