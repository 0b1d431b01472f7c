"""Runs of several ranks end where that of one process ends; the ranks are threads here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted
from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.methods.fedavg import FedAvg
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.python import config_of_objects
from fedblocks.runs.ranks.errors import RankLost
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.run import resume_part, run_part
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run
from fedblocks.runs.stopping import StopRun
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES, small_federation

from .in_threads import play_in_threads
from .players import config_of_steps
from .processes import TABLES, rows_of, unlike

CLOSE = 1e-6


def config_of(name: str) -> Config:
    """The small example of a method, as a run of two rounds."""
    example = EXAMPLES[name]()
    groups = {
        group: [i for i, own in enumerate(example.members) if own == group]
        for group in example.groups
        if group != "all"
    }
    settings: dict[str, Any] = {
        "seed": example.seed,
        "cohort": example.cohort,
        "engine": "sequential",
        "device": "cpu",
        "allow_degenerate": True,
        "evaluation": {"every": 1, "parts": ["validation", "test"], "local": True},
    }
    return config_of_objects(
        Ingredients.of(example.methods(), example.federation), 2, groups, settings
    )


def check_alike(ends: list[Any], ours: Path, theirs: Path) -> None:
    assert ends == [ours] * len(ends), ends
    assert unlike(ours, theirs, CLOSE) == []
    columns = "round, clients, bytes_down, bytes_up"
    assert rows_of(ours, "rounds", columns) == rows_of(theirs, "rounds", columns)
    for seconds, at in rows_of(ours, "rounds", "seconds, started_at"):
        assert 0 < seconds < 600 and at
    with RunFolder.open(ours) as one, RunFolder.open(theirs) as other:
        for fact in ("engine", "federation", "clients"):
            assert one.store.meta(fact) == other.store.meta(fact)


@pytest.mark.parametrize(
    "name", ["fedavg", "pfedmb", "fedmn", "ditto", "ifca", "scaffold", "modfl", "pfedhn"]
)
def test_a_method_on_two_ranks_ends_where_one_process_ends(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "ranks"
    run(config_of(name), alone)
    ends = play_in_threads(2, lambda ranks: run_part(ranks, config_of(name), out), monkeypatch)
    check_alike(ends, out, alone)


def test_clients_that_keep_much_and_some_that_never_train_are_spread_over_three_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of_steps(rounds=4)
    run(config, tmp_path / "alone")
    rounds: list[list[int]] = [[], [], []]

    def work(ranks: Ranks) -> Path:
        listen = lambda done: rounds[ranks.number].append(done.round)
        return run_part(ranks, config, tmp_path / "ranks", listen)

    ends = play_in_threads(3, work, monkeypatch)
    check_alike(ends, tmp_path / "ranks", tmp_path / "alone")
    assert rounds[0] == [1, 2, 3, 4]
    texts = [[n["text"] for n in load_run(tmp_path / one).notes] for one in ("ranks", "alone")]
    assert texts[0] == [f"{texts[1][0]}, 3 ranks", *texts[1][1:]]
    environment = json.loads((tmp_path / "ranks" / "env.json").read_text())
    assert load_run(tmp_path / "ranks").status == "finished" and environment["ranks"] == 3


def objects_of(config: Config) -> Ingredients | None:
    """What a run was made of, if it was made of objects."""
    example = EXAMPLES["ditto"]()
    objects = Ingredients.of(example.methods(), example.federation)
    return objects if config.is_of_objects else None


@pytest.mark.parametrize("kind", ["configuration", "objects"])
def test_ranks_go_on_where_others_have_stopped(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of_steps(rounds=4) if kind == "configuration" else config_of("ditto")
    run(config, tmp_path / "alone")

    def stop(done: RoundDone) -> None:
        if done.round == config.rounds - 1:
            raise KeyboardInterrupt

    start = lambda ranks: run_part(ranks, config, tmp_path / "ranks", stop)
    ends = play_in_threads(2, start, monkeypatch)
    assert [type(end) for end in ends] == [Interrupted] * 2
    assert load_run(tmp_path / "ranks").status == "interrupted"
    on = lambda ranks: resume_part(ranks, tmp_path / "ranks", objects_of)
    check_alike(play_in_threads(3, on, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    finished = play_in_threads(2, on, monkeypatch)  # nothing is left to do
    assert finished == [tmp_path / "ranks"] * 2


def test_faults_on_purpose_are_those_of_one_process_and_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"drop": 0.2, "slow": 0.1, "crash": 0.2, "corrupt": 0.2}
    config = config_of_steps(rounds=3, faults=faults)
    run(config, tmp_path / "alone")
    part = lambda ranks: run_part(ranks, config, tmp_path / "ranks")
    check_alike(play_in_threads(2, part, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    reasons = {row[2] for row in rows_of(tmp_path / "ranks", "refusals", TABLES["refusals"])}
    assert len(reasons) >= 3


class Stubborn(nn.Module):
    """Refuses inputs with a large number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > 50:
            raise ValueError("this is too large")
        return self.layer(x)


def stubborn_config(broken: tuple[int, ...], part: str = "train") -> Config:
    """A few clients, of which some have an input at the end that the net refuses."""
    data = small_federation(dtype=torch.float32)
    x = data.x.clone()
    for client in broken:
        x[data.parts[part][client][-1]] = 99.0
    method = FedAvg(Net.of(Stubborn), lr=0.1, epochs=1)
    settings = {"engine": "sequential", "device": "cpu"}
    return config_of_objects(Ingredients.of(method, replace(data, x=x)), 2, {}, settings)


@pytest.mark.parametrize("part", ["train", "test"])
def test_clients_whose_own_work_fails_are_left_out_at_every_rank(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their training, or only the evaluation of their models."""
    config = stubborn_config((1, 2), part)
    run(config, tmp_path / "alone")
    work = lambda ranks: run_part(ranks, config, tmp_path / "ranks")
    check_alike(play_in_threads(2, work, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    who = {row[1] for row in rows_of(tmp_path / "ranks", "refusals", TABLES["refusals"])}
    assert who == {1, 2}


def test_an_error_of_every_client_ends_the_run_at_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = lambda ranks: run_part(ranks, stubborn_config(tuple(range(6))), tmp_path / "ranks")
    ends = play_in_threads(2, part, monkeypatch)
    assert all("this is too large" in str(end) for end in ends), ends


def test_a_listener_that_has_seen_enough_ends_the_run_at_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(done: RoundDone) -> None:
        if done.round == 2:
            raise StopRun("that will do")

    config = config_of_steps(rounds=4)
    part = lambda ranks: run_part(ranks, config, tmp_path / "ranks", enough)
    assert play_in_threads(2, part, monkeypatch) == [tmp_path / "ranks"] * 2
    result = load_run(tmp_path / "ranks")
    assert (result.status, result.rounds) == ("finished", 2)
    assert any("that will do" in note["text"] for note in result.notes)


def test_ranks_that_are_left_alone_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(ranks: Ranks) -> Any:
        if ranks.number == 1:
            raise ValueError("this one is gone")
        return ranks.share(1)

    first, second = play_in_threads(2, work, monkeypatch)
    assert isinstance(second, ValueError) and isinstance(first, RankLost)
    assert "another rank did not answer within 60 s" in str(first)
    assert "this was rank 0 of 2" in str(first)


def test_an_error_of_one_rank_ends_all_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(ranks: Ranks) -> Path:
        rate = {"name": "fedavg", "lr": 0.1 if ranks.first else 0.2}
        return run_part(ranks, config_of_steps(method=rate), tmp_path / "ranks")

    ends = play_in_threads(2, work, monkeypatch)
    said = "rank 1 has another configuration than rank 0: method.lr is 0.2, not 0.1"
    assert [said in str(end) for end in ends] == [True, True]
    assert not (tmp_path / "ranks" / "config.toml").exists()


def test_ranks_say_short_and_long_things_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(ranks: Ranks) -> Any:
        rank = ranks.number
        short = ranks.share({"rank": rank})
        long = ranks.share("x" * (5000 * (rank + 1)))
        told = ranks.tell([1, 2] if ranks.first else None)
        much = ranks.tell("y" * 9000 if ranks.first else None)
        trees = ranks.share_tree({"w": torch.full((2,), float(rank))})
        collected = ranks.collect_tree({"w": torch.full((rank + 1,), 7.0)})
        total = torch.tensor([1.0 + rank])
        ranks.add_up(total)
        rows = torch.full((rank + 1, 2), float(rank))
        joined = ranks.join_rows(rows, [1, 2, 3], everywhere=True)
        first = ranks.join_rows(rows, [1, 2, 3], everywhere=False)
        if rank == 2:
            ranks.send({"letter": torch.tensor([5.0])}, 1)
        letter = ranks.receive(2)["letter"].tolist() if rank == 1 else None
        sizes = [len(tree["w"]) for tree in collected]
        words = [short, [len(text) for text in long], told, len(much)]
        numbers = [[tree["w"].tolist() for tree in trees], sizes, total.item(), letter]
        lists = [None if one is None else one[:, 0].tolist() for one in (joined, first)]
        return [*words, *numbers, *lists]

    ends = play_in_threads(3, work, monkeypatch)
    heard = [[{"rank": 0}, {"rank": 1}, {"rank": 2}], [5000, 10000, 15000], [1, 2], 9000]
    trees = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    rows = [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert ends[0] == [*heard, trees, [1, 2, 3], 6.0, None, rows, rows]
    assert ends[1] == [*heard, trees, [], 6.0, [5.0], rows, None]
    assert ends[2] == [*heard, trees, [], 6.0, None, rows, None]


def test_the_first_rank_leads_and_the_others_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(ranks: Ranks) -> Any:
        served: list[Any] = []

        def lead() -> int:
            ranks.tell({"ask": 1})
            ranks.tell({"ask": 2})
            return 42

        return ranks.lead(lead, served.append), served

    asked = [{"ask": 1}, {"ask": 2}]
    assert play_in_threads(2, work, monkeypatch) == [(42, []), (42, asked)]
    wrong = lambda ranks: ranks.together(lambda: 1 / ranks.number)
    ends = play_in_threads(2, wrong, monkeypatch)
    assert all("division by zero" in str(end) for end in ends), ends


def test_metrics_that_need_outputs_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trained models before aggregation and of all models afterwards, by each client's rows."""
    example = EXAMPLES["ditto"]()
    task = Task(metrics=["f1_macro", "auroc", "accuracy"])
    data = replace(example.federation, task=task)
    settings: dict[str, Any] = {
        "engine": "sequential",
        "device": "cpu",
        "evaluation": {"every": 1, "parts": ["validation", "test"], "local": True},
    }
    config = config_of_objects(Ingredients.of(example.methods()["all"], data), 2, {}, settings)
    run(config, tmp_path / "alone")
    part = lambda ranks: run_part(ranks, config, tmp_path / "ranks")
    check_alike(play_in_threads(2, part, monkeypatch), tmp_path / "ranks", tmp_path / "alone")
    columns = "part, view, client, extra"
    ours, theirs = (
        rows_of(tmp_path / name, "client_metrics", columns) for name in ("ranks", "alone")
    )
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        values, wanted = json.loads(one[-1]), json.loads(other[-1])
        assert one[:-1] == other[:-1] and values.keys() == wanted.keys() >= {"f1_macro", "auroc"}
        assert values == pytest.approx(wanted, nan_ok=True)
