"""What a message says to do is what helps: the right entry, name, option or call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import UserError, nearest
from fedblocks.data import PARTITIONS

ROWS = np.random.default_rng(0)
X, Y = ROWS.normal(size=(40, 6)).astype("float32"), ROWS.integers(0, 3, 40)
USERS = np.repeat(np.arange(4), 10)
DATA = fb.Federation.from_users(X, Y, USERS)
NET = fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
LOOSE: Any = fb  # for calls that a type checker would refuse


class Two(nn.Module):
    """A net that returns its hidden layer [n, 8] and its logits [n, 3] in something."""

    def __init__(self, wrap: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.hidden, self.out, self.wrap = nn.Linear(6, 8), nn.Linear(8, 3), wrap

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x).relu()
        return self.wrap(hidden, self.out(hidden))


def run(out: Path, net: fb.Net = NET, data: Any = DATA, **settings: Any) -> fb.RunResult:
    return fb.run(fb.FedAvg(net), data, rounds=1, out=out, **settings)


def returning(wrap: Callable[[torch.Tensor, torch.Tensor], Any]) -> fb.Net:
    return fb.Net.of(lambda: Two(wrap))


def users(**arrays: Any) -> fb.Federation:
    return fb.Federation.from_users(**{"x": X, "y": Y, "users": USERS, **arrays})


# A call with a folder to write to -> what is wrong, and what to do.
CALLS: list[tuple[Callable[[Path], Any], str, str]] = [
    (
        lambda out: run(out, returning(lambda h, z: {"emb": h, "z": z})),
        "a dictionary with the keys 'emb', 'z'",
        "output='z'",
    ),
    (
        lambda out: run(out, returning(lambda h, z: {"a": h[:, :3], "logits": z})),
        "a dictionary",
        "output='logits'",
    ),
    (lambda out: run(out, returning(lambda h, z: (h, z))), "a tuple of 2", "output=1)"),
    (lambda out: LOOSE.run("fedavg"), "'fedavg' is a string", "write FedAvg(net, lr=0.1)"),
    (lambda out: LOOSE.run("digits-fedavg"), "is a string", "run(read_config('digits-fedavg'))"),
    (lambda out: LOOSE.run("none"), "'none' is a string", "run(FedAvg(net, lr=0.1), data"),
    (lambda out: LOOSE.FedAvg(NET, optimizer="adam"), "must be an optimizer", "fedblocks.Adam()"),
    (lambda out: LOOSE.FedAvg(NET, optimizer=torch.optim.Adam), "optimizer", "fedblocks.Adam()"),
    (lambda out: LOOSE.IFCA(NET, clusters="3"), "a whole number or", 'a whole number or "auto"'),
    (lambda out: LOOSE.IFCA(NET, cluster=3), 'IFCA has no option "cluster"', 'mean "clusters"?'),
    (lambda out: LOOSE.FedAvg(NET, momentum=0.9), 'no option "momentum"', "SGD(momentum=...)"),
    (lambda out: LOOSE.FedAvg(NET, local_lr=0.9), 'no option "local_lr"', 'it is called "lr"'),
    (lambda out: run(out, data=users(x=(X * 9).astype(int))), "int64", 'x.astype("float32")'),
    (lambda out: run(out, data=users(x=X > 0)), "int64", 'x.astype("float32")'),
    (lambda out: run(out, data=users(y=Y[:, None])), "[2, 1, 3]", "use y[:, 0]"),
    (lambda out: fb.Net.of(NET.make, head="fc"), 'no module "fc"', "choose one of 0, 0.bias"),
    (lambda out: users(x=X[:0], y=Y[:0], users=USERS[:0]), "there are no rows", "one row"),
    (lambda out: users(split=(0.5, 0.5)), "split is (0.5, 0.5), not three shares", "(0.7, 0.1"),
    (
        lambda out: users(x=X.astype("float64") * 1e300),
        "too large for float32",
        "scale the inputs",
    ),
    (
        lambda out: PARTITIONS["shards"](np.array(["a", "b"])[Y % 2], clients=2),
        "labels are text",
        "return_inverse=True",
    ),
    (lambda out: users(y=Y + 0.5), "labels are not whole numbers", 'task=Task("regression")'),
    (lambda out: users(y=np.where(Y == 0, np.inf, Y)), "one is inf", "number the classes"),
    (lambda out: users(users=np.where(USERS == 1, np.nan, USERS)), "of row 10 is nan, and", "fill"),
    (lambda out: users(users=["a", None] * 20), "the user id of row 1 is None", "fill"),
    (lambda out: (run(out), run(out)), "already holds a run", "in Python out=..."),
    (
        lambda out: fb.run(fb.PFedMB(NET, branches=1), DATA, rounds=1, out=out),
        "makes pFedMB FedAvg",
        "(Python: True)",
    ),
    (
        lambda out: fb.run(fb.ModFL(NET), DATA, rounds=1, out=out),
        'the tag "operation"',
        'tags={"operation": [0, 1, ...]}',
    ),
    (lambda out: run(out, data=X), "an ndarray is not a Federation", "Federation.from_users"),
]


@pytest.mark.parametrize(("call", "wrong", "fix"), CALLS, ids=[fix for _, _, fix in CALLS])
def test_a_wrong_call_is_answered_with_what_helps(
    tmp_path: Path, call: Callable[[Path], Any], wrong: str, fix: str
) -> None:
    with pytest.raises(UserError) as error:
        call(tmp_path / "r")
    assert wrong in error.value.message
    assert fix in error.value.fix


TABLES = [
    ("", "is empty", "a line of column names"),
    ("a;user;label\n1;x;0\n", 'separated by ";"', "by commas"),
    ("a\tuser\tlabel\n1\tx\t0\n", "separated by tabs", "by commas"),
    ("a,a,user,label\n1,1,x,0\n", 'two columns "a"', "its own name"),
    ("a,user,label\n1,x,0,9\n", "line 2 of", "one field per column"),
    ("a,who,label\n1,1,0\n", 'there is no column "user"', "give a partition"),
]


@pytest.mark.parametrize(("text", "wrong", "fix"), TABLES, ids=[wrong for _, wrong, _ in TABLES])
def test_a_wrong_table_is_answered_with_what_helps(
    tmp_path: Path, text: str, wrong: str, fix: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError) as error:
        fb.Federation.from_csv(tmp_path / "t.csv")
    assert wrong in error.value.message and fix in error.value.fix


def test_blanks_in_the_header_of_a_table_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a, user, label\n" + "1,x,0\n2,x,1\n" * 5)
    assert fb.Federation.from_csv(tmp_path / "t.csv").about["columns"] == ["a"]


def test_a_table_without_users_is_read_with_a_partition(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,label\n" + "1,0\n2,1\n" * 5)
    halves = [list(range(5)), list(range(5, 10))]
    data = fb.Federation.from_csv(tmp_path / "t.csv", user=None, partition=halves)
    assert data.clients == 2 and data.about["columns"] == ["user"]  # a number like any other


@pytest.mark.parametrize("labels", [Y.astype("float64"), torch.tensor(Y).float(), Y > 0])
def test_whole_numbers_and_truths_are_labels(labels: Any) -> None:
    data = users(y=labels)
    assert (
        data.y.dtype == torch.int64 and data.y.tolist() == np.asarray(labels).astype(int).tolist()
    )


def test_names_may_come_as_objects() -> None:
    names = np.array(["b", "a"] * 20, dtype=object)  # as pandas has them
    assert list(users(users=names).names) == ["a", "b"]


def test_settings_with_a_table_take_a_table_or_its_main_value(tmp_path: Path) -> None:
    tables = run(
        tmp_path / "a", cohort={"size": 2}, evaluation={"every": 3}, checkpoint={"every": 4}
    )
    values = run(tmp_path / "b", cohort=2, evaluation=3, checkpoint=4)
    assert tables.config == values.config
    assert (values.config.cohort.size, values.config.evaluation.every) == (2, 3)


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("evry", ["memory", "seed"], "choose one of memory, seed"),
        ("hidden", ["wide", "width"], "choose one of wide, width"),
        ("seid", ["memory", "seed"], 'did you mean "seed"? Or choose one of memory, seed'),
        ("SEED", ["seeds", "seed"], 'did you mean "seed"? Or choose one of seed, seeds'),
        (
            "a-ditt",
            ["a-ditto", "a-ifca"],
            'did you mean "a-ditto"? Or choose one of a-ditto, a-ifca',
        ),
        ("dirichlet", ["dirichlet_labels", "iid"], 'did you mean "dirichlet_labels"?'),
        ("x", ["y"], "the only one is y"),
        ("x", [""], "leave it out"),
    ],
)
def test_a_name_is_suggested_only_where_it_is_alike(name: str, known: list[str], hint: str) -> None:
    assert nearest(name, known).startswith(hint)


def test_the_signature_of_a_method_shows_its_options() -> None:
    names = list(inspect.signature(fb.FedAvg).parameters)
    assert names[:3] == ["net", "lr", "epochs"] and "args" not in names


def test_a_result_is_shown_in_a_line_and_progress_in_a_line_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "r", progress=True)
    assert repr(result) == f"RunResult(fedavg, finished after round 1 of 1, folder='{tmp_path}/r')"
    assert capsys.readouterr().err.startswith("round 1/1  4 clients  ")
    run(tmp_path / "quiet")
    assert capsys.readouterr().err == ""
