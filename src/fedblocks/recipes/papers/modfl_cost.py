"""How many examples a round on data sets side by side has, and which net each of them
goes through.
"""

from __future__ import annotations

from fedblocks.config.model import Config
from fedblocks.config.options import Table

LABELS = {
    "modfl_photographs": 9,
    "modfl_readers": 10,
    "modfl_movements": 5,
    "modfl_phone_and_watch": 4,
}
SHAPES: dict[str, tuple[int, ...]] = {
    "cifar10": (3, 32, 32),
    "stl10": (3, 96, 96),
    "mnist_writers": (1, 28, 28),
    "digits": (1, 8, 8),
    "hapt": (6, 128),
    "realworld": (6, 128),
    "wisdm": (3, 52),
    "wisdm51_watch": (3, 52),
}


def side_by_side_work(config: Config) -> list[tuple[int, Table, tuple[int, ...], int]]:
    """For each data set: rows, net, shape of an input, classes; nothing if there is
    only one federation.
    """
    if config.data.testbed is None or config.data.testbed.name not in LABELS:
        return []
    testbed = config.data.testbed.table
    labels = LABELS[config.data.testbed.name]
    nets = [config.net.table, *(group.net.table for group in config.groups.values())]
    side: int = testbed.get("side", 0)
    shapes = [(SHAPES | {"other_camera": (3, side, side)})[name] for name in testbed["sets"]]
    plain = [{key: value for key, value in net.items() if key != "own_shape"} for net in nets]
    return [
        (labels * testbed["per_label"], net, shape, labels)
        for net, shape in zip(plain, shapes, strict=True)
    ]
