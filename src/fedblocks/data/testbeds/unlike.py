"""ModFL's federations of unlike inputs: clients of several data sets side by side, in the same
groups of labels.

The tag `configuration` is the number of a client's data set, `operation` its group of labels.
Smaller inputs stand in the first corner of the largest shape; a net cuts them out again with
`own_shape`. Naming one data set in `sets` gives its clients alone, with the very same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from fedblocks.core.options import AtLeast, Help, Length
from fedblocks.data.digits import digits_pool
from fedblocks.data.federation import Federation
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cifar import cifar10
from fedblocks.data.sets.cyclic import side_by_side
from fedblocks.data.sets.har import hapt_recordings, wisdm51_recordings
from fedblocks.data.sets.har_groups import FIVE, FOUR, FOUR_WATCH, har_groups
from fedblocks.data.sets.idx import mnist_writers
from fedblocks.data.sets.realworld import realworld_recordings
from fedblocks.data.sets.stl10 import stl10
from fedblocks.data.sets.wisdm import wisdm_recordings
from fedblocks.data.testbeds.camera import other_camera
from fedblocks.data.testbeds.modfl import COMMON, PER_LABEL, modfl_clients, modfl_images, sample

MEAN, DEVIATION = 0.3053, 0.3761  # of the 8 x 8 digits' pixels


def scaled_digits() -> DataPool:
    """The 8 x 8 digits normalised as MNIST is: a deep net hardly learns from pixels of one sign."""
    pool = digits_pool()
    return replace(pool, x=(pool.x - MEAN) / DEVIATION)


READERS: Mapping[str, Callable[[], DataPool]] = {
    "mnist_writers": mnist_writers,
    "digits": scaled_digits,
}


@checked
def modfl_photographs(
    sets: Annotated[
        tuple[Literal["cifar10", "stl10", "other_camera"], ...],
        Length(1),
        Help("of cifar10, stl10, other_camera"),
    ] = ("cifar10", "stl10"),
    clients: Annotated[
        int, AtLeast(1), Help("of each data set; the paper's N is all of them")
    ] = 36,
    per_group: Annotated[int, AtLeast(1), Help("classes of a group")] = 3,
    per_label: Annotated[int, AtLeast(1), Help("images of each class and data set")] = PER_LABEL,
    side: Annotated[int, AtLeast(1), Help("pixels of the other camera's images")] = 96,
    seed: int = 0,
) -> Federation:
    """Nine classes of CIFAR-10 with STL-10, or with other images of CIFAR-10 as another
    camera would take them.
    """
    images = partial(
        modfl_images, clients=clients, per_group=per_group, per_label=per_label, seed=seed
    )
    makers: dict[str, Callable[[], Federation]] = {
        "cifar10": lambda: images(cifar10()),
        "stl10": lambda: images(stl10()),
        "other_camera": lambda: modfl_clients(
            seen_otherwise(per_label, side, seed), clients, per_group, seed
        ),
    }
    return together(sets, makers)


def seen_otherwise(per_label: int, side: int, seed: int) -> DataPool:
    """Images of CIFAR-10 that `modfl_images` does not take, from another camera."""
    return other_camera(
        sample(cifar10(), COMMON["cifar10"], per_label, skip=per_label, seed=seed), side, seed=seed
    )


@checked
def modfl_readers(
    sets: Annotated[
        tuple[Literal["mnist_writers", "digits"], ...], Length(1), Help("of mnist_writers, digits")
    ] = ("mnist_writers", "digits"),
    clients: Annotated[int, AtLeast(1), Help("of each data set")] = 20,
    per_group: Annotated[int, AtLeast(1), Help("digits of a group")] = 3,
    per_label: Annotated[
        int,
        AtLeast(1),
        Help("images of each digit and data set; the 8 x 8 set has 174 of its rarest digit"),
    ] = 170,
    seed: int = 0,
) -> Federation:
    """Two generations of digit readers: MNIST's 28 x 28 pixels, and UCI's 8 x 8."""

    def divide(load: Callable[[], DataPool]) -> Federation:
        return modfl_clients(
            sample(load(), range(10), per_label, seed=seed), clients, per_group, seed
        )

    return together(sets, {name: partial(divide, load) for name, load in READERS.items()})


@checked
def modfl_movements(
    sets: Annotated[
        tuple[Literal["hapt", "realworld", "wisdm"], ...],
        Length(1),
        Help("of hapt, realworld, wisdm"),
    ] = ("hapt", "realworld", "wisdm"),
    clients: Annotated[
        int, AtLeast(1), Help("of each data set; the paper's N is all of them")
    ] = 20,
    per_group: Annotated[int, AtLeast(1), Help("activities of a group")] = 2,
    per_label: Annotated[int, AtLeast(1), Help("windows of each activity and data set")] = 250,
    seed: int = 0,
) -> Federation:
    """Five activities that HAPT, RealWorld and WISDM v1.1 share, in windows of 2.56 s."""
    group = partial(
        har_groups,
        clients=clients,
        per_group=per_group,
        activities=FIVE,
        per_label=per_label,
        seed=seed,
    )
    makers: dict[str, Callable[[], Federation]] = {
        "hapt": lambda: group(hapt_recordings(), 128),
        "realworld": lambda: group(realworld_recordings(), 128),
        "wisdm": lambda: group(wisdm_recordings(), 52),
    }
    return together(sets, makers)


@checked
def modfl_phone_and_watch(
    sets: Annotated[
        tuple[Literal["hapt", "wisdm51_watch"], ...], Length(1), Help("of hapt, wisdm51_watch")
    ] = ("hapt", "wisdm51_watch"),
    clients: Annotated[int, AtLeast(1), Help("of each data set")] = 20,
    per_group: Annotated[int, AtLeast(1), Help("activities of a group")] = 2,
    per_label: Annotated[int, AtLeast(1), Help("windows of each activity and data set")] = 250,
    seed: int = 0,
) -> Federation:
    """Four activities that HAPT's phone and WISDM-51's watch share, stairs being one of them."""
    group = partial(
        har_groups, clients=clients, per_group=per_group, per_label=per_label, seed=seed
    )
    makers: dict[str, Callable[[], Federation]] = {
        "hapt": lambda: group(hapt_recordings(), 128, activities=FOUR),
        "wisdm51_watch": lambda: group(wisdm51_recordings(), 52, activities=FOUR_WATCH),
    }
    return together(sets, makers)


def together(sets: tuple[str, ...], makers: Mapping[str, Callable[[], Federation]]) -> Federation:
    """The data sets of these names side by side."""
    federation = side_by_side({name: makers[name]() for name in sets})
    about = {**federation.about, "name": "+".join(sets), "testbed": "modfl"}
    return replace(federation, about=about)
