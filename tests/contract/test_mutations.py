"""Methods with a planted bug, most of them found in public code: the contract checks catch each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.arithmetic import flat
from fedblocks.core.blocks import Block, Mixture, PerClient, Pool, Private, Read, ServerOnly, Shared
from fedblocks.core.client import Client
from fedblocks.core.method import Method
from fedblocks.core.mode import current
from fedblocks.core.parts import Blocks, Params, Value
from fedblocks.core.phases import Batch, Phase, Pull
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import EXAMPLES, Example, example_for

frozen = dataclass(frozen=True, eq=False)


@frozen
class Neighbours(Method):
    """Healthy: every client is pulled to its own mixture of the others' models, as in FedAMP."""

    strength: float = 0.5

    def blocks(self) -> dict[str, Block]:
        return {"model": Private(self.net.whole), "cloud": PerClient(self.net.whole, of="model")}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        return [
            Phase(
                (self.step("model", pull=Pull("model", to="cloud", strength=self.strength)),),
                self.epochs,
            )
        ]

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        slots = flat(server["cloud"])
        return {"cloud": Mixture(torch.softmax(-torch.cdist(slots, slots), -1)[cohort.ids])}


@frozen
class NeighboursWithoutGradient(Neighbours):
    """The proximal term is a number that no gradient flows through (PFLlib, clientamp.py)."""

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model", loss=self.pulled),), self.epochs)]

    def pulled(self, blocks: Blocks, batch: Batch) -> Tensor:
        gaps = [
            (blocks["model"][k] - v).detach().square().sum() for k, v in blocks["cloud"].items()
        ]
        return self.loss(blocks, batch) + self.strength / 2 * torch.stack(gaps).sum()


@frozen
class ProxToItself(FedProx):
    """The model is pulled to where it is (Flower, pull request 1654)."""

    def phases(self) -> list[Phase]:
        return [
            Phase(
                (self.step("model", pull=Pull("model", "model", self.strength, live=True)),),
                self.epochs,
            )
        ]


@frozen
class Routed(FedAvg):
    """Healthy: a router weighs two models, as in FedMN."""

    def blocks(self) -> dict[str, Block]:
        router = Value(torch.zeros(2, dtype=self.net.dtype))
        return {"models": Pool(self.net.whole, size=2), "router": Shared(router)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        gates = self.gates(blocks)
        models = [{k: v[slot] for k, v in blocks["models"].items()} for slot in range(2)]
        return sum(gate * self.net(model, x) for gate, model in zip(gates, models, strict=True))  # type: ignore

    def gates(self, blocks: Blocks) -> Tensor:
        return torch.softmax(blocks["router"]["value"], 0)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("models", "router"),), self.epochs)]


@frozen
class RoutedWithoutGradient(Routed):
    """The router is trained, and no gradient reaches it (FedMN, policy_net.py)."""

    def gates(self, blocks: Blocks) -> Tensor:
        return super().gates(blocks).detach()


@frozen
class Split(FedAvg):
    """Healthy: the server keeps a cluster for each client, by the direction of its last
    update, as Clustered FL.
    """

    def blocks(self) -> dict[str, Block]:
        member = Value(torch.zeros(8, dtype=torch.long))  # room for eight clients
        return {"model": Pool(self.net.whole, size=2), "member": ServerOnly(member)}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        return {
            "model": Mixture(F.one_hot(server["member"]["value"][cohort.ids], 2).to(self.net.dtype))
        }

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        # [clients, features]
        bias = next(v for k, v in uploads["model"].copies.items() if k.endswith("bias"))
        side = (
            bias.mean(1)
            > next(v for k, v in before["model"].items() if k.endswith("bias"))[0].mean()
        ).long()
        member = before["member"]["value"].index_copy(0, self.rows(cohort), side)
        return {**server, "member": {"value": member}}

    def rows(self, cohort: Cohort) -> Tensor:
        return cohort.ids


@frozen
class SplitByPosition(Split):
    """Clusters are kept by the position in the cohort instead of the client's number
    (FedEM, aggregator.py).
    """

    def rows(self, cohort: Cohort) -> Tensor:
        return torch.arange(len(cohort))


@frozen
class UniformProx(FedProx):
    """Clients count alike, however much data they have."""

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"model": torch.ones_like(client.size)[None]}


@frozen
class NegativeWeights(FedAvg):
    """Some clients are subtracted."""

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"model": (client.size - 6)[None]}


@frozen
class PaddingCounts(FedAvg):
    """The loss is a mean over all rows of a batch, padding included."""

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return F.cross_entropy(self.predict(blocks, batch.x), batch.y)


@frozen
class SharedHead(FedPer):
    """The private head was quietly made shared."""

    def blocks(self) -> dict[str, Block]:
        return {"body": Shared(self.net.body), "head": Shared(self.net.head)}


@frozen
class WrongBlock(Ditto):
    """The phases train each other's blocks."""

    def phases(self) -> list[Phase]:
        return [Phase((self.step("personal"),), self.epochs), *self.joining()]


@dataclass(frozen=True)
class MomentumOutside:
    """The server's momentum lives in the program instead of the state (Flower, fedopt.py)."""

    kept: ClassVar[dict[str, Tensor]] = {}

    def memory(self, old: Params) -> Blocks:
        return {}

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        for name, value in mean.items():
            self.kept[name] = 0.5 * self.kept.get(name, torch.zeros_like(value)) + value - old[name]
        return memory, {name: old[name] + self.kept[name] for name in mean}


@frozen
class HiddenMomentum(FedAvg):
    def blocks(self) -> dict[str, Block]:
        return {"model": Shared(self.net.whole, rule=MomentumOutside())}


@frozen
class MutatesItsInput(FedAvg):
    """The server works in place on what the last round left (fedjax, apfl.py)."""

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        return {
            "model": {
                k: v.mul_(0.5).add_(0.5 * server["model"][k]) for k, v in before["model"].items()
            }
        }


@frozen
class NeverTrained(PFedMB):
    """The private weights of the branches stay where they began."""

    def phases(self) -> list[Phase]:
        return super().phases()[1:]

    def adaptation(self) -> list[Phase]:
        return []

    def joining(self) -> list[Phase]:
        return []


@frozen
class SharesInVain(FedPer):
    """Something is shared that no prediction uses: Local under another name."""

    def blocks(self) -> dict[str, Block]:
        return {"body": Shared(self.net.body), "head": Private(self.net.whole)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["head"], x)


@frozen
class Remembers(FedAvg):
    """Clients that came before are treated otherwise, though nothing is private."""

    visits: ClassVar[list[int]] = []

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        self.visits.append(client.round)
        return {
            "model": {k: v * (1 - 0.001 * len(self.visits)) for k, v in blocks["model"].items()}
        }


@frozen
class LooksAndTouches(FedAvg):
    """Whoever predicts changes the model a little."""

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        if not current().training and not current().mapped:
            for value in blocks["model"].values():
                value.mul_(0.999)
        return super().predict(blocks, x)


@frozen
class RateOfTheLast(FedAvg):
    """Its hook uses the learning rate of whoever made phases last."""

    last: ClassVar[dict[str, float]] = {}

    def phases(self) -> list[Phase]:
        self.last["lr"] = self.lr
        return super().phases()

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        return {"model": {k: (1 - self.last["lr"] / 10) * v for k, v in blocks["model"].items()}}


@frozen
class ClassesOnly(FedAvg):
    """The loss of a batch is the cross-entropy, whatever is learned."""

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        losses = F.cross_entropy(self.predict(blocks, batch.x), batch.y, reduction="none")
        return batch.mean(losses)


@frozen
class UnknownTargetsCount(FedAvg):
    """Targets that are not known are taken for numbers."""

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        if batch.task.of_classes:
            return batch.loss(self.predict(blocks, batch.x))
        errors = (self.predict(blocks, batch.x) - batch.y).square()
        return batch.mean(errors.mean(-1))


def as_in(name: str, method: Callable[..., Method], **changes: object) -> Example:
    """The example of one of our methods, with another in its place."""
    example = EXAMPLES[name]()
    return replace(example, method=method, options={**example.options, **changes})


BUGS: list[tuple[Callable[[], Example], tuple[int, ...]]] = [
    (lambda: example_for(NeighboursWithoutGradient), (13, 14)),
    (lambda: as_in("fedprox", ProxToItself), (14,)),
    (lambda: example_for(RoutedWithoutGradient), (7,)),
    (lambda: example_for(SplitByPosition), (3, 9)),
    (lambda: as_in("fedprox", UniformProx), (9, 19, 20)),
    (lambda: as_in("fedavg", NegativeWeights), (12,)),
    (lambda: as_in("fedavg", PaddingCounts), (1, 6, 19)),
    (lambda: as_in("fedper", SharedHead), (18,)),
    (lambda: as_in("ditto", WrongBlock), (18, 19)),
    (lambda: as_in("fedavg", HiddenMomentum), (1, 2, 3, 6, 9, 10)),
    (lambda: as_in("fedavg", MutatesItsInput), (4,)),
    (lambda: as_in("pfedmb", NeverTrained), (14, 18)),
    (lambda: as_in("fedper", SharesInVain), (13,)),
    (lambda: as_in("fedavg", Remembers), (2, 15, 17)),
    (lambda: as_in("fedavg", LooksAndTouches), (4, 15)),
    (lambda: as_in("fedavg", RateOfTheLast), (21,)),
    (lambda: as_in("fedavg", ClassesOnly), (22,)),
    (lambda: as_in("fedavg", UnknownTargetsCount), (22,)),
]


CASES = [
    pytest.param(make, n, id=f"{getattr(make().method, '__name__', '')}-{n}")
    for make, numbers in BUGS
    for n in numbers
]


@pytest.mark.parametrize(("make", "number"), CASES)
def test_a_method_with_a_planted_bug_is_caught(
    make: Callable[[], Example], number: int, verdict: Callable[[Example, int], str]
) -> None:
    assert verdict(make(), number)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [(Neighbours, (3, 8, 9, 10, 11, 13, 14, 21)), (Routed, (7, 21)), (Split, (3, 9, 21))],
)
def test_the_same_method_without_the_bug_passes(
    method: type[Method], numbers: tuple[int, ...], verdict: Callable[[Example, int], str]
) -> None:
    assert {number: verdict(example_for(method), number) for number in numbers} == dict.fromkeys(
        numbers, ""
    )
