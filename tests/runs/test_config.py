"""Configurations: what they mean, how they are changed, and what is said of a wrong one."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from fedblocks.config.catalogue import describe_options
from fedblocks.config.model import Config
from fedblocks.config.presets import PRESETS, read_config
from fedblocks.config.problems import ConfigError
from fedblocks.config.sources import Source, parse_change
from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD, AdamW
from fedblocks.core.schedules import Milestones
from fedblocks.data import Federation
from fedblocks.methods import METHODS
from fedblocks.nets import NETS, lenet
from fedblocks.runs.build import prepare
from fedblocks.runs.engine_choice import device_of

Table = dict[str, Any]

TOML = """\
# a comment
seed = 3
rounds = 3

[data]
name = "gaussian"
clients = 4
options = { rows = 120, classes = 3, features = 5 }
split = [
    0.6,
    0.2, 0.2,
]
partition = { name = "dirichlet_labels", alpha = 5.0 }

[net]
name = "mlp"
hidden = [6]

[method]
name = "fedprox"
strength = 0.5
lr = 0.1
batch_size = 8
optimizer.name = "sgd"

[evaluation]
every = 2
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """The TOML file above with some text replaced: `write(("old", "new"), ...)`."""

    def writing(*replaced: tuple[str, str]) -> str:
        text = TOML
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "config.toml"
        path.write_text(text)
        return str(path)

    return writing


def message_of(what: str, changes: list[str] | None = None) -> str:
    """What is said of a wrong configuration."""
    with pytest.raises(UserError) as caught:
        prepare(read_config(what, changes or []))
    assert caught.value.exit_code in (2, 3)
    return str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete_and_survives_toml(name: str) -> None:
    config = PRESETS[name]()
    assert Config.of(tomllib.loads(tomli_w.dumps(config.resolved()))) == config


def test_a_file_survives_toml_with_all_defaults_written_out(write: Callable[..., str]) -> None:
    config = read_config(write())
    resolved = config.resolved()
    assert resolved["method"]["optimizer"] == {
        "name": "sgd",
        "momentum": 0.0,
        "nesterov": False,
        "weight_decay": 0.0,
    }
    assert resolved["checkpoint"] == {"every": 1, "keep": 2}
    assert resolved["data"]["partition"]["min_size"] == 1
    assert Config.of(tomllib.loads(tomli_w.dumps(resolved))) == config


def test_every_field_of_every_method_is_an_option_with_a_type() -> None:
    for name in METHODS:
        actual = {option["name"]: option for option in describe_options("method", name)}
        assert {"lr", "epochs", "batch_size", "optimizer"} <= actual.keys()
        assert all(option["type"] for option in actual.values())
    strength = next(
        option for option in describe_options("method", "fedprox") if option["name"] == "strength"
    )
    assert strength == {
        "name": "strength",
        "type": "a number, at least 0",
        "choices": None,
        "default": 0.01,
        "required": False,
        "about": "mu: of the pull to the model that was sent",
    }


def test_an_optimizer_without_a_name_is_the_default_one_with_other_values(small: Table) -> None:
    small["method"]["optimizer"] = {"momentum": 0.9}
    assert prepare(Config.of(small)).experiment.methods["all"].optimizer == SGD(momentum=0.9)
    small["method"]["lr"] = {"start": 0.1}  # its default is no table
    with pytest.raises(ConfigError, match=r"method\.lr\.name: it is missing"):
        Config.of(small)


def test_schedules_and_optimizers_are_tables(small: Table) -> None:
    schedule = {"name": "milestones", "start": 0.1, "rounds": [1, 2]}
    small["method"] |= {"lr": schedule, "optimizer": {"name": "adamw", "betas": [0.8, 0.9]}}
    method = prepare(Config.of(small)).experiment.methods["all"]
    assert method.lr == Milestones(0.1, (1, 2), 0.1)
    assert method.optimizer == AdamW(betas=(0.8, 0.9))


def test_a_change_replaces_one_field_by_its_path(write: Callable[..., str]) -> None:
    config = read_config(
        write(), ["method.strength=0.25", "net.hidden=[3, 4]", "engine=sequential"]
    )
    assert config.method.table["strength"] == 0.25
    assert config.net.table["hidden"] == [3, 4]
    assert config.engine == "sequential"
    assert config.rounds == 3


def test_another_method_keeps_the_options_that_both_have(write: Callable[..., str]) -> None:
    table = read_config(write(), ["method.name=fedper"]).method.table
    assert table["name"] == "fedper" and table["batch_size"] == 8
    assert "strength" not in table
    assert read_config(write(), ["method=fedper"]).method.table == table


def test_another_net_leaves_an_option_of_another_type_behind() -> None:
    config = read_config("digits-fedavg", ["net.name=cnn"])
    assert config.net.table == {
        "name": "cnn",
        "channels": [16, 32],
        "hidden": 64,
        "batch_norm": False,
    }


def test_a_value_is_toml_and_a_single_word_needs_no_quotes() -> None:
    assert parse_change("a.b=4") == (("a", "b"), 4)
    assert parse_change('a="x y"') == (("a",), "x y")
    assert parse_change("a = word") == (("a",), "word")
    assert parse_change("a=[1, 2]") == (("a",), [1, 2])
    assert parse_change("a=true") == (("a",), True)
    assert parse_change("device=cuda:1") == (("device",), "cuda:1")


def test_a_gpu_may_be_named_by_its_number(small: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    second = Config.of({**small, "device": "cuda:1"})
    assert second.resolved()["device"] == "cuda:1"
    assert device_of(second) == (torch.device("cuda:1"), "as configured, cuda:1")
    assert chosen == [torch.device("cuda:1")]  # kernels start on the current device
    assert (
        device_of(Config.of({**small, "device": "cuda"}))[0] == torch.device("cuda")
        and len(chosen) == 1
    )
    with pytest.raises(UserError, match="device: there is no cuda:2: torch finds 2 of them"):
        device_of(Config.of({**small, "device": "cuda:2"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch finds no GPU"):
        device_of(second)


@pytest.mark.parametrize("place", [("data",), ("rounds",), ("method", "lr"), ("data", "name")])
def test_an_object_in_the_wrong_place_is_shown_in_a_line(
    small: Table, place: tuple[str, ...]
) -> None:
    data = Federation.from_users(np.ones((40, 9), np.float32), np.arange(40) % 3, np.arange(40) % 4)
    *above, last = place
    target = small[above[0]] if above else small
    target[last] = data
    with pytest.raises(
        UserError, match=r"Federation\(4 clients, 40 rows of 9, 3 classes\)"
    ) as caught:
        Config.of(small)
    assert "tensor" not in str(caught.value)


def test_a_long_value_is_cut_in_messages(small: Table) -> None:
    with pytest.raises(UserError, match=r"aaa\.\.\. is not a whole number"):
        Config.of({**small, "rounds": "a" * 10_000})


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("seed",), 2),
        (("data",), 5),
        (("data", "clients"), 7),
        (("data", "options", "rows"), 8),
        (("data", "partition", "alpha"), 13),
        (("method", "strength"), 21),
        (("method", "optimizer", "name"), 24),
        (("evaluation", "local"), 26),  # not there: the table that should have it
        (("cohort", "size"), None),
    ],
)
def test_the_line_of_a_key_is_found(path: tuple[str, ...], line: int | None) -> None:
    assert Source("file", TOML).line(path) == line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "strength = 0.5",
            "strenght = 0.5",
            ["config.toml:21: method.strenght", 'did you mean "strength"'],
        ),
        (
            '"fedprox"',
            '"fedprxo"',
            ["config.toml:20: method.name", '"fedprxo"', 'did you mean "fedprox"'],
        ),
        ('"gaussian"', '"gausian"', ["config.toml:6: data.name", 'did you mean "gaussian"']),
        ('"mlp"', '"mpl"', ["config.toml:16: net.name", 'did you mean "mlp"']),
        (
            '"dirichlet_labels"',
            '"dirichlet"',
            ["config.toml:13: data.partition.name", '"dirichlet_labels"'],
        ),
        ("alpha = 5.0", "alfa = 5.0", ["config.toml:13: data.partition.alfa", '"alpha"']),
        ("rows = 120", "rowz = 120", ["config.toml:8: data.options.rowz", '"rows"']),
        (
            'optimizer.name = "sgd"',
            'optimizer.name = "sdg"',
            ["config.toml:24: method.optimizer.name", '"sgd"'],
        ),
        ("[evaluation]", "[evalation]", ["config.toml:26: evalation", '"evaluation"']),
        ("every = 2", "evry = 2", ["config.toml:27: evaluation.evry", '"every"']),
        (
            "every = 2",
            "rounds = 2",
            ["config.toml:27: evaluation.rounds", "belongs to the top of the file"],
        ),
        ("seed = 3", "lr = 3", ["config.toml:2: lr", "belongs to [method]"]),
        ("rounds = 3", "rounds = 0", ["config.toml:3: rounds", "0", "at least 1"]),
        ("rounds = 3", "rounds = 1.5", ["config.toml:3: rounds", "1.5", "at least 1"]),
        ("rounds = 3\n", "", ["config.toml: rounds", "missing", "at least 1"]),
        ("clients = 4", 'clients = "4"', ["config.toml:7: data.clients", '"4"', "at least 1"]),
        ("clients = 4\n", "", ["data.clients", "how many clients"]),
        ("clients = 4", "clients = 400", ["data.partition", "400 clients", "120 examples"]),
        ("0.2, 0.2,", "0.2, 0.3,", ["config.toml:9: data.split", "add up to 1"]),
        ("clients = 4", "clients = 4\nunseen = 1.0", ["config.toml:8: data.unseen", "below 1"]),
        (
            "clients = 4",
            "clients = 4\nunseen = 0.01",
            ["config.toml:8: data.unseen", "at least one client"],
        ),
        ("lr = 0.1", "lr = 0", ["config.toml:22: method.lr", "0", "above 0"]),
        ("lr = 0.1", "lr = nan", ["config.toml:22: method.lr", "finite"]),
        ("lr = 0.1", 'lr = "0.1"', ["config.toml:22: method.lr", '"0.1"', "a number"]),
        (
            "lr = 0.1",
            'lr = { name = "milestone", start = 1 }',
            ["config.toml:22: method.lr.name", '"milestones"'],
        ),
        (
            "lr = 0.1",
            'lr = { name = "milestones", start = 1 }',
            ["method.lr.rounds", "needs it", "whole numbers"],
        ),
        ("batch_size = 8", "batch_size = 0", ["config.toml:23: method.batch_size", "at least 1"]),
        (
            "batch_size = 8",
            "batch_size = true",
            ["config.toml:23: method.batch_size", "a whole number"],
        ),
        ("strength = 0.5", "strength = -1", ["config.toml:21: method.strength = -1", "at least 0"]),
        (
            "strength = 0.5",
            "strength = 0",
            ["config.toml:21: method.strength", "FedAvg", "allow_degenerate = true"],
        ),
        ('"mlp"\nhidden = [6]', '"cnn"', ["config.toml:15: net", "[5]", "mlp"]),
        ('"mlp"\nhidden = [6]', '"lstm"', ["config.toml:15: net", "[5]", "float"]),
        ("hidden = [6]", "hidden = [0]", ["config.toml:17: net.hidden = [0]", "at least 1"]),
        (
            "[evaluation]",
            "[cohort]\nsize = 9\n[evaluation]",
            ["config.toml:27: cohort.size", "9", "at most 4"],
        ),
        (
            "[evaluation]",
            "[cohort]\nsize = 1.5\n[evaluation]",
            ["config.toml:27: cohort.size", "1.5"],
        ),
        ("[evaluation]", "[checkpoint]\nkeep = 1\n[evaluation]", ["checkpoint.keep", "at least 2"]),
        (
            "[evaluation]",
            "[groups.a]\nclients = [7]\n[evaluation]",
            ["config.toml:27: groups.a.clients", "a number from 0 to 3"],
        ),
        (
            "[evaluation]",
            '[groups.a]\ntag = "t"\nvalue = 1\n[evaluation]',
            ["config.toml:27: groups.a.tag", '"t"'],
        ),
        ("[evaluation]", "[groups.a]\n[evaluation]", ["groups.a.clients", "a tag and its value"]),
        ("every = 2", 'parts = ["tst"]', ["config.toml:27: evaluation.parts", "tst", "validation"]),
        (
            'partition = { name = "dirichlet_labels", alpha = 5.0 }',
            'partition = "by_user"',
            ["user ids"],
        ),
        ("seed = 3", "seed = 3 3", ["config.toml:2", "not TOML"]),
        ("[data]", "[[data]]", ["data"]),
        ("seed = 3", 'device = "tpu"', ["config.toml:2: device", '"tpu"', "auto, cpu, cuda"]),
    ],
)
def test_a_mistake_is_told_with_its_place_and_a_fix(
    write: Callable[..., str], old: str, new: str, said: list[str]
) -> None:
    message = message_of(write((old, new)))
    assert "fix: " in message
    for words in said:
        assert words in message


def test_all_mistakes_are_told_at_once_from_top_to_bottom(write: Callable[..., str]) -> None:
    wrong = write(
        ("rounds = 3", "rounds = 0"), ('"mlp"', '"mpl"'), ("strength = 0.5", "strength = -1")
    )
    message = message_of(wrong, ["evaluation.often=1"])
    places = [f":{line}: " for line in (3, 16, 21)]
    assert message.startswith("4 problems")
    assert sorted(message.index(place) for place in places) == [
        message.index(place) for place in places
    ]
    assert "--set evaluation.often" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.branches=4", "--set method.branches"),
        ("rounds", "NAME=VALUE"),
        ("rounds=[1", "not a TOML value"),
        ("rounds.first=1", "rounds is a value, not a table"),
    ],
)
def test_a_wrong_change_is_told(write: Callable[..., str], change: str, said: str) -> None:
    assert said in message_of(write(), [change])


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("fedprox", "strength=0"),
        ("ditto", "strength=0"),
        ("pfedmb", "branches=1"),
        ("fedem", "components=1"),
    ],
)
def test_a_degenerate_setting_is_refused_unless_it_is_meant(
    small: Table, method: str, change: str
) -> None:
    name, _, value = change.partition("=")
    small["method"] = {"name": method, "batch_size": 8, name: int(value)}
    with pytest.raises(ConfigError, match=f"{name} = {value} makes"):
        Config.of(small)
    small["allow_degenerate"] = True
    assert prepare(Config.of(small)).experiment.methods["all"].degenerate()


def test_an_unknown_preset_is_told_with_the_nearest_names() -> None:
    assert 'did you mean "digits-fedavg"' in message_of("digits-fedagv")
    assert "cannot read missing.toml" in message_of("missing.toml")


def test_a_net_with_too_few_outputs_is_told_with_both_shapes(
    small: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        NETS, "narrow", lambda input_shape, classes: NETS["mlp"](input_shape, classes - 1)
    )
    small["net"] = {"name": "narrow"}
    with pytest.raises(
        UserError,
        match=r"inputs of shape \[5\].* into \[2, 2\]; 3 classes need "
        r"\[2, 3\]",
    ):
        prepare(Config.of(small))


def test_a_group_of_clients_has_its_own_net_and_options(small: Table) -> None:
    small["method"]["name"] = "local"
    small["groups"] = {"wide": {"clients": [1, 2], "net": {"hidden": [9]}, "method": {"epochs": 4}}}
    config = Config.of(small)
    assert Config.of(config.resolved()) == config
    experiment = prepare(config).experiment
    assert list(experiment.groups) == ["all", "wide", "wide", "all"]
    wide, others = experiment.methods["wide"], experiment.methods["all"]
    assert (wide.epochs, others.epochs, wide.batch_size, others.batch_size) == (4, 1, 8, 8)
    assert wide.net.size() == 5 * 9 + 9 + 9 * 3 + 3
    assert others.net.size() == 5 * 6 + 6 + 6 * 3 + 3


def test_a_group_may_be_given_by_a_tag(small: Table) -> None:
    small["data"]["shift"] = {"name": "permute_labels", "groups": 2}
    small["groups"] = {"second": {"tag": "group", "value": 1}}
    experiment = prepare(Config.of(small)).experiment
    assert [g == "second" for g in experiment.groups] == (
        experiment.data.tags["group"] == 1
    ).tolist()


def test_lenet_has_the_published_number_of_parameters() -> None:
    assert lenet((3, 32, 32), 10).size() == 62_006
    assert lenet((3, 32, 32), 100).size() == 69_656


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (1, 8, 8), {}),
        ("cnn", (1, 8, 8), {}),
        ("cnn", (3, 13, 17), {"batch_norm": True}),
        ("lenet", (1, 28, 28), {}),
        ("lstm", (3, 12), {}),
    ],
)
def test_a_net_gives_a_number_for_every_class(
    name: str, shape: tuple[int, ...], options: Table
) -> None:
    net = NETS[name](shape, 7, **options)
    assert net(net.init(0), torch.zeros(2, *shape)).shape == (2, 7)


def test_an_lstm_over_tokens_predicts_every_step_or_the_last() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.long)
    for options, shape in (({}, (2, 5, 7)), ({"every_step": False, "vocabulary": 9}, (2, 7))):
        net = NETS["lstm"]((5,), 7, **options)
        assert net(net.init(0), tokens).shape == shape


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("seed", {"seed": 2**63}),
        ("seed", {"seed": -(2**63)}),
        ("net.hidden", {"net": {"name": "mlp", "hidden": [2**70]}}),
    ],
)
def test_a_number_that_could_not_be_read_back_is_refused_before_the_run(
    small: dict[str, Any], place: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"{place}: -?\d+ has more than 63 bits"):
        Config.of({**small, **changes})
    assert Config.of({**small, "seed": 2**63 - 1}).seed == 2**63 - 1
