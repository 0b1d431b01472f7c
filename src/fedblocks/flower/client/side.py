"""The client's side of a round: the local work of a simulation, on data and personal
blocks that never leave.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.admission import admit
from fedblocks.core.errors import UserError
from fedblocks.core.frozen import ADAPTERS, frozen_hashes, told_apart
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.state import initial_private, to_device
from fedblocks.core.uploads import private_of
from fedblocks.data.federation import Federation, Rows
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.receiving import Receiver, pools_on_request
from fedblocks.flower.client.round_work import (
    RoundWork,
    counts_by_view,
    counts_of_one,
    draw_pictures,
    starting_blocks,
)
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
    UploadHeader,
    Wire,
    header_of,
    reply,
    wire,
)
from fedblocks.flower.wire.plans import Specs, plan_hash, plan_specs
from fedblocks.flower.wire.readable import LOGGED, readable
from fedblocks.flower.wire.uploads import upload_arrays

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

    @cached_property
    def _receiver(self) -> Receiver:
        return Receiver(self.specs, self._device)

    @property
    def _device(self) -> torch.device:
        return self.experiment.data.device

    def answer(self, message: Wire) -> Wire:
        """Return the client's answer to a message; an apology if it cannot do what it is asked."""
        header = header_of(message)
        try:
            self._check(header)
            match header:
                case DownloadHeader():
                    return self._answer_first(header, message)
                case MoreHeader():
                    return self._answer_second(header, message)
                case _:
                    raise Malformed("envelope", f'a client is not sent "{header.kind}"')
        except Malformed as error:
            return wire(ApologyHeader(**reply(header), reason=error.reason, detail=error.detail))
        except UserError as error:
            problem = readable(error.message, LOGGED)
            log.warning("client %d cannot do what it was asked: %s", self.client, problem)
            excuse = excuse_for(error)
            return wire(ApologyHeader(**reply(header), reason="client-error", detail=excuse))

    def _check(self, header: Envelope) -> None:
        if header.run != self.run:
            raise Malformed("wrong-run", f'this client takes part in run "{self.run}"')
        if header.client != self.client:
            raise Malformed("wrong-client", f"this is client {self.client}")
        if isinstance(header, DownloadHeader):
            self._check_frozen(header.frozen)
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

    def _check_frozen(self, wanted: dict[str, str]) -> None:
        """Refuse to train on another base than the others: it is never sent, so each client has
        its own copy.
        """
        for name in sorted(wanted.keys() | self._frozen.keys()):
            if wanted.get(name) != self._frozen.get(name):
                pair = self._frozen.get(name), wanted.get(name)
                fix = "make them alike" if name == ADAPTERS else "load the same weights"
                why = told_apart(name, *pair, "on the server")
                raise Malformed("frozen-mismatch", f"{why}: {fix}")

    @cached_property
    def _frozen(self) -> dict[str, str]:
        return frozen_hashes(self.method, self.experiment.seed)

    def _answer_first(self, header: DownloadHeader, message: Wire) -> Wire:
        """Answer the first message of a round: do the work, or ask for slots first."""
        if header.refused:
            refusal = readable(header.refused)
            log.warning("the last answer of client %d was not used: %s", self.client, refusal)
        received = self._receiver.read_download(header, message)
        work = self._work(header, received, {})
        if not pools_on_request(self.method):
            return self._do(work)
        train = work.wanted_slots(work.training()) if header.train else {}
        evaluate = work.wanted_slots(work.trial()) if header.evaluate else {}
        aside = {"header": header.model_dump_json(), "blocks": received}
        self.store.put_aside(header.round, aside, self.plan)
        return wire(RequestHeader(**reply(header), train=train, evaluate=evaluate))

    def _answer_second(self, header: MoreHeader, message: Wire) -> Wire:
        """Answer the second message of a round: do the work with the slots that were asked for."""
        aside = self.store.aside(header.round, self.plan)
        first = header_of(Wire(aside["header"], {}))
        if not isinstance(first, DownloadHeader) or first.nonce != header.nonce:
            raise Malformed(
                "lost-download", "the first download of this attempt at the round is gone"
            )
        more = self._receiver.read_slots(header, message, pools_on_request(self.method))
        received = {name: to_device(block, self._device) for name, block in aside["blocks"].items()}
        return self._do(self._work(first, received, more))

    def _work(self, header: DownloadHeader, received: Blocks, more: Blocks) -> RoundWork:
        kept = self.store.load(header.kept, self.plan) if self.method.stateful else {}
        start = starting_blocks(self.method, self.experiment.seed, received, kept, self._fresh)
        held = {name: to_device(block, self._device) for name, block in start.items()}
        return RoundWork(self.client, self.method, self.experiment, header, held, more)

    def _do(self, work: RoundWork) -> Wire:
        """Evaluate and train, keep what is personal, and only then send the rest."""
        header = work.header
        counts: dict[str, Counts] = {}
        pictures: dict[str, Picture] = {}
        if header.evaluate:
            evaluated = Sequential().evaluate(work.trial(), header.evaluate)
            counts = counts_by_view(evaluated)
            if "pictures" in self.sends:
                pictures = draw_pictures(self.method, work.held, evaluated)
        if header.joining:
            self.store.keep_model(header.round, work.join())
        if not header.train:
            return wire(UploadHeader(**reply(header), counts=self._show(counts), pictures=pictures))
        job = work.training()
        trained = Sequential().train(job, header.score)
        counts |= {view: counts_of_one(values) for view, values in trained.counts.items()}
        self._keep(header, private_of(self.method, trained.blocks), job.cohort.ids)
        size = float(job.cohort.sizes[0])
        arrays, decided = upload_arrays(self.method, trained, header.copies, size)
        answer = UploadHeader(
            **reply(header), decided=decided, counts=self._show(counts), pictures=pictures
        )
        return wire(answer, arrays)

    def _show(self, counts: dict[str, Counts]) -> dict[str, Counts]:
        """Return how models did, if the server may know."""
        return counts if "scores" in self.sends else {}

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
