"""What stands below a leaderboard: clients that are not in it, refused updates, unequal rounds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.nets import mlp
from fedblocks.reports.html import write_report
from fedblocks.reports.remarks import remark_on_rounds, remarks_on, remarks_on_scores

UNEQUAL = "not all were trained for equally many rounds, and differ by that, too"


def run(*remarks: str, rounds: int = 5, status: str = "finished") -> Any:
    """A run whose summary says this."""
    said = SimpleNamespace(remarks=list(remarks))
    last = SimpleNamespace(text=remarks[-1] if remarks else "")
    return SimpleNamespace(status=status, rounds=rounds, summary=lambda: said, refused=lambda: last)


def test_what_is_true_of_every_run_is_said_once_and_of_no_method() -> None:
    runs = {name: {0: run("2 without"), 1: run("2 without")} for name in ("local", "fedavg")}
    assert remarks_on(runs) == ["2 without"]
    runs["ditto"] = {0: run(), 1: run("2 without")}
    assert remarks_on(runs) == ["local: 2 without", "fedavg: 2 without", "ditto, seed 1: 2 without"]


def test_seeds_are_named_where_they_do_not_say_the_same() -> None:
    runs = {"a": {0: run("x", "1 of 4 refused"), 1: run("x"), 2: run("x", "2 of 4 refused")}}
    assert remarks_on({**runs, "b": {0: run("x")}}) == [
        "x",
        "a, seed 0: 1 of 4 refused; seed 2 likewise",
    ]
    more = {**runs["a"], 3: run("x", "3 of 4 refused")}
    said = remarks_on({"a": more, "b": {0: run("x")}})
    assert said[-1] == "a, seed 0: 1 of 4 refused; seeds 2, 3 likewise"
    assert remarks_on({"a": {4: run("x", "y")}}) == ["a: x", "a: y"]


def test_warnings_say_of_refused_updates_no_more_than_their_own_text() -> None:
    runs = {"a": {0: run("2 without", "1 of 4 refused"), 1: run("2 without", "")}}
    assert remarks_on_scores(runs) == ["a: 2 without"]
    assert "1 of 4 refused" in " ".join(remarks_on(runs))


def test_runs_that_are_not_finished_say_nothing() -> None:
    runs = {"a": {0: run("x", status="failed"), 1: run()}, "b": {0: run(status="running")}}
    assert remarks_on(runs) == [] and remarks_on({}) == []


def test_unequal_numbers_of_rounds_are_told_method_by_method() -> None:
    alike = {"a": {0: run(), 1: run()}, "b": {0: run(), 1: run(rounds=9, status="running")}}
    assert remark_on_rounds(alike) == "" and remark_on_rounds({}) == ""
    runs = {"a": {0: run()}, "b": {0: run(rounds=4), 1: run(rounds=7)}}
    assert remarks_on(runs) == [f"{UNEQUAL} (a 5, b 4 to 7)"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of one round and of two, in a folder."""
    where = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 2, 60)
    data = fb.Federation.from_users(x, y, np.arange(60) % 3)
    net = mlp((4,), 2, hidden=(3,))
    fb.run(fb.Local(net), data, 1, where / "alone")
    fb.run(fb.FedAvg(net), data, 2, where / "together")
    return where


def test_a_report_says_under_its_leaderboard_that_rounds_are_unequal(folder: Path) -> None:
    pytest.importorskip("plotly")
    said = f"<p>{UNEQUAL} (local 1, fedavg 2)</p>"
    assert said in write_report(folder).read_text()


def test_a_comparison_of_runs_that_stopped_early_says_so_in_text_and_json(tmp_path: Path) -> None:
    data, net = fb.small_federation(), fb.small_net()
    methods = {"still": fb.FedAvg(net, lr=1e-9), "moving": fb.FedAvg(net, lr=0.1)}
    found = fb.compare(methods, data, seeds=1, rounds=3, out=tmp_path / "c", stopping=1)
    lengths = {name: by[0].rounds for name, by in found.runs.items()}
    assert lengths["still"] == 2 and lengths["moving"] == 3
    assert found.as_json()["warnings"] == [f"{UNEQUAL} (still 2, moving 3)"]
    assert UNEQUAL in str(found)
