"""Two modules, federated among different clients: one by device, one by use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, PerClient, Pool, Read, Selection, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.errors import DataError
from fedblocks.core.method import Method, join
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.parts import Blocks, Params, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.pieces import Piece
from fedblocks.core.server import Cohort
from fedblocks.core.starts import Alike
from fedblocks.core.uploads import Uploads
from fedblocks.methods._common.clustering import MOST
from fedblocks.methods._common.membership import (
    average_members,
    first_changes,
    group_clients,
    membership,
    no_home,
    send_home,
    take_copy,
)

TAG = "operation"  # says the operation cohort of a client, from 0


@dataclass(frozen=True, eq=False)
class Operation:
    """A net's head under names of its own, so that different architectures can federate it."""

    head: Piece

    def init(self, seed: int) -> Params:
        head = self.head.init(seed)
        return {name.removeprefix(self.prefix): value for name, value in head.items()}

    def named(self, params: Params) -> Params:
        """The tensors under the net's names again."""
        return {f"{self.prefix}{name}": value for name, value in params.items()}

    @property
    def prefix(self) -> str:
        return f"{self.head.net.head_module}."


@dataclass(frozen=True, eq=False)
class ModFL(Method):
    """A configuration module for each kind of device, an operation module for each use (Liang et
    al., 2022).

    Clients with another architecture are another group: the same method on another net, with
    another `configuration`.
    """

    paper: ClassVar[Paper] = Paper(
        "Modular Federated Learning", "Liang, Srinivasan and Andresen", 2022
    )
    personal_by: ClassVar[str] = "cluster"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x membership"
    # changes of operation modules over unlike configuration modules cannot be compared
    concludes_apart: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = by_options(
        (TAG,), lambda method: (TAG,) if method.cohorts == "given" else ()
    )

    without_tags: ClassVar[str] = 'use cohorts = "found", which needs no tag'

    configuration: Annotated[
        str, Help("who federates the body: groups of clients with the same name")
    ] = ""
    task: Annotated[
        str, Help("who federates the head: groups with the same name, by operation cohort")
    ] = ""
    operations: Annotated[
        int | Literal["auto"],
        AtLeast(1),
        Help(
            'operation cohorts; "auto": as many as are found',
            usual="one for each way of use",
        ),
    ] = 3
    cohorts: Annotated[
        Literal["given", "found"],
        Help('"given" by the tag "operation", or "found" by clustering the operation modules'),
    ] = "given"
    start: Annotated[
        Literal["warmup", "updates"],
        Help('found cohorts: by operation modules after a "warmup", or by the first "updates"'),
    ] = "warmup"
    warmup: Annotated[
        int,
        AtLeast(1),
        Help("rounds with one operation module for all before cohorts are found", usual="5 to 20"),
    ] = 5

    def conflicts(self) -> list[Conflict]:
        if self.statistics == "local" and any(map(is_statistic, self.net.head.names)):
            why = "an operation module cannot leave statistics on clients"
            return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        if self.cohorts == "found":
            return []
        why, fix = "it is for cohorts that are found", 'use cohorts = "found"'
        searches = {"operations": self.operations == "auto", "start": self.start == "updates"}
        return [Conflict(option, why, fix) for option, is_set in searches.items() if is_set]

    def blocks(self) -> dict[str, Block]:
        configuration = Shared(self.net.body, _server_name("configuration", self.configuration))
        name = _server_name("operation", self.task)
        # alike: every W_o,j starts from the same values
        pool = Pool(Operation(self.net.head), self.slots, name, of="module", start=Alike())
        shared: dict[str, Block] = {
            "configuration": configuration,
            "operation": pool,
            "module": Fresh(),
        }
        if self.cohorts == "given":
            return shared
        where = _server_name("membership", self.task)
        return {**shared, "membership": PerClient(no_home(self.net.dtype), "membership", where)}

    @property
    def slots(self) -> int:
        return MOST if self.operations == "auto" else self.operations

    # a round: down W_c,i and W_o,j; train both jointly; up both

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        if self.cohorts == "given":
            return {"operation": Selection(tagged_cohorts(cohort, self.slots)[:, None])}
        home = server["membership"]["value"].squeeze(1).long()  # [population]
        used = int(home.max()) + 1  # 0: no cohort is found yet
        slots = self.slots if used and self.operations != "auto" else max(used, 1)
        return {"operation": send_home(home, cohort, slots)}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        operate = lambda module, x: self.predict({**blocks, "module": module}, x)
        home, module = take_copy(operate, blocks["operation"], self.home(blocks, client), client)
        kept = {"membership": {"value": home}} if self.cohorts == "found" else {}
        return {**blocks, "module": module, **kept}

    def phases(self) -> list[Phase]:
        return [Phase((self.step("configuration", "module"),), self.epochs)]

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        operation = Operation(self.net.head).named(blocks["module"])
        return self.net(join(blocks["configuration"], operation), x)

    # two averages over different clients: W_c,i by n over its configuration, W_o,j by n over its
    # operation cohort

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        # before cohorts are found, all write the first
        home = self.home(blocks, client).clamp(min=0)
        return {"operation": client.size * membership(home, self.slots, client)}

    def home(self, blocks: Blocks, client: Client) -> Tensor:
        """The operation cohort of a client; -1 where it has none yet."""
        return client.tags[TAG] if self.cohorts == "given" else blocks["membership"]["value"]

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        is_early = self.start == "warmup" and cohort.round + 1 < self.warmup
        known = self.cohorts == "given" or bool((before["membership"]["value"] >= 0).any())
        return () if is_early or known else ("configuration", "operation")

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """After the warm-up, find the cohorts, once; each gets the mean of its own members."""
        is_early = self.start == "warmup" and cohort.round + 1 < self.warmup
        if self.cohorts == "given" or is_early:
            return server
        wrote = [uploads[name].weights.sum(1) > 0 for name in ("operation", "membership")]
        heard = wrote[0] & wrote[1]  # [clients]
        home = server["membership"]["value"].squeeze(1)  # [population]
        if bool((home >= 0).any()) or not bool(heard.any()):
            return server
        kept = {name: upload.keep(heard) for name, upload in uploads.items()}
        upload, changes = kept["operation"], self.changes(before, kept)
        cohorts = group_clients(changes, upload.weights.sum(1), self.operations)  # [heard]
        # for a cohort of nobody
        common = {k: v[:1].expand_as(v) for k, v in server["operation"].items()}
        operation = average_members(common, upload, cohorts, self.slots)
        home = home.index_copy(0, upload.ids, cohorts.to(home.dtype))
        return {**server, "operation": operation, "membership": {"value": home[:, None]}}

    def changes(self, before: Blocks, uploads: Uploads) -> Tensor:
        """By what cohorts are found: [clients, parameters]."""
        if self.start == "updates":
            return first_changes(before, uploads, "configuration", "operation")
        moved = first_changes(before, uploads, "operation")
        return moved - moved.mean(0)  # what all changes have in common tells nothing

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"operation cohort": membership(self.home(blocks, client), self.slots, client)}

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        if self.cohorts == "found" or TAG not in tags:
            return []
        cohorts = torch.as_tensor(tags[TAG]).tolist()
        alone = [client for client, cohort in enumerate(cohorts) if cohorts.count(cohort) == 1]
        return [
            f"client {client} is alone in its operation cohort, which makes its operation module "
            "a private one, as in FedPer"
            for client in alone
        ]

    def degenerate(self) -> list[str]:
        if self.slots > 1:
            return []
        return ["operations = 1 makes ModFL FedAvg among clients of one configuration"]


def tagged_cohorts(cohort: Cohort, operations: int) -> Tensor:
    """The operation cohort of each client, [clients], as its tag says."""
    if TAG not in cohort.tags:
        fix = f'give the federation tags={{"{TAG}": ...}}, from 0 on, or use cohorts = "found"'
        raise DataError(f'clients have no tag "{TAG}" that says their operation cohort', fix)
    numbers = cohort.tags[TAG].long()
    wrong = (numbers < 0) | (numbers >= operations)
    if bool(wrong.any()):
        client = int(cohort.ids[wrong][0])
        number = int(numbers[wrong][0])
        raise DataError(
            f"client {client} is of operation cohort {number}, but operations = {operations}",
            f"number operation cohorts from 0 to {operations - 1}",
        )
    return numbers


def _server_name(block: str, of: str) -> str | None:
    return f"{block}/{of}" if of else None
