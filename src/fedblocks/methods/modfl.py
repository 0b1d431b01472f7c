"""Two modules, federated among different clients: one by device, one by use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.aggregate import Uploads, reduce_slots
from fedblocks.core.arithmetic import flat, pick
from fedblocks.core.blocks import Block, Fresh, PerClient, Pool, Read, Selection, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.errors import DataError
from fedblocks.core.method import Method, join
from fedblocks.core.net import Piece
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.parts import Blocks, Params, Value, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.server import Cohort
from fedblocks.methods._common.clustering import alike

TAG = "operation"  # says the operation cohort of a client, from 0


@dataclass(frozen=True, eq=False)
class Operation:
    """A net's head under names of its own, so that different architectures can federate it."""

    head: Piece

    def init(self, seed: int) -> Params:
        return {name.removeprefix(self.prefix): value for name, value in self.head.init(seed).items()}

    def named(self, params: Params) -> Params:
        """The tensors under the net's names again."""
        return {f"{self.prefix}{name}": value for name, value in params.items()}

    @property
    def prefix(self) -> str:
        return f"{self.head.net.head_module}."


@dataclass(frozen=True, eq=False)
class ModFL(Method):
    """A configuration module for each kind of device, an operation module for each use (Liang et al., 2022).

    Clients with another architecture are another group: the same method on another net, with another `configuration`.
    """

    paper: ClassVar[Paper] = Paper("Modular Federated Learning", "Liang, Srinivasan and Andresen", 2022)
    personal_by: ClassVar[str] = "cohort"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x membership"
    tags: ClassVar[tuple[str, ...]] = by_options(
        (TAG,), lambda method: (TAG,) if method.cohorts == "given" else ()
    )

    configuration: Annotated[
        str, Help("who federates the body: groups of clients with the same name")
    ] = ""
    task: Annotated[
        str, Help("who federates the head: groups with the same name, cohort by cohort")
    ] = ""
    operations: Annotated[
        int, AtLeast(1), Help("operation cohorts", usual="one for each way of use")
    ] = 3
    cohorts: Annotated[
        Literal["given", "found"],
        Help('"given" by the tag "operation", or "found" by clustering the operation modules'),
    ] = "given"
    warmup: Annotated[
        int, AtLeast(1),
        Help("rounds with one operation module for all before cohorts are found", usual="5 to 20"),
    ] = 5

    def conflicts(self) -> list[Conflict]:
        if self.statistics == "local" and any(map(is_statistic, self.net.head.names)):
            why = "an operation module cannot leave statistics on clients"
            return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        return []

    def blocks(self) -> dict[str, Block]:
        shared: dict[str, Block] = {
            "configuration": Shared(self.net.body, name=_named("configuration", self.configuration)),
            "operation": Pool(
                Operation(self.net.head), self.operations, _named("operation", self.task), of="module", alike=True
            ),
            "module": Fresh(),
        }
        if self.cohorts == "given":
            return shared
        nowhere = Value(torch.full((1,), -1, dtype=self.net.dtype))  # a client of no cohort yet
        return {**shared, "membership": PerClient(nowhere, "membership", _named("membership", self.task))}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        """A client is sent the operation module of its cohort; if some have none yet, clients are sent all of them."""
        if self.cohorts == "given":
            return {"operation": Selection(self.given(cohort)[:, None])}
        home = server["membership"]["value"].squeeze(1).long()  # [population]
        own = home[cohort.ids]
        if bool((home >= 0).any()) and bool(((own < 0) & (cohort.sizes > 0)).any()):
            return {"operation": Selection(torch.arange(self.operations, device=own.device).expand(len(cohort), -1))}
        return {"operation": Selection(own.clamp(min=0)[:, None])}

    def given(self, cohort: Cohort) -> Tensor:
        """The operation cohort of each client, [clients], as its tag says."""
        if TAG not in cohort.tags:
            fix = f'give the federation tags={{"{TAG}": ...}}, from 0 on, or use cohorts = "found"'
            raise DataError(f'clients have no tag "{TAG}" that says their operation cohort', fix)
        found = cohort.tags[TAG].long()
        wrong = (found < 0) | (found >= self.operations)
        if bool(wrong.any()):
            client, cohort_of_it = int(cohort.ids[wrong][0]), int(found[wrong][0])
            told = f"client {client} is of operation cohort {cohort_of_it}, but operations = {self.operations}"
            raise DataError(told, f"cohorts are numbered from 0 to {self.operations - 1}")
        return found

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        sent = blocks["operation"]
        if len(next(iter(sent.values()))) == 1:  # the server knows its cohort
            return {**blocks, "module": {name: value[0] for name, value in sent.items()}}
        home = blocks["membership"]["value"]
        chosen = torch.where(home < 0, self.losses(blocks, client).argmin().to(home.dtype), home)
        return {**blocks, "module": pick(sent, chosen.long()), "membership": {"value": chosen}}

    def losses(self, blocks: Blocks, client: Client) -> Tensor:
        """The loss of every operation module on the client's training data: [operations]."""
        x, stack = client.x, blocks["operation"]
        found = [self.predict({**blocks, "module": {k: v[o] for k, v in stack.items()}}, x) for o in self.all_cohorts]
        return torch.stack([client.total_loss(logits) for logits in found])

    @property
    def all_cohorts(self) -> range:
        return range(self.operations)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(blocks["configuration"], Operation(self.net.head).named(blocks["module"])), x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("configuration", "module"),), self.epochs)]

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        home = client.tags[TAG] if self.cohorts == "given" else blocks["membership"]["value"].clamp(min=0)
        return {"operation": client.size * (torch.arange(self.operations, device=client.size.device) == home)}

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        home = client.tags[TAG] if self.cohorts == "given" else blocks["membership"]["value"]
        cohorts = torch.arange(self.operations, device=client.size.device)
        return {"operation cohort": (cohorts == home).to(client.size.dtype)}

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """After the warm-up, cohorts are those whose operation modules changed alike; each gets its own mean."""
        if self.cohorts == "given" or cohort.round + 1 < self.warmup:
            return server
        heard = (uploads["operation"].weights.sum(1) > 0) & (uploads["membership"].weights.sum(1) > 0)  # [clients]
        home = server["membership"]["value"].squeeze(1)  # [population]
        if bool((home >= 0).any()) or not bool(heard.any()):
            return server
        upload = uploads["operation"].keep(heard)
        moved = flat({k: v for k, v in upload.copies.items() if not is_statistic(k)})
        found = alike(moved - moved.mean(0), self.operations)  # [heard]; what all changes have in common tells nothing
        weights = F.one_hot(found, self.operations) * upload.weights.sum(1, keepdim=True)
        order = weights.sum(0).argsort(descending=True, stable=True)  # the cohort with the most examples is the first
        home = home.index_copy(0, upload.ids, order.argsort()[found].to(home.dtype))
        common = {k: v[:1].expand_as(v) for k, v in server["operation"].items()}  # for a cohort of nobody
        operation, _ = reduce_slots(common, replace(upload, weights=weights[:, order]))
        return {**server, "operation": operation, "membership": {"value": home[:, None]}}

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        if self.cohorts == "found" or TAG not in tags:
            return []
        found = torch.as_tensor(tags[TAG]).tolist()
        alone = [client for client, cohort in enumerate(found) if found.count(cohort) == 1]
        told = "is alone in its operation cohort, which makes its operation module a private one, as in FedPer"
        return [f"client {client} {told}" for client in alone]

    def degenerate(self) -> list[str]:
        return ["operations = 1 makes ModFL FedAvg among clients of one configuration"] if self.operations == 1 else []


def _named(block: str, of: str) -> str | None:
    return f"{block}/{of}" if of else None
