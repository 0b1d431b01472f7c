"""The JSON Schema of configurations: what is right passes, what is wrong does not."""

from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.presets import PRESETS
from fedblocks.config.schema import config_schema
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

jsonschema = pytest.importorskip(
    "jsonschema", reason="needs jsonschema: pip install 'fedblocks[docs]'"
)


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_passes(validator: Any, name: str) -> None:
    assert [error.message for error in validator.iter_errors(PRESETS[name]().resolved())] == []


def test_names_stand_for_tables_and_mirrors_and_comparisons_have_their_place(
    validator: Any,
) -> None:
    config = PRESETS["digits-fedavg"]().resolved() | {"net": "mlp", "method": "fedper"}
    validator.validate(
        config | {"track": {"to": ["tensorboard"]}, "compare": {"methods": ["ditto"], "seeds": 2}}
    )
    validator.validate(config | {"groups": {"old": {"clients": [1], "net": {"hidden": [3]}}}})
    words = {"name": "fedper", "optimizer": "adamw", "augment": ["flip"]}
    validator.validate(config | {"method": words})
    schedule = {"name": "milestones", "start": 0.1, "rounds": [3]}
    validator.validate(
        config | {"method": {"name": "fedper", "lr": schedule, "optimizer": {"name": "adam"}}}
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"rounds": "2"},
        {"round": 2},
        {"device": "gpu"},
        {"method": "fedagv"},
        {"method": {"name": "fedavg", "branches": 2}},
        {"method": {"name": "pfedmb", "branches": 2.5}},
        {"method": {"name": "fedavg", "lr": {"name": "milestones", "start": 0.1}}},
        {"net": {"name": "mlp", "width": 3}},
        {"net": {"name": "cnn", "channels": [3]}},
        {"data": {"name": "digits", "clients": 0}},
        {"data": {"name": "digits", "clients": 3, "options": {"rows": 3}}},
        {"data": {"name": "saved"}},
        {"data": {"name": "digits", "clients": 3, "partition": {"name": "dirichlet"}}},
        {"evaluation": {"parts": []}},
        {"track": {"to": ["excel"]}},
    ],
)
def test_a_wrong_configuration_does_not(validator: Any, wrong: dict[str, Any]) -> None:
    assert not validator.is_valid(PRESETS["digits-fedavg"]().resolved() | wrong)


def test_the_command_prints_every_name_with_its_options_and_what_they_mean(fedblocks: Any) -> None:
    schema = fedblocks("schema").json
    tables = {
        one["title"]: one for one in schema["properties"]["method"]["anyOf"] if "title" in one
    }
    assert set(METHODS) <= tables.keys()
    assert set(NETS) == {
        one["title"] for one in schema["properties"]["net"]["anyOf"] if "title" in one
    }
    branches = tables["pfedmb"]["properties"]["branches"]
    assert branches == {
        "type": "integer",
        "minimum": 1,
        "description": "B, of every linear layer",
        "default": 3,
    }
    assert schema["properties"]["rounds"]["minimum"] == 1
    shown = fedblocks("schema", "--out", "fedblocks.schema.json")
    assert (
        "#:schema fedblocks.schema.json" in shown.out
        and Path("fedblocks.schema.json").stat().st_size > 10_000
    )
    assert "cannot write" in fedblocks("schema", "--out", "no/such/folder.json").err
