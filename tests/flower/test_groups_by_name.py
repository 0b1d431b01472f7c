"""Groups whose clients are named are the same in a federation as in a simulation."""

from __future__ import annotations

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.data import Parts
from fedblocks.flower.wire.run_spec import RunSpec

NAMES = ["berlin", "paris", "7", "rome"]


def spec_of(clients: list[int | str]) -> RunSpec:
    config = Config.of(
        {
            "rounds": 1,
            "data": {"name": "digits", "clients": 4},
            "net": {"name": "mlp", "hidden": [4]},
            "method": {"name": "fedavg"},
            "groups": {"some": {"clients": clients, "method": {"epochs": 2}}},
        }
    )
    x = np.zeros((8, 3), "float32")
    part = Parts(train=(x[:2], np.array([0, 1])))
    data = fb.Federation.from_parts([part] * 4, names=NAMES)
    return RunSpec.of(config, data, "f", "r")


@pytest.mark.parametrize("clients", [["paris", "rome"], [1, "rome"], [1, 3]])
def test_clients_of_a_group_are_known_by_name_and_by_number(clients: list[int | str]) -> None:
    spec = spec_of(clients)
    assert [spec.group(client, {}) for client in range(4)] == ["all", "some", "all", "some"]
    assert spec.groups["some"]["clients"] == [1, 3]


def test_a_name_that_looks_like_a_number_is_a_name_first() -> None:
    spec = spec_of(["7"])
    assert [spec.group(client, {}) for client in range(4)] == ["all", "all", "some", "all"]


def test_a_client_that_nobody_is_called_is_refused() -> None:
    with pytest.raises(fb.DataError, match="oslo"):
        spec_of(["oslo"])
