"""Small decisions of runs, each with the answer that follows from what was asked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.runs import digits, engine_choice, python
from fedblocks.runs.grids.space import OneOf, Range, parse_space
from fedblocks.runs.grids.tune import _key
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.training import RankRounds
from fedblocks.runs.storage import checkout
from fedblocks.testing import small_federation

BASE: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "gaussian", "clients": 4},
    "net": {"name": "mlp"},
    "method": {"name": "fedavg"},
}


def test_of_several_groups_the_one_that_needs_most_says_how_many_clients_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of which 3, 5 and 2 clients fit; the net of the last is not trained at once at all."""
    fits = {"a": 3, "b": 5, "c": 2}
    need = lambda experiment, group, parts: SimpleNamespace(chunk=lambda *_: fits[group])
    monkeypatch.setattr(engine_choice, "measure_need", need)
    methods = {
        name: SimpleNamespace(net=SimpleNamespace(unmappable=name == "c" and "a loop"))
        for name in fits
    }
    experiment: Any = SimpleNamespace(
        methods=methods, members=lambda clients: fits, data=SimpleNamespace(clients=9)
    )
    config = Config.of({**BASE, "memory": "1GB", "chunk": 64})
    assert engine_choice._chunk(config, experiment, 9) == 3
    alone: Any = SimpleNamespace(
        methods=methods, members=lambda clients: ["c"], data=SimpleNamespace(clients=9)
    )
    assert engine_choice._chunk(config, alone, 9) == 64
    plain = Config.of({**BASE, "chunk": 7})
    assert engine_choice._chunk(plain, experiment, 9) == 7


def test_a_search_is_the_same_in_whatever_order_it_is_written() -> None:
    base = Config.of(BASE)
    one, two = Range(0.1, 1.0, False), OneOf(("2", "3"))
    assert _key(base, {"a": one, "b": two}) == _key(base, {"b": two, "a": one})
    assert _key(base, {"a": one}) != _key(base, {"b": one})


def test_blanks_in_a_search_are_no_part_of_names_and_values() -> None:
    space, fixed = parse_space([" method.lr = 0.1..1 ", " method.epochs = 1 | 2 ", "rounds=3"])
    assert space == {"method.lr": Range(0.1, 1, False), "method.epochs": OneOf(("1", "2"))}
    assert fixed == ["rounds=3"]
    assert parse_space(["a=1..4:log"])[0] == {"a": Range(1, 4, True)}
    for nothing in ("a=1..1", "a=2..1", "a=0..1:log", "a=-1..1:log"):
        with pytest.raises(UserError, match="nothing between"):
            parse_space([nothing])


def test_a_command_that_reads_a_program_is_handed_what_a_resumed_run_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(python, "hand_over", handed.append)
    method, data = fb.FedAvg(fb.Net.of(lambda: nn.Linear(6, 4))), small_federation()
    with suppress(UserError):
        fb.resume(tmp_path / "nothing", method, data, sampler=fb.UniformSampler())
    (recipes,) = handed
    ingredients = recipes()[0](0)
    assert ingredients.data is data and ingredients.method_of("all") is method
    assert isinstance(ingredients.sampler, fb.UniformSampler)


def rank_of(number: int, **more: Any) -> Any:
    """One of two ranks that have three and two clients, of which the first and last never train."""
    owners = np.array([0, 1, 0, 1, 0])
    return SimpleNamespace(owners=owners, rank=number, unseen=[0, 4], **more)


def test_a_rank_counts_the_clients_that_it_trains() -> None:
    count = RankExperiment.trained_here.func  # type: ignore[attr-defined]
    assert [count(rank_of(0)), count(rank_of(1))] == [1, 2]
    assert RankExperiment.own(rank_of(0), [0, 1, 2]) == [0, 2]
    assert RankExperiment.own(rank_of(1), [4, 3]) == [3]


def test_a_failure_at_a_rank_is_told_once() -> None:
    rounds: Any = SimpleNamespace(failures=["one", "two"])
    assert RankRounds._failures(rounds) == ["one", "two"]
    assert RankRounds._failures(rounds) == [] == rounds.failures


def test_a_file_of_git_is_read_up_to_a_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checkout, "MOST_BYTES", 3)
    (tmp_path / "a").write_text("abc")
    assert checkout._read(tmp_path / "a") == "abc"
    (tmp_path / "a").write_text("abcd")
    with pytest.raises(OSError, match="not a file that git writes"):
        checkout._read(tmp_path / "a")


def repository(folder: Path, head: str) -> Path:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text(head)
    return folder


def test_a_commit_is_found_by_its_branch_whatever_blanks_git_writes(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    plain = repository(tmp_path / "a", f"{commit}\n")
    assert checkout.commit_around(plain) == commit
    branch = repository(tmp_path / "b", "ref: refs/heads/main\n")
    (branch / ".git" / "refs" / "heads" / "main").write_text(f"  {commit}\n")
    (branch / "src").mkdir()
    assert checkout.commit_around(branch / "src") == commit
    linked = tmp_path / "c"
    linked.mkdir()
    (linked / ".git").write_text(f"gitdir: {branch / '.git'} \n")
    assert checkout.commit_around(linked) == commit


@pytest.mark.parametrize("change", ["net.hidden=[4]", " net.hidden =[4]"])
def test_who_chooses_a_net_for_the_digits_gets_no_other(change: str) -> None:
    table = digits.digits("fedbn").resolved()
    assert digits._fitting_net("fedbn", table, [change]) == []
    chosen = digits._fitting_net("fedbn", table, ["rounds=3"])
    assert chosen == ["net.name=cnn", "net.batch_norm=true"]
    assert digits._fitting_net("fedavg", table, []) == []


def test_an_option_of_a_method_needs_no_prefix() -> None:
    assert digits._below_method("pfedmb", "branches =4") == "method.branches =4"
    assert digits._below_method("pfedmb", "rounds=4") == "rounds=4"


@pytest.mark.parametrize("fault", ["drop", "slow", "crash", "corrupt"])
def test_shares_of_faults_add_up_to_one_at_most(fault: str) -> None:
    others = {name: 0.2 for name in ("drop", "slow", "crash", "corrupt") if name != fault}
    Config.of({**BASE, "faults": {**others, fault: 0.4}})
    with pytest.raises(UserError, match=r"the shares add up to 1\.1, more than 1"):
        Config.of({**BASE, "faults": {**others, fault: 0.5}})
