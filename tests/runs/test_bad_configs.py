"""Wrong configurations: what is said names the field, the file and line, and what to
write instead.
"""

import re
from pathlib import Path

import pytest

from fedblocks.config.presets import read_config
from fedblocks.core.errors import UserError
from fedblocks.runs.build import prepare

GOOD = """\
rounds = 2
seed = 1

[data]
name = "digits"
clients = 6
partition = { name = "dirichlet_labels", alpha = 5.0 }
shift = { name = "joint", groups = 2, keep = 0.6 }

[net]
name = "mlp"
hidden = [8]

[method]
name = "pfedmb"
branches = 2
lr = 0.1
batch_size = 8

[cohort]
size = 0.5

[evaluation]
every = 1
parts = ["validation", "test"]

[checkpoint]
every = 1
"""
LAST = "[checkpoint]\nevery = 1\n"  # on lines 27 and 28
GROUP = "[groups.old]\n"

# What is replaced by what -> line and field, what is wrong, and the fix.
WRONG: list[tuple[str, str, str, str, str]] = [
    (
        "rounds = 2",
        'rounds = "2"',
        "1: rounds",
        '"2" is not a whole number',
        "write a whole number",
    ),
    ("rounds = 2", "rounds = 0", "1: rounds", "0 is below 1", "at least 1"),
    (
        "rounds = 2",
        "rounds = [2]",
        "1: rounds",
        "[2] is not a whole number",
        "write a whole number",
    ),
    ("rounds = 2", "rounds = inf", "1: rounds", "Infinity is not a whole number", "at least 1"),
    ("seed = 1", "seed = -1", "2: seed", "-1 is below 0", "at least 0"),
    ("seed = 1", "sead = 1", "2: sead", "no such field", 'did you mean "seed"'),
    ("seed = 1", 'device = "gpu"', "2: device", '"gpu" is not a device', "auto, cpu, cuda"),
    ("seed = 1", 'device = "cuda:"', "2: device", '"cuda:" is not a device', "cuda:1"),
    ("seed = 1", 'engine = "fast"', "2: engine", '"fast" is not one of', "write auto, sequential"),
    ("seed = 1", "threads = 0", "2: threads", "0 is below 1", "CPU threads"),
    (
        "seed = 1",
        'allow_degenerate = "yes"',
        "2: allow_degenerate",
        "not true or false",
        "write true or false",
    ),
    ("seed = 1", "clients = 5", "2: clients", "no such field", "it belongs to [data]"),
    ("seed = 1", "branches = 5", "2: branches", "no such field", "it belongs to [method]"),
    ("seed = 1", "hidden = [5]", "2: hidden", "no such field", "it belongs to [method] or [net]"),
    ("seed = 1", "groups = 3", "2: groups", "3 is not a table", "write a table"),
    ('"digits"', '"digit"', "5: data.name", 'no data set "digit"', 'did you mean "digits"'),
    ('"digits"', '"digits"\noptions = 3', "6: data.options", "not a table", "write options = {"),
    (
        '"digits"',
        '"digits"\noptions = { rows = 3 }',
        "6: data.options.rows",
        "no such option",
        "leave it out",
    ),
    (
        "clients = 6",
        "clients = 6.0",
        "6: data.clients",
        "6.0 is not a whole number",
        "how many clients",
    ),
    ("clients = 6", "client = 6", "6: data.client", "no such field", 'did you mean "clients"'),
    ("clients = 6", "clients = 9999", "7: data.partition", "9999 clients", "use fewer clients"),
    (
        "clients = 6",
        "clients = 6\nsplit = [0.7, 0.3]",
        "7: data.split",
        "is too short",
        "training, validation and test",
    ),
    (
        "clients = 6",
        "clients = 6\nsplit = [0.5, 0.2, 0.2, 0.1]",
        "7: data.split",
        "is too long",
        "write a list",
    ),
    (
        "clients = 6",
        "clients = 6\nsplit = [0.7, 0.3, 0.2]",
        "7: data.split",
        "does not add up to 1",
        "adding up to 1",
    ),
    (
        "clients = 6",
        'clients = 6\nsplit = "70/30"',
        "7: data.split",
        '"70/30" is not a list',
        "write a list",
    ),
    (
        "clients = 6",
        "clients = 6\nstratified = 1",
        "7: data.stratified",
        "1 is not true or false",
        "true or false",
    ),
    (
        "clients = 6",
        "clients = 6\nunseen = 2",
        "7: data.unseen",
        "2 is not below 1",
        "at least 0 and below 1",
    ),
    ("clients = 6", "clients = 6\nseed = -3", "7: data.seed", "-3 is below 0", "seed of partition"),
    ("alpha = 5.0", "alpha = 0", "7: data.partition.alpha", "must be above 0", "0.1 to 1"),
    (
        "alpha = 5.0",
        'alpha = "small"',
        "7: data.partition.alpha",
        "must be a number",
        "give a number",
    ),
    (
        "alpha = 5.0",
        "alpa = 5.0",
        "7: data.partition.alpa",
        "no such option",
        'did you mean "alpha"',
    ),
    (
        '"dirichlet_labels"',
        '"dirichlet"',
        "7: data.partition.name",
        "no partition",
        '"dirichlet_labels"',
    ),
    (
        'name = "dirichlet_labels", ',
        "",
        "7: data.partition.name",
        "name a partition",
        "choose one of ",
    ),
    ('"joint"', '"jont"', "8: data.shift.name", 'no shift "jont"', 'did you mean "joint"'),
    (
        "groups = 2",
        "groups = 99",
        "8: data.shift",
        "99 groups of 6 clients",
        "as many groups as clients",
    ),
    (
        "groups = 2",
        'groups = "two"',
        "8: data.shift.groups",
        "not whole numbers",
        "how many groups",
    ),
    (
        "groups = 2",
        "groups = [0, 1]",
        "8: data.shift.groups",
        "groups of shape [2]",
        "one group per client",
    ),
    (
        "keep = 0.6",
        "keep = 2.0",
        "8: data.shift.keep",
        "must be above 0 and at most 1",
        "share of the classes",
    ),
    ('"mlp"', '"lennet"', "11: net.name", 'no net "lennet"', 'did you mean "lenet"'),
    ("[net]", "[nets]", "10: nets", "no such field", 'did you mean "net"'),
    (
        "hidden = [8]",
        "hidden = 8",
        "12: net.hidden",
        "must be a list of whole numbers",
        "give a list",
    ),
    ("hidden = [8]", "hidden = [-8]", "12: net.hidden", "must be at least 1", "64 to 256"),
    ("hidden = [8]", "width = 8", "12: net.width", "no such option", "the only one is hidden"),
    ('"mlp"\nhidden = [8]', '"lenet"', "10: net", "16 x 16 pixels", '"cnn" for small images'),
    (
        '"mlp"\nhidden = [8]',
        '"cnn"\nchannels = [4]',
        "12: net.channels",
        "a list of 2 whole numbers",
        "give a list",
    ),
    ('"pfedmb"', '"pFedMB"', "15: method.name", 'no method "pFedMB"', 'did you mean "pfedmb"?'),
    (
        '"pfedmb"',
        '"fedavg"',
        "16: method.branches",
        'method "fedavg" has no such option',
        "choose one of ",
    ),
    (
        "branches = 2",
        "branches = 2.5",
        "16: method.branches",
        "must be a whole number",
        "give a whole number",
    ),
    ("branches = 2", "branches = 0", "16: method.branches", "must be at least 1", "e.g. 2 to 10"),
    (
        "branches = 2",
        "branches = 1",
        "16: method.branches",
        "makes pFedMB FedAvg",
        "allow_degenerate = true",
    ),
    (
        "branches = 2",
        'alpha_param = "relu"',
        "16: method.alpha_param",
        '"softmax" or',
        "choose one of projection, softmax",
    ),
    (
        "branches = 2",
        'statistics = "all"',
        "16: method.statistics",
        '"average" or',
        "choose one of average, local, refuse",
    ),
    ("lr = 0.1", "lr = -0.1", "17: method.lr", "must be above 0", "0.01 to 0.5"),
    (
        "lr = 0.1",
        "lr = [0.1]",
        "17: method.lr",
        "must be a number or a schedule",
        '{name = "milestones", ...}',
    ),
    (
        "lr = 0.1",
        "lr = { start = 0.1 }",
        "17: method.lr.name",
        "it is missing",
        "choose one of cosine, exponential, linear, milestones",
    ),
    (
        "lr = 0.1",
        "learning_rate = 0.1",
        "17: method.learning_rate",
        "no such option",
        'here it is called "lr"',
    ),
    ("lr = 0.1", "epochs = 0", "17: method.epochs", "must be at least 1", "1 to 5"),
    (
        "lr = 0.1",
        'optimizer = "best"',
        "17: method.optimizer",
        "must be an optimizer",
        '{name = "sgd", ...}',
    ),
    (
        "lr = 0.1",
        'optimizer = { name = "sgd", momentum = 2 }',
        "17: method.optimizer.momentum",
        "must be at least 0 and below 1",
        "e.g. 0.9",
    ),
    (
        "batch_size = 8",
        "batchsize = 8",
        "18: method.batchsize",
        "no such option",
        'did you mean "batch_size"',
    ),
    (
        "size = 0.5",
        "size = 0",
        "21: cohort.size",
        "neither a number of clients nor a share",
        "a share (0.5",
    ),
    ("size = 0.5", "size = 7", "21: cohort.size", "7 clients a round", "use at most 6"),
    ("size = 0.5", 'size = "half"', "21: cohort.size", '"half" is not', "write a number"),
    ("[cohort]", "[cohorts]", "20: cohorts", "no such field", 'did you mean "cohort"'),
    (
        "every = 1\nparts",
        "every = 0\nparts",
        "24: evaluation.every",
        "0 is below 1",
        "rounds between evaluations",
    ),
    (
        '["validation", "test"]',
        "[]",
        "25: evaluation.parts",
        "[] is too short",
        "train, validation, test",
    ),
    (
        '["validation", "test"]',
        '"test"',
        "25: evaluation.parts",
        '"test" is not a list',
        "write a list",
    ),
    (
        '["validation", "test"]',
        '["testing"]',
        "25: evaluation.parts",
        '"testing" is not one of',
        "train, validation, test",
    ),
    (LAST, "[checkpoint]\nkeep = 1\n", "28: checkpoint.keep", "1 is below 2", "at least 2"),
    (LAST, "checkpoint = 5\n", "27: evaluation.checkpoint", "no such field", "the top of the file"),
    (LAST, GROUP + "clients = [99]\n", "28: groups.old.clients", "there is no client 99", "0 to 5"),
    (
        LAST,
        GROUP + "clients = 3\n",
        "28: groups.old.clients",
        "3 is not a list",
        "numbers or names",
    ),
    (
        LAST,
        GROUP + 'clients = [1]\nnet = "rnn"\n',
        "29: groups.old.net.name",
        'no net "rnn"',
        "if it is yours, add --code FILE",
    ),
    (
        LAST,
        GROUP + "clients = [1]\nspeed = 3\n",
        "29: groups.old.speed",
        "no such field",
        "choose one of clients",
    ),
    (
        LAST,
        GROUP + 'tag = "age"\nvalue = 3\n',
        "28: groups.old.tag",
        'no tag "age"',
        "the only one is group",
    ),
    (
        LAST,
        GROUP + 'tag = "group"\nvalue = 9\n',
        "29: groups.old.value",
        "no client has group = 9",
        "choose from 0, 1",
    ),
    (
        LAST,
        "[groups]\nold = 3\n",
        "28: groups.old",
        "3 is not a table",
        "write a table [groups.old]",
    ),
]
NOT_TOML = [  # there is no field to name: the line it is
    ("seed = 1", "seed = 1\nseed = 2", 3, "write each key and each table once"),
    ("seed = 1", "seed = True", 2, "true and false small"),
    ("[method]", "[method", 14, "write tables as [name], and in them lines as name = value"),
    ("seed = 1", "seed = one", 2, "quote text"),
    ("seed = 1", "seed", 2, "lines as name = value"),
    ("[net]", "[data]", 10, "write each key and each table once"),
]


def said_of(old: str, new: str, tmp_path: Path) -> str:
    """What is said of the good configuration with something replaced."""
    assert old in GOOD
    path = tmp_path / "wrong.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        prepare(read_config(str(path)))
    assert caught.value.exit_code in (2, 3)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_configuration_that_the_wrong_ones_are_made_from_is_right(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    prepare(read_config(str(path)))


@pytest.mark.parametrize(("old", "new", "place", "wrong", "fix"), WRONG)
def test_a_wrong_configuration_is_told_with_field_line_and_fix(
    tmp_path: Path, old: str, new: str, place: str, wrong: str, fix: str
) -> None:
    said = said_of(old, new, tmp_path)
    where = rf"^wrong\.toml:{re.escape(place)}(?: = .+?)?: "
    block = re.search(rf"{where}(?P<wrong>.+)\n  fix: (?P<fix>.+)", said, re.MULTILINE)
    assert block, said
    assert wrong in block["wrong"]
    assert fix in block["fix"]


@pytest.mark.parametrize(("old", "new", "line", "fix"), NOT_TOML)
def test_text_that_is_not_toml_is_told_with_its_line_and_a_fix(
    tmp_path: Path, old: str, new: str, line: int, fix: str
) -> None:
    said = said_of(old, new, tmp_path)
    assert said.startswith(f"wrong.toml:{line}: this is not TOML: ")
    assert fix in said.splitlines()[-1]


def test_a_batch_larger_than_every_client_is_all_its_rows_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(GOOD.replace("batch_size = 8", "batch_size = 5000"))
    prepared = prepare(read_config(str(path)))
    largest = prepared.experiment.data.train.sizes.max()
    said = f"batch_size = 5000, but no client has more than {largest} training rows"
    assert [note.level for note in prepared.notes if note.text.startswith(said)] == ["info"]
    path.write_text(GOOD)
    assert not any("batch_size" in note.text for note in prepare(read_config(str(path))).notes)


def test_there_are_more_than_forty_different_mistakes() -> None:
    assert len({(old, new) for old, new, *_ in WRONG}) > 40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.strength=x", '--set method.strength = "x": must be a number'),
        ("rounds=0", "--set rounds: 0 is below 1"),
        ("lr=0.1", "--set lr: there is no such field"),
        ("data.clients=9999", "preset digits-fedprox: data.partition: 9999 clients"),
    ],
)
def test_a_field_of_the_command_line_is_named_once(change: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(read_config("digits-fedprox", [change]))
    assert caught.value.message.startswith(said)


def test_a_field_in_the_wrong_place_is_told_with_its_right_name() -> None:
    with pytest.raises(UserError) as caught:
        read_config("digits-fedprox", ["lr=0.1"])
    assert caught.value.fix == "it belongs to [method] (on the command line: --set method.lr=...)"
