"""The beds of the suite: small real federations, each with its net and its budget.

They are frozen. Whatever would move a number of theirs is another version of the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedblocks.config.choices import options
from fedblocks.config.options import Table
from fedblocks.core.errors import UserError, nearest

VERSION = 1
BATCH = 16


@dataclass(frozen=True, eq=False)
class SuiteBed:
    """A federation, a net, and how long it is trained; the same for every method."""

    name: str
    about: str
    data: Table  # of a configuration, without its seed
    new: int  # clients that never train, and join at the end
    clients: int  # all, with the new ones
    net: Table
    rounds: int
    epochs: int  # local ones, in a round
    # the smallest of 0.1, 0.3, 1 and 3 with which Local and FedAvg validate within a point of the
    # best, in their mean, on the tuning seed
    lr: float
    seconds: float  # that FedAvg takes on one core, about
    cohort: float = 1.0  # share of the clients that takes part in a round
    stands_for: str = ""  # what the data set is a stand-in for
    lite: bool = False  # whether --lite has it
    # which answers count; of texts those that are words, or else guessing "unknown" would do
    view: str = "personal"

    def config(self, method: str) -> Table:
        """A run of a method with its own defaults; only epochs, batches and the learning rate,
        where the method has no default of its own, are the bed's.
        """
        data = {**self.data, "unseen": self.new / self.clients}
        budget = {"lr": self.rate(method), "epochs": self.epochs, "batch_size": BATCH}
        return {
            "rounds": self.rounds,
            # "auto" picks an engine by its speed, and sums in another order change the last bits
            "engine": "vectorised",
            "allow_degenerate": True,  # FedBN on a net without BatchNorm is FedAvg, and says so
            "data": data,
            "net": dict(self.net),
            "method": {"name": method, **budget, **UNTAGGED.get(method, {})},
            "cohort": {"size": self.cohort},
            "evaluation": {"every": self.rounds},
        }

    def rate(self, method: str) -> float:
        """The learning rate: the bed's, unless the method has a default of its own."""
        own = options("method", method)["lr"].default
        usual = options("method", "fedavg")["lr"].default
        return self.lr if own == usual else own

    @property
    def data_set(self) -> str:
        """The data set that must be there."""
        return str(self.data["name"])


# No bed tells cohorts: a method that would be told them by default has to find them.
UNTAGGED: Mapping[str, Table] = {"modfl": {"cohorts": "found"}}


def _users(name: str, count: int, most: int, **options: object) -> Table:
    testbed = {"name": "some_users", "users": count, "most": most}
    return {"name": name, "options": dict(options), "testbed": testbed}


def _people(name: str, count: int, most: int) -> Table:
    testbed = {"name": "some_people", "signals": name, "users": count, "most": most}
    return {"name": name, "testbed": testbed}


DIGITS: Table = {
    "name": "digits",
    "clients": 24,
    "partition": {"name": "iid"},
    "shift": {"name": "joint", "groups": 4, "keep": 0.6},
    "split": [0.6, 0.2, 0.2],
}
CIFAR: Table = {
    "name": "cifar10",
    "options": {"part": "test"},
    "clients": 25,
    "partition": {"name": "dirichlet_clients", "alpha": 0.1, "size": 166},
    "split": [0.6, 0.2, 0.2],
}
PARTS = [0.6, 0.2, 0.2]  # of a user's texts, in their order
LENET: Table = {"name": "lenet"}

BEDS: Mapping[str, SuiteBed] = {
    bed.name: bed
    for bed in (
        SuiteBed(
            "digits-groups",
            "digits in 4 hidden groups that differ in labels, angle and meaning of labels",
            *(DIGITS, 4, 24),
            net={"name": "mlp", "hidden": [64, 32]},
            rounds=60,
            epochs=3,
            lr=0.3,
            seconds=2,
            lite=True,
        ),
        SuiteBed(
            "cifar10-small",
            "CIFAR-10's test images, label proportions by Dirichlet(0.1) for each client",
            *(CIFAR, 5, 25),
            net=LENET,
            rounds=15,
            epochs=2,
            lr=0.1,
            seconds=15,
        ),
        SuiteBed(
            "mnist-writers",
            "MNIST by the NIST writer of each digit, half of the clients in a round",
            *(_users("mnist_writers", 50, 80, part="train"), 10, 50),
            net=LENET,
            rounds=15,
            epochs=1,
            lr=0.1,
            seconds=4,
            cohort=0.5,
        ),
        SuiteBed(
            "hapt",
            "12 activities and transitions by person, phone at the waist",
            *(_people("hapt", 30, 120), 6, 30),
            net={"name": "signal_cnn"},
            rounds=15,
            epochs=1,
            lr=0.1,
            seconds=3,
        ),
        SuiteBed(
            "wisdm51",
            "6 activities by person, watch",
            *(_people("wisdm51_watch", 51, 80), 10, 51),
            net={"name": "signal_cnn"},
            rounds=15,
            epochs=1,
            lr=0.1,
            seconds=2,
        ),
        SuiteBed(
            "reddit",
            "next word by user, known words only, 10 a row, half of the clients in a round",
            *(_users("reddit_2006", 50, 50, words=1000, steps=10, split=PARTS), 10, 50),
            net={"name": "gru", "units": 32, "embedding": 32},
            rounds=30,
            epochs=1,
            lr=3.0,
            seconds=5,
            cohort=0.5,
            stands_for="Reddit of December 2017",
            view="personal_without_oov_and_eos",
        ),
        SuiteBed(
            "shakespeare",
            "next character by role, 20 characters a row, half of the clients in a round",
            *(
                _users("shakespeare_roles", 50, 100, unit="character", steps=20, split=PARTS),
                *(10, 50),
            ),
            net={"name": "gru", "units": 64, "embedding": 32},
            rounds=20,
            epochs=1,
            lr=3.0,
            seconds=5,
            cohort=0.5,
            stands_for="LEAF's Shakespeare",
        ),
    )
}


def choose_beds(names: str | None, lite: bool) -> list[SuiteBed]:
    """The beds of a list such as "hapt,reddit"; default: all, or those of --lite."""
    if names is None:
        return [bed for bed in BEDS.values() if bed.lite or not lite]
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in BEDS:
            raise UserError(f'the suite has no bed "{name}"', nearest(name, BEDS))
    if not asked:
        raise UserError("--beds names no bed", f"choose from {', '.join(BEDS)}")
    return [bed for name, bed in BEDS.items() if name in asked]
