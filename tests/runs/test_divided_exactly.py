"""What a data set says of itself is in its federation, however its rows are divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.core.errors import UserError
from fedblocks.core.task import Task
from fedblocks.data.pools import DataPool
from fedblocks.runs.federations import federation_of

USERS = np.repeat(np.arange(4), 30)
ABOUT = {"vocabulary": {"oov": [4, 6], "eos": 1}, "source": "made up"}
LABELS = torch.arange(120) % 3


def pool(**changes: Any) -> DataPool:
    usual: dict[str, Any] = {
        "x": torch.arange(120.0)[:, None],
        "y": LABELS,
        "classes": 5,
        "users": USERS,
        "coarse": np.arange(120) % 2,
        "topics": np.array([7, 8, 7, 9]),
        "about": ABOUT,
        "task": Task(label_smoothing=0.125),
    }
    return DataPool(**{**usual, **changes})


def config_with(small: Table, **data: Any) -> Config:
    table = {k: v for k, v in small["data"].items() if k != "options"}
    return Config.of({**small, "data": {**table, **data}})


@pytest.mark.parametrize("partition", ["by_user", "iid"])
def test_classes_facts_task_and_groups_of_users_go_along(small: Table, partition: str) -> None:
    clients = {} if partition == "iid" else {"clients": None}
    config = config_with(small, partition=partition, seed=5, **clients)
    data = federation_of(config, lambda _: pool())
    assert data.clients == 4 and data.classes == 5
    assert data.about.items() >= ABOUT.items() and data.task == Task(label_smoothing=0.125)
    tags = {name: values.tolist() for name, values in data.tags.items()}
    assert tags == ({"group": [7, 8, 7, 9]} if partition == "by_user" else {})
    sizes = [[len(part[i]) for part in (data.train, data.validation, data.test)] for i in range(4)]
    assert sizes == [[18, 6, 6]] * 4  # shares of 0.6, 0.2 and 0.2 of 30


def test_rows_are_divided_by_the_seed_and_labels_evenly_where_that_is_asked_for(
    small: Table,
) -> None:
    rows = lambda **data: [
        own.tolist()
        for own in federation_of(
            config_with(small, partition="iid", **data), lambda _: pool()
        ).train
    ]
    assert rows(seed=1) == rows(seed=1) != rows(seed=2)
    config = config_with(small, partition="by_user", clients=None, stratified=True)
    for own in federation_of(config, lambda _: pool()).train:
        assert LABELS[torch.as_tensor(own)].bincount().tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("changes", "partition", "said"),
    [
        ({"users": None}, {"partition": "by_user", "clients": None}, "needs user ids"),
        ({}, {"partition": "by_user", "clients": 3}, "4 clients, but data.clients = 3"),
        ({}, {"partition": "iid", "clients": 121}, "121 clients, but only 120 examples"),
    ],
)
def test_a_partition_that_the_rows_do_not_allow_is_refused(
    small: Table, changes: dict[str, Any], partition: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as error:
        federation_of(config_with(small, **partition), lambda _: pool(**changes))
    assert said in error.value.message


def test_groups_are_those_of_users_only_where_each_client_is_one(small: Table) -> None:
    config = config_with(small, partition="by_user", clients=None)
    for topics in (None, np.array([7, 8])):
        assert federation_of(config, lambda _, own=topics: pool(topics=own)).tags == {}
