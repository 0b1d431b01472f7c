"""The federations that published tables were measured on, made from pools.

`fedem`: CIFAR-10/100, EMNIST and FEMNIST as FedEM and FedMN divide them. `pfedmb`: two classes,
Dirichlet, twenty classes and pairs. `modfl`: balanced cyclic groups of labels. `unlike`: such
groups over several data sets side by side.
`camera`: images as another camera would have taken them. `users`: some users of a data set, with as
many rows each.
"""

from __future__ import annotations

from collections.abc import Callable

from fedblocks.data.federation import Federation
from fedblocks.data.testbeds.fedem import fedem_cifar10, fedem_cifar100, fedem_emnist, fedem_femnist
from fedblocks.data.testbeds.modfl import modfl_images
from fedblocks.data.testbeds.pfedmb import (
    pfedmb_dirichlet,
    pfedmb_pairs,
    pfedmb_twenty_classes,
    pfedmb_two_classes,
)
from fedblocks.data.testbeds.unlike import (
    modfl_movements,
    modfl_phone_and_watch,
    modfl_photographs,
    modfl_readers,
)
from fedblocks.data.testbeds.users import some_people, some_users

# What data.testbed of a configuration may name: functions of a pool (or of data sets they read
# themselves) and a seed.
TESTBEDS: dict[str, Callable[..., Federation]] = {
    "pfedmb_two_classes": pfedmb_two_classes,
    "pfedmb_dirichlet": pfedmb_dirichlet,
    "pfedmb_twenty_classes": pfedmb_twenty_classes,
    "pfedmb_pairs": pfedmb_pairs,
    "fedem_cifar10": fedem_cifar10,
    "fedem_cifar100": fedem_cifar100,
    "fedem_emnist": fedem_emnist,
    "fedem_femnist": fedem_femnist,
    "modfl_images": modfl_images,
    "modfl_photographs": modfl_photographs,
    "modfl_readers": modfl_readers,
    "modfl_movements": modfl_movements,
    "modfl_phone_and_watch": modfl_phone_and_watch,
    "some_users": some_users,
    "some_people": some_people,
}
