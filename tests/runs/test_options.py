"""What annotations say of options reaches configurations, the JSON Schema and the lists
of what there is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from fedblocks.config.catalogue import describe_options
from fedblocks.config.choices import options
from fedblocks.config.model import Config
from fedblocks.config.options import options_of, plain
from fedblocks.config.presets import PRESETS
from fedblocks.config.problems import ConfigError
from fedblocks.config.registry import TABLES, kinds
from fedblocks.config.schema import config_schema
from fedblocks.core.errors import UserError
from fedblocks.core.introspection import REQUIRED, Option
from fedblocks.core.net import Net
from fedblocks.core.options import AnyNumber
from fedblocks.methods import METHODS


def registered() -> Iterator[tuple[str, Option]]:
    """Every option of everything that a configuration may name."""
    for kind, known in kinds().items():
        yield from (
            (f"{kind} {name}", option) for name in known for option in options(kind, name).values()
        )
    for known in TABLES.values():
        yield from (
            (name, option) for name, built in known.items() for option in options_of(built).values()
        )


def test_every_option_says_what_it_is_in_a_line() -> None:
    assert [(whose, o.name) for whose, o in registered() if not o.about or "\n" in o.about] == []


def test_every_number_has_limits_or_says_that_it_has_none() -> None:
    def is_free(option: Option) -> bool:
        return any(isinstance(mark, AnyNumber) for mark in option.marks)

    assert [
        (whose, o.name)
        for whose, o in registered()
        if o.is_numeric and bool(o.limits) == is_free(o)
    ] == []


def test_every_default_is_right() -> None:
    arguments = [
        (whose, option) for whose, option in registered() if option.default is not REQUIRED
    ]
    assert len(arguments) > 400
    assert [
        (whose, option.name) for whose, option in arguments if option.wrong(option.default)
    ] == []


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """What the schema says of each method."""
    return {
        one["title"]: one
        for one in config_schema()["properties"]["method"]["anyOf"]
        if "title" in one
    }


def just_outside(option: Option) -> list[Any]:
    """For each limit the number that just breaks it, in a list where the option is a list."""
    steps = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    numbers = [limit.bound + steps[limit.keyword] for limit in option.limits]
    inner = plain(option.default)
    return [[number] * len(inner) if isinstance(inner, list) else number for number in numbers]


@pytest.mark.parametrize("name", METHODS)
def test_the_schema_has_the_limits_and_words_of_every_option_of_a_method(
    tables: dict[str, Any], name: str
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(tables[name])
    assert validator.is_valid({"name": name})
    for option in options("method", name).values():
        wrong = [*just_outside(option), *(["no such word"] if option.choices else [])]
        assert [
            value for value in wrong if validator.is_valid({"name": name, option.name: value})
        ] == []
        usual = {} if option.default in (None, REQUIRED) else {option.name: plain(option.default)}
        assert validator.is_valid({"name": name, **usual})


def test_a_list_has_its_length_and_the_limits_of_its_items_in_the_schema(
    tables: dict[str, Any],
) -> None:
    modules = tables["fedmn"]["properties"]["modules"]
    assert modules["minItems"] == 2 and modules["items"] == {"type": "integer", "minimum": 1}


SAME = [
    ("pfedmb", "branches", 0),
    ("pfedmb", "alpha_lr", -1.0),
    ("pfedmb", "averaging", "mean"),
    ("fedavg", "lr", "fast"),
    ("fedavg", "epochs", 1.5),
    ("fedavg", "batch_size", True),
    ("fedavg", "statistics", "all"),
    ("flow_v2", "policy_dropout", 2),
    ("flow", "router_pace", 0),
    ("fedmn", "modules", [2, 0]),
    ("pfedme", "inner_steps", 0),
    ("pfedmb", "compressed_upload", True),  # not exact with the momenta that are kept
]


@pytest.mark.parametrize(("name", "option", "value"), SAME)
def test_python_and_a_configuration_say_the_same(name: str, option: str, value: Any) -> None:
    others = {"keep_optimizer": True} if option == "compressed_upload" else {}
    net = Net.of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    with pytest.raises(UserError) as in_python:
        METHODS[name](net, **others, **{option: value})
    table = PRESETS["digits-fedavg"]().resolved() | {
        "method": {"name": name, **others, option: value}
    }
    with pytest.raises(ConfigError) as in_a_file:
        Config.of(table)
    said = f".{option} = {json.dumps(value)}: "
    owner, _, why = in_python.value.message.partition(said)
    assert (
        owner == METHODS[name].__name__ and in_a_file.value.message == f"config: method{said}{why}"
    )
    if name != "fedavg" or option != "lr":  # each says how a schedule is written there
        assert in_a_file.value.fix.startswith(in_python.value.fix)


def wrong_places(**method: Any) -> list[tuple[str, ...]]:
    with pytest.raises(ConfigError) as caught:
        Config.of(PRESETS["digits-fedavg"]().resolved() | {"method": method})
    return [problem.path for problem in caught.value.problems]


def test_each_wrong_option_is_told_at_its_own_place() -> None:
    wrong = {
        "policy_dropout": 2,
        "policy": [0],
        "lr": {"name": "milestones", "start": 0.1, "rounds": [0]},
    }
    places = wrong_places(name="flow_v2", **wrong, optimizer={"name": "sgd", "nesterov": True})
    expected = ["lr.rounds", "optimizer.nesterov", "policy", "policy_dropout"]
    assert sorted(".".join(path) for path in places) == [f"method.{name}" for name in expected]


def test_what_depends_on_the_net_is_not_told_of_a_stand_in() -> None:
    table = PRESETS["digits-fedavg"]().resolved()
    for name, option, value in (
        ("fedala", "top", 9),
        ("lg_fedavg", "top_layers", 9),
        ("fedrecon", "local", "x"),
    ):
        Config.of(table | {"method": {"name": name, option: value}})


def test_the_help_of_a_long_field_is_not_lost() -> None:
    about = {option["name"]: option["about"] for option in describe_options("method", "fedmn")}
    assert (
        about["router_lr"]
        == "of a router that steps after the modules; default: with them, at their lr"
    )
