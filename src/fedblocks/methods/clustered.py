"""One model, split in two where clients pull it apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fedblocks.core.arithmetic import flat
from fedblocks.core.blocks import Block, Fresh, PerClient, Pool, Read
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.server import Cohort
from fedblocks.core.starts import Alike
from fedblocks.core.uploads import Uploads
from fedblocks.methods._common.membership import (
    average_members,
    first_changes,
    group_clients,
    membership,
    no_home,
    send_home,
    take_copy,
)


@dataclass(frozen=True, eq=False)
class Clustered(Method):
    """A cluster whose mean stands still while its members still move is split in two
    (Sattler et al., 2021).
    """

    paper: ClassVar[Paper] = Paper(
        "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under "
        "Privacy Constraints",
        "Sattler et al.",
        2021,
        "IEEE TNNLS",
    )
    personal_by: ClassVar[str] = "cluster"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x membership"

    max_clusters: Annotated[
        int,
        AtLeast(1),
        Help("models on the server; those of later clusters wait for a split", usual="4 to 10"),
    ] = 8
    epsilon1: Annotated[
        float,
        AtLeast(0),
        Help("a cluster may split when its mean change is shorter than this", usual="0.4"),
    ] = 0.4
    epsilon2: Annotated[
        float,
        AtLeast(0),
        Help("and the longest change of a member is longer than this", usual="1.6"),
    ] = 1.6
    first_round: Annotated[int, AtLeast(0), Help("t_0: no split before this round")] = 20
    min_size: Annotated[
        int, AtLeast(1), Help("clusters of this many clients, or fewer, stay whole", usual="2")
    ] = 2
    weigh_by: Annotated[
        Literal["examples", "clients"],
        Help(
            'how members count in the mean of their cluster: "examples", or "clients" (all alike)'
        ),
    ] = "examples"
    start: Annotated[
        Literal["one", "updates"],
        Help('"one" cluster at first, or as many as the first "updates" show'),
    ] = "one"
    never_split: Annotated[bool, Help("what public code with a wrong norm does")] = False

    def conflicts(self) -> list[Conflict]:
        if self.statistics == "local" and any(map(is_statistic, self.net.names)):
            why = "running statistics of a cluster cannot stay on the clients"
            return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        return []

    def blocks(self) -> dict[str, Block]:
        return {
            "clusters": Pool(self.net.whole, size=self.max_clusters, of="model", start=Alike()),
            "membership": PerClient(no_home(self.net.dtype), of="membership"),
            "model": Fresh(),
        }

    # on the client: train the cluster's model

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        home = server["membership"]["value"].squeeze(1).long()  # [population]
        return {"clusters": send_home(home, cohort, slots=int(home.max()) + 1)}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        home = blocks["membership"]["value"]
        home, model = take_copy(self.net.whole, blocks["clusters"], home, client)
        return {**blocks, "membership": {"value": home.clamp(min=0)}, "model": model}

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model"),), self.epochs)]

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        has_data = (client.size > 0).to(client.size.dtype)
        weight = client.size if self.weigh_by == "examples" else has_data
        return {"clusters": weight * self._membership(blocks, client)}

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"membership": self._membership(blocks, client)}

    def _membership(self, blocks: Blocks, client: Client) -> Tensor:
        return membership(blocks["membership"]["value"], self.max_clusters, client)  # [clusters]

    # on the server: split clusters whose members pull apart, then average each

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        begins = self.start == "updates" and not bool((before["membership"]["value"] >= 0).any())
        late = not self.never_split and cohort.round >= self.first_round
        return ("clusters",) if begins or late else ()

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        if self.start == "updates" and not bool((before["membership"]["value"] >= 0).any()):
            return self.begin(server, before, uploads)
        if self.never_split or cohort.round < self.first_round or len(cohort) == 0:
            return server
        upload = uploads["clusters"]
        home = server["membership"]["value"].squeeze(1).long()  # [population]
        old = home[cohort.ids]  # [clients]; -1: without data, and nobody asks for its change
        weights = {k: v for k, v in upload.copies.items() if not is_statistic(k)}
        changes = flat({k: v - before["clusters"][k][old] for k, v in weights.items()})
        home = self.split(home, cohort, changes, upload.weights.sum(1))
        new = home[cohort.ids].clamp(min=0)  # [clients]
        clusters = average_members(before["clusters"], upload, new, self.max_clusters)
        membership = {"value": home[:, None].to(self.net.dtype)}
        return {**server, "clusters": clusters, "membership": membership}

    def begin(self, server: Blocks, before: Blocks, uploads: Uploads) -> Blocks:
        """The clusters of clients whose first changes are alike."""
        upload = uploads["clusters"].keep(uploads["clusters"].weights.sum(1) > 0)
        if len(upload.ids) == 0:
            return server
        changes = first_changes(before, {"clusters": upload}, "clusters")
        own = group_clients(changes, upload.weights.sum(1), "auto", self.max_clusters)  # [clients]
        clusters = average_members(before["clusters"], upload, own, self.max_clusters)
        home = before["membership"]["value"].squeeze(1)  # [population]
        home = home.index_copy(0, upload.ids, own.to(home.dtype))
        return {**server, "clusters": clusters, "membership": {"value": home[:, None]}}

    def split(self, home: Tensor, cohort: Cohort, changes: Tensor, weights: Tensor) -> Tensor:
        """The cluster of every client, [population], after all splits of a round."""
        home = home.clone()
        clusters = int(home.max()) + 1
        for cluster in range(clusters):
            here = (home[cohort.ids] == cluster) & (cohort.sizes > 0)  # [clients]
            if clusters < self.max_clusters and self.torn(changes[here], weights[here]):
                ids = cohort.ids[here]
                far = group_clients(changes[here], weights[here], 2) == 1  # the lighter half
                home[home == cluster] = -1  # who is absent chooses again when it comes back
                home[ids[~far]] = cluster
                home[ids[far]] = clusters
                clusters += 1
        return home

    def torn(self, changes: Tensor, weights: Tensor) -> bool:
        """Whether members move, [members, parameters], and get nowhere: |mean| <
        epsilon1, max |change| > epsilon2.
        """
        if len(changes) <= self.min_size:
            return False
        mean = (weights / weights.sum()).to(changes.dtype) @ changes
        return bool(mean.norm() < self.epsilon1) and bool(changes.norm(dim=1).max() > self.epsilon2)

    def degenerate(self) -> list[str]:
        still = self.start == "one" and (self.never_split or self.epsilon1 == 0)
        whole = still or self.max_clusters == 1
        return ["no cluster can split, which makes Clustered FL FedAvg"] if whole else []
