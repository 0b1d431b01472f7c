"""Blanks around words mean nothing, and what runs store or send keeps its numbers exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.task import Task
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs import trials
from fedblocks.runs.extension import _total
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.rounds import attempt
from fedblocks.runs.storage import checkout, environment
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.trees import pack, unpack


@pytest.mark.parametrize(("rounds", "total"), [(" +2 ", 7), (" 6 ", 6), ("+2", 7), (6, 6)])
def test_rounds_in_all_or_more_are_counted_whatever_blanks_are_around(
    rounds: int | str, total: int
) -> None:
    assert _total(rounds, before=5) == total


@pytest.mark.parametrize("rounds", [" 5 ", "+0", 5, "4"])
def test_a_run_is_only_made_longer(rounds: int | str) -> None:
    with pytest.raises(UserError, match=f"rounds = {str(rounds).strip()}".replace("+", r"\+")):
        _total(rounds, before=5)


@pytest.mark.parametrize(
    ("said", "why"),
    [("\n too large\nfor this", "too large"), (" ", "ValueError"), ("short", "short")],
)
def test_the_first_line_of_an_error_says_why_clients_are_no_longer_stacked(
    said: str, why: str
) -> None:
    def work(engine: Any) -> str:
        if isinstance(engine, Vectorised):
            raise ValueError(said)
        return "done"

    notes: list[Note] = []
    engine, end = attempt(work, Vectorised(), 3, notes)
    assert isinstance(engine, Sequential) and end == "done"
    assert notes[0].text.endswith(f"a stack of clients failed ({why})")


def test_the_branch_of_a_further_work_tree_is_found_in_the_folder_that_it_shares(
    tmp_path: Path,
) -> None:
    commit = "0123456789" * 4
    whole = tmp_path / "whole" / ".git"
    own = whole / "worktrees" / "further"
    (whole / "refs" / "heads").mkdir(parents=True)
    own.mkdir(parents=True)
    (whole / "refs" / "heads" / "main").write_text(f"{commit}\n")
    (own / "HEAD").write_text("ref:  refs/heads/main \n")
    (own / "commondir").write_text(" ../..\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert checkout.commit_around(tree) == commit


def test_the_name_of_a_processor_has_no_blanks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "processor\t: 0\nmodel name\t:  Some Processor \nmodel name\t: Other\n"
    monkeypatch.setattr(environment.Path, "read_text", lambda path: lines)
    assert environment._cpu_name() == "Some Processor"


def test_sizes_of_a_cohort_of_several_ranks_are_precise_numbers() -> None:
    rank: Any = SimpleNamespace(
        data=SimpleNamespace(
            device=torch.device("cpu"), clients=9, tags={"site": np.array([5, 6, 7])}
        ),
        sizes=np.array([3, 4, 2**60 + 2**10]), unseen=[1], seed=0,
    )  # fmt: skip
    cohort = RankExperiment.cohort(rank, [2, 0], 1)
    assert cohort.sizes.dtype == torch.float64 and cohort.sizes.tolist() == [2**60 + 2**10, 3]
    assert cohort.ids.tolist() == [2, 0] and cohort.tags["site"].tolist() == [7, 5]
    assert (cohort.population, cohort.round, cohort.unseen.tolist()) == (8, 1, [1])


def test_tensors_of_a_checkpoint_lie_where_torch_would_put_them() -> None:
    """At multiples of 64 bytes: sums over other places may differ in the last bit."""
    tree = {str(size): torch.arange(float(size)) for size in range(1, 40)}
    back = unpack(*pack(tree))
    assert {value.data_ptr() % 64 for value in back.values()} == {0}
    assert all(torch.equal(back[name], value) for name, value in tree.items())


def known(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "y", "counted"),
    [
        ([1.0, 2.0, 3.0], [[0.0, NAN], [NAN, NAN], [0.0, 0.0]], [1.0, 3.0]),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[0.0, NAN], [NAN, NAN], [0.0, 0.0]], [1, 5, 6]),
    ],
    ids=["of examples", "of targets"],
)
def test_losses_of_examples_with_a_known_target_have_to_be_finite(
    losses: list[Any], y: list[Any], counted: list[float]
) -> None:
    task = Task("regression")
    assert trials._counted(task, known(losses), known(y)).tolist() == counted


@pytest.mark.parametrize(
    ("outputs", "most"), [((3,), trials.EXAMPLES), ((trials.NUMBERS // 5,), 5), ((10**9,), 2)]
)
def test_as_many_examples_as_few_numbers_suffice_for_are_tried(
    outputs: tuple[int, ...], most: int
) -> None:
    rows = list(range(2 * trials.EXAMPLES))
    train = Rows([[0], rows])
    federation: Any = SimpleNamespace(
        task=SimpleNamespace(output_shape=lambda y, classes: outputs, of_classes=True),
        train=train, names=["small", "large"], classes=2,
        x=torch.zeros(len(rows), 1), y=torch.zeros(len(rows)),
        inputs=lambda rows: torch.zeros(len(rows), 1),
    )  # fmt: skip
    net: Any = Net()
    trial = trials._take_examples(net, federation)
    assert (len(trial.y), len(trial.outputs), trial.client) == (most, most, "large")


class Rows(list[list[int]]):
    """The rows of each client."""

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        return np.array([len(own) for own in self])


class Net:
    """Gives back its inputs."""

    init: Callable[[int], None] = staticmethod(lambda seed: None)

    def __call__(self, params: None, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(("share", "depends"), [(0.0, False), (1e-10, False), (1e-8, True)])
def test_a_loss_that_depends_on_others_by_ever_so_little_is_found(
    share: float, depends: bool
) -> None:
    """More than a billionth of the largest loss, which is 4: in single precision it would be
    rounded away.
    """
    outputs, y = torch.tensor([[2.0], [1.0]]), torch.tensor([[0.0], [0.0]])
    loss = lambda out, y: ((out - y) ** 2 + share * out.mean()).squeeze(1)
    assert trials._depends_on_others(Task("regression", loss=loss), outputs, y) == depends
    own = torch.tensor(1.0)  # a loss with numbers of its own, in single precision
    rough = lambda out, y: torch.dot(out[0], own[None]) * 0 + loss(out, y)
    assert not trials._depends_on_others(Task("regression", loss=rough), outputs, y)


def test_losses_below_zero_and_products_with_targets_are_compared_in_double_precision() -> None:
    """The loss is -4 or so; a product by `vecdot` takes numbers of one precision alone."""
    outputs, y = torch.tensor([[2.0], [1.0]]), torch.tensor([[2.0], [3.0]])
    product = lambda out, y: -torch.linalg.vecdot(out, y)
    assert not trials._depends_on_others(Task("regression", loss=product), outputs, y)
    depends = lambda out, y: product(out, y) + 1e-8 * out.mean()
    assert trials._depends_on_others(Task("regression", loss=depends), outputs, y)
