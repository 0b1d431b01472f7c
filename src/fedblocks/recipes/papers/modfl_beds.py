"""What ModFL's tables and figures are measured on: data sets side by side, each with
the net of its own devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fedblocks.config.options import Table
from fedblocks.recipes.recipe import Cell

Published: TypeAlias = tuple[float | None, float | None]  # FedX, ModFL


@dataclass(frozen=True)
class Side:
    """One of the data sets that stand side by side."""

    key: str  # in the names of cells
    data: str  # the data set as its test-bed calls it
    net: Table  # its configuration module, under the common operation module
    shape: tuple[int, ...]  # of one example
    made_from: str = ""  # the data set in files that it is made from; default: `data`
    options: Table = field(default_factory=dict)  # of the test-bed, where this data set takes part

    @property
    def files(self) -> str:
        """The data set that must be there."""
        return self.made_from or self.data


@dataclass(frozen=True)
class Bed:
    """What a table was measured on, in full or in quick."""

    testbed: str
    sides: tuple[Side, ...]
    labels: int  # and as many operation groups, unless all clients hold all labels
    clients: int  # of each data set
    options: Table  # of the test-bed
    rounds: int
    batch_size: int
    every: int = 10  # rounds between evaluations
    lr: float = 0.001

    def config(self, sides: Sequence[Side], per_group: int, method: Table) -> Table:
        """A run on some of the data sets; each further one is a group with a net and a
        configuration of its own.
        """
        testbed = {"name": self.testbed, "sets": [side.data for side in sides], **self.options}
        testbed |= {name: value for side in sides for name, value in side.options.items()}
        alone = len(sides) == 1
        groups = {
            side.data: {
                "tag": "configuration",
                "value": number,
                "net": self.net(side, alone),
                "method": {"configuration": side.data},
            }
            for number, side in enumerate(sides)
            if number > 0
        }
        return {
            "rounds": self.rounds,
            "data": {
                "name": sides[0].files,
                "testbed": {**testbed, "clients": self.clients, "per_group": per_group},
            },
            "net": self.net(sides[0], alone),
            "method": {
                **method,
                "lr": self.lr,
                "epochs": 1,
                "batch_size": self.batch_size,
                "optimizer": {"name": "adam"},
            },
            "evaluation": {"every": self.every, "parts": ["test"]},
            "groups": groups,
            # one operation module for all, as in the IID columns
            "allow_degenerate": per_group == self.labels,
        }

    def net(self, side: Side, alone: bool) -> Table:
        """A data set's net, which cuts its own inputs out of larger ones."""
        return dict(side.net) if alone else {**side.net, "own_shape": list(side.shape)}

    def fedx(self, side: Side, per_group: int) -> Table:
        """FedPer on one data set alone, its operation module being private; FedAvg
        where all hold all labels.
        """
        name = "fedavg" if per_group == self.labels else "fedper"
        return self.config([side], per_group, {"name": name})

    def modfl(self, per_group: int) -> Table:
        """ModFL on all of them."""
        operations = 1 if per_group == self.labels else self.labels
        method = {"name": "modfl", "configuration": self.sides[0].data, "operations": operations}
        return self.config(self.sides, per_group, method)


@dataclass(frozen=True)
class Beds:
    """A bed as the paper has it, and a small one for --quick."""

    full: Bed
    quick: Bed

    @property
    def sides(self) -> range:
        """The numbers of the data sets."""
        return range(len(self.full.sides))

    @property
    def needs(self) -> tuple[str, ...]:
        """The data sets in files that a run on all of them needs."""
        return tuple(dict.fromkeys(side.files for side in self.full.sides))

    def pair(
        self,
        number: int,
        per_group: int,
        setting: str,
        measure: str,
        published: Published = (None, None),
    ) -> list[Cell]:
        """FedX and ModFL on one data set; the ModFL cells of all data sets are one run."""
        full, quick = self.full, self.quick
        side = full.sides[number]
        return [
            Cell(
                f"{side.key}-{setting}/fedx",
                full.fedx(side, per_group),
                {"name": measure},
                published[0],
                quick=quick.fedx(quick.sides[number], per_group),
                needs=(side.files,),
            ),
            Cell(
                f"{side.key}-{setting}/modfl",
                full.modfl(per_group),
                {"name": measure, "side": number, "sides": len(self.sides)},
                published[1],
                quick=quick.modfl(per_group),
                needs=self.needs,
            ),
        ]

    def with_clients(self, clients: int) -> Beds:
        """The same beds with another number of clients of all data sets together."""
        each = clients // len(self.sides)
        return Beds(replace(self.full, clients=each), replace(self.quick, clients=each))

    def evaluated_every(self, full: int, quick: int) -> Beds:
        """The same beds with so many rounds between evaluations, as for a curve."""
        return Beds(replace(self.full, every=full), replace(self.quick, every=quick))


CIFAR = Side("cifar", "cifar10", {"name": "modfl_cifar"}, (3, 32, 32))
STL = Side("stl", "stl10", {"name": "modfl_stl"}, (3, 96, 96))
CAMERA = Side("camera", "other_camera", {"name": "modfl_stl"}, (3, 96, 96), "cifar10")
MNIST = Side("mnist28", "mnist_writers", {"name": "modfl_stl"}, (1, 28, 28))
EIGHT = Side("digits8", "digits", {"name": "modfl_cifar"}, (1, 8, 8))
HAPT = Side("hapt", "hapt", {"name": "modfl_hapt"}, (6, 128))
RWHAR = Side("rwhar", "realworld", {"name": "modfl_rwhar"}, (6, 128))
WISDM = Side("wisdm", "wisdm", {"name": "modfl_wisdm"}, (3, 52))
WATCH = Side("watch", "wisdm51_watch", {"name": "modfl_wisdm"}, (3, 52))

_PHOTOS = Bed("modfl_photographs", (CIFAR, STL), 9, 36, {}, rounds=200, batch_size=16)
_FEW = replace(_PHOTOS, clients=9, options={"per_label": 100}, rounds=4, every=2, lr=0.003)
_DIGITS = Bed("modfl_readers", (MNIST, EIGHT), 10, 20, {}, rounds=200, batch_size=16)
_MOVES = Bed(
    "modfl_movements", (HAPT, RWHAR, WISDM), 5, 20, {}, rounds=2000, batch_size=8, every=50
)

PHOTOGRAPHS = Beds(_PHOTOS, _FEW)
# stand-ins share no name with the original
_PLAIN = replace(CIFAR, key="plain")
_PHONE = replace(HAPT, key="phone")
CAMERAS = Beds(
    replace(_PHOTOS, sides=(_PLAIN, CAMERA)),
    replace(_FEW, sides=(_PLAIN, replace(CAMERA, shape=(3, 48, 48), options={"side": 48}))),
)
_TEN = replace(
    _DIGITS, clients=10, options={"per_label": 60}, rounds=12, batch_size=4, every=6, lr=0.003
)
READERS = Beds(_DIGITS, _TEN)
MOVEMENTS = Beds(_MOVES, replace(_MOVES, rounds=20, every=10, lr=0.005))
_WATCHED = replace(_MOVES, testbed="modfl_phone_and_watch", sides=(_PHONE, WATCH), labels=4)
PHONE_AND_WATCH = Beds(_WATCHED, replace(_WATCHED, rounds=20, every=10, lr=0.005))
