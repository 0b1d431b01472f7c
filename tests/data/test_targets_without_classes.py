"""Partitions that ask for no labels divide every kind of target; what needs classes says so where
there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks import Federation, partitions, shifts
from fedblocks.core.errors import DataError
from fedblocks.data import Parts, joint_pool
from fedblocks.runs.build import prepare

ROWS = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 1, 4, 4)).astype("float32")
NUMBERS = RNG.normal(size=ROWS)
CLASSES = np.arange(ROWS) % 3
SEVERAL = np.eye(3)[CLASSES]
WORDS = np.array(["a", "b", "c"])[CLASSES]
UNKNOWN = np.where(CLASSES == 0, np.nan, NUMBERS)
USERS = np.arange(ROWS) % 4
NO_CLASSES = {"regression": NUMBERS, "multi-label": SEVERAL}
WITHOUT_LABELS: list[Any] = [partitions.iid, partitions.quantity, partitions.quantity_power]


@pytest.mark.parametrize("divide", WITHOUT_LABELS)
@pytest.mark.parametrize(
    "targets", [NUMBERS, UNKNOWN, SEVERAL, WORDS, NUMBERS.tolist(), torch.from_numpy(NUMBERS)]
)
def test_partitions_that_ask_for_no_labels_divide_all_targets_alike(
    divide: Any, targets: Any
) -> None:
    assert divide(targets, 5, seed=2).hash() == divide(CLASSES, 5, seed=2).hash()


@pytest.mark.parametrize("divide", WITHOUT_LABELS)
def test_numbers_of_nobody_are_divided(divide: Any) -> None:
    federation = Federation.from_arrays(X, NUMBERS, divide(NUMBERS, 5), task="regression")
    assert federation.clients == 5 and federation.y.shape == (ROWS, 1)
    same = Federation.from_arrays(X, NUMBERS, lambda y: divide(y, 5), task="regression")
    assert same.hash() == federation.hash()


@pytest.mark.parametrize("partition", ["iid", "quantity"])
def test_numbers_of_nobody_are_divided_in_a_configuration(partition: str, tmp_path: Path) -> None:
    np.savetxt(tmp_path / "t.csv", np.c_[X[:, 0, 0], NUMBERS], delimiter=",", header="a,b,c,d,y")
    text = (tmp_path / "t.csv").read_text().removeprefix("# ")
    (tmp_path / "t.csv").write_text(text)
    options = {"path": str(tmp_path / "t.csv"), "label": "y"}
    data = {"name": "csv", "options": options, "clients": 5, "partition": {"name": partition}}
    table = {"rounds": 1, "data": data, "net": {"name": "mlp", "hidden": [4]}}
    method = {"name": "fedavg", "lr": 0.1}
    config = fb.Config.of({**table, "method": method, "task": {"kind": "regression"}})
    assert prepare(config).experiment.data.clients == 5


@pytest.mark.parametrize("nothing", [None, 5, iter([1, 2])])
def test_a_partition_of_nothing_is_refused(nothing: Any) -> None:
    with pytest.raises(DataError, match=r"y is None|labels are"):
        partitions.iid(nothing, 2)


@pytest.mark.parametrize("targets", [NUMBERS, UNKNOWN, NUMBERS[:, None], torch.tensor(NUMBERS)])
def test_a_partition_by_label_of_numbers_says_which_need_none(targets: Any) -> None:
    with pytest.raises(DataError, match="a partition by label needs classes") as told:
        partitions.dirichlet_labels(targets, 3)
    assert "use iid, quantity or by_user" in told.value.fix and "Task" not in told.value.fix


def federation_of(kind: str) -> Federation:
    return Federation.from_users(X, NO_CLASSES[kind], USERS, task=kind)


@pytest.mark.parametrize("kind", NO_CLASSES)
@pytest.mark.parametrize("shift", [shifts.permute_labels, shifts.skew_labels, shifts.joint])
def test_a_shift_of_classes_refuses_targets_that_are_none(
    shift: Callable[..., Federation], kind: str
) -> None:
    said = f"{shift.__name__} changes classes, and the targets of {kind} are none"
    with pytest.raises(DataError, match=said) as told:
        shift(federation_of(kind), 2)
    assert "use rotate" in told.value.fix
    assert shifts.rotate(federation_of(kind), 2).tags["group"].max() == 1


def test_the_joint_shift_of_a_pool_refuses_targets_that_are_no_classes() -> None:
    with pytest.raises(DataError, match="joint_pool changes classes"):
        joint_pool(X, NUMBERS, 4, 2, task="regression")


def test_label_skew_says_which_label_is_not_known() -> None:
    y = CLASSES.copy()
    y[7] = fb.IGNORE
    with pytest.raises(DataError, match="that of row 7 is not known"):
        shifts.skew_labels(Federation.from_users(X, y, USERS), 2)


@pytest.mark.parametrize("groups", [2, [], [0.5, 1.0], ["a", "b"], [[0, 1], [1, 0]], None])
def test_groups_that_are_not_one_for_each_client_are_refused(groups: Any) -> None:
    with pytest.raises(DataError, match="is not the group of each client") as told:
        partitions.grouped_labels(CLASSES, groups)
    assert "hidden_groups(clients, 2)" in told.value.fix
    assert len(partitions.grouped_labels(CLASSES, [0, 0, 1])) == 3


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_parts_of_clients_need_a_name_each(names: list[str]) -> None:
    clients = [Parts(train=(X, CLASSES), test=(X, CLASSES))] * 2
    with pytest.raises(DataError, match=r"names? for 2 clients"):
        Federation.from_parts(clients, names=names)
    assert Federation.from_parts(clients, names=["a", "b"]).names == ("a", "b")
