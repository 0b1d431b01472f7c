"""A client in two groups would train as the last of them says: it is refused, however the groups
say who is in them. So is a part of the data that is to be evaluated twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedblocks as fb
from fedblocks.config.problems import ConfigError
from fedblocks.core.errors import UserError
from fedblocks.runs import members
from fedblocks.runs.build import prepare

Table = dict[str, Any]
NAMES = ["truck-a", "truck-b", "truck-c", "truck-d"]


def config(**more: Any) -> fb.Config:
    """Four clients in two hidden groups."""
    data = {"name": "digits", "clients": 4, "shift": {"name": "rotate", "groups": 2}}
    table = {"rounds": 1, "data": data, "net": {"name": "mlp", "hidden": [4]}, "device": "cpu"}
    return fb.Config.of({**table, "method": {"name": "local", "lr": 0.1}, **more})


def group(lr: float, **who: Any) -> Table:
    return {**who, "method": {"lr": lr}}


def in_python(groups: Any, out: Path) -> None:
    x, y = np.zeros((40, 3), "float32"), np.arange(40) % 2
    tags = {"kind": [0, 1, 1, 0]}
    data = fb.Federation.from_users(x, y, NAMES * 10, tags=tags)
    net = fb.Net.of(lambda: nn.Linear(3, 2))
    methods = {name: fb.Local(net, lr=0.1) for name in ("all", *groups)}
    fb.run(methods, data, rounds=1, groups=groups, out=out, device="cpu")


def test_a_client_that_two_groups_list_is_refused_when_the_configuration_is_read() -> None:
    groups = {"a": group(0.01, clients=[0, 1]), "b": group(0.02, clients=[1, 2])}
    with pytest.raises(
        ConfigError, match=r'groups\.b\.clients: client 1 .* group "a", too'
    ) as told:
        config(groups=groups)
    assert "leave it out of one of them" in str(told.value)
    named = {"a": group(0.01, clients=["x"]), "b": group(0.02, clients=["x"])}
    with pytest.raises(ConfigError, match='client "x" is in the group "a", too'):
        config(groups=named)


@pytest.mark.parametrize("second", [{"tag": "group", "value": 0}, {"clients": ["client-0"]}])
def test_a_client_that_two_groups_have_is_refused_when_the_data_are_known(second: Table) -> None:
    tags = prepare(config()).experiment.data.tags["group"].tolist()
    first = tags.index(0) if "tag" in second else 0
    groups = {"a": group(0.01, clients=[first]), "b": group(0.02, **second)}
    said = f'client {first}, "client-{first}", is in the groups "a" and "b"'
    with pytest.raises(UserError, match=said):
        prepare(config(groups=groups))


@pytest.mark.parametrize(
    ("second", "client"),
    [([1, 2], 1), (["truck-b"], 1), ({"tag": "kind", "value": 0}, 0)],
)
def test_a_client_in_two_groups_of_objects_is_refused(
    second: Any, client: int, tmp_path: Path
) -> None:
    said = f'client {client}, "{NAMES[client]}", is in the groups "a" and "b"'
    with pytest.raises(UserError, match=said):
        in_python({"a": [0, 1], "b": second}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_groups_that_share_nobody_are_as_they_say(tmp_path: Path) -> None:
    assert members.group_of_each({"a": [0, 0, 2], "b": [3]}, NAMES) == ["a", "all", "a", "b"]
    in_python({"a": [0, "truck-a"], "b": {"tag": "kind", "value": 1}}, tmp_path / "run")


def test_a_part_that_is_to_be_evaluated_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.parts: test, test has a name twice"):
        config(evaluation={"parts": ["test", "test"]})
    assert config(evaluation={"parts": ["train", "test"]}).evaluation.parts == ("train", "test")
