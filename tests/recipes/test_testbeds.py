"""Test-beds in configurations: published federations by name, instead of a partition."""

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.config.catalogue import data
from fedblocks.config.model import Config
from fedblocks.core.errors import DataError, UserError
from fedblocks.data.pools import DataPool
from fedblocks.data.testbeds.fedem import fedem_cifar10
from fedblocks.data.testbeds.pfedmb import pfedmb_pairs, thin
from fedblocks.recipes.recipe import merge_tables
from fedblocks.runs.federations import federation_of

from .conftest import DIGITS

BED: dict[str, Any] = {
    "name": "digits",
    "testbed": {"name": "fedem_cifar10", "clients": 6},
    "seed": 5,
}


def message_of(changes: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        Config.of({**DIGITS, "data": merge_tables(BED, changes)})
    return str(caught.value)


def test_a_configuration_names_a_test_bed_and_gets_its_federation() -> None:
    from fedblocks.data import DATASETS

    config = Config.of({**DIGITS, "data": BED})
    assert config == Config.of(config.resolved())
    assert (
        federation_of(config).hash()
        == fedem_cifar10(DATASETS["digits"].load(), clients=6, seed=5).hash()
    )
    assert config.data.partition is None and "partition" not in config.resolved()["data"]


def test_what_a_test_bed_decides_cannot_be_said_twice() -> None:
    for changes in (
        {"clients": 4},
        {"partition": {"name": "iid"}},
        {"split": [0.8, 0.1, 0.1]},
        {"stratified": True},
    ):
        assert f"data.{next(iter(changes))}: the test-bed decides it" in message_of(changes)


def test_a_test_bed_that_does_not_exist_brings_the_nearest_names() -> None:
    assert 'did you mean "fedem_cifar10"' in message_of({"testbed": {"name": "fedem_cifar1"}})
    assert 'test-bed "fedem_cifar10" has no such option' in message_of({"testbed": {"size": 3}})


def test_a_test_bed_that_cannot_be_made_says_where_it_stands() -> None:
    config = Config.of({**DIGITS, "data": {"name": "digits", "testbed": {"name": "pfedmb_pairs"}}})
    with pytest.raises(DataError, match=r"data\.testbed: the pool has 0 official training rows"):
        federation_of(config)


def test_test_beds_are_listed_with_their_options() -> None:
    actual = {entry["name"]: entry for entry in data() if entry["what"] == "test-bed"}
    assert {"pfedmb_two_classes", "fedem_femnist"} <= actual.keys()
    assert {option["name"] for option in actual["pfedmb_two_classes"]["options"]} == {
        "clients",
        "per_client",
        "fraction",
    }


def test_a_fraction_keeps_the_shares_of_the_classes_and_drops_the_other_rows() -> None:
    y = torch.arange(4).repeat(100)
    pool = DataPool(torch.randn(400, 3), y, 4, about={"train_rows": 320})
    quarter = pfedmb_pairs(pool, fraction=0.25)
    assert (
        len(quarter.x)
        == quarter.train.sizes.sum() + quarter.validation.sizes.sum() + quarter.test.sizes.sum()
    )
    # 80 of a class, a quarter, 4 for validation, two halves
    assert quarter.train.sizes.tolist() == [16, 16, 16, 16]
    rows = thin(y.numpy(), np.arange(400), 0.1, seed=0)
    assert np.bincount(y.numpy()[rows]).tolist() == [10, 10, 10, 10] and (np.diff(rows) > 0).all()
    with pytest.raises(DataError, match=r"fraction = 0\.0: must be above 0"):
        pfedmb_pairs(pool, fraction=0.0)
