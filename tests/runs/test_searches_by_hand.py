"""Searches and comparisons before their first run: what is looked through, what is checked, and
which runs are begun, gone on with or taken as they are.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.core.errors import Interrupted, RunFolderError, UserError
from fedblocks.runs.grids import cells, tune
from fedblocks.runs.grids.grid import Grid
from fedblocks.runs.grids.method_grid import grid_of, names_of
from fedblocks.runs.grids.space import OneOf, Range, parse_space
from fedblocks.runs.ranks.loop import _ending_elsewhere


def test_ranges_and_choices_are_told_from_what_is_the_same_for_all() -> None:
    space, fixed = parse_space(
        [" lr = 0.01..1:log", "rounds=5", "epochs=2..8", "net.hidden=[32] | [64]", "x=-1..0.5"]
    )
    assert fixed == ["rounds=5"]
    assert space == {
        "lr": Range(0.01, 1, True), "epochs": Range(2, 8, False), "x": Range(-1, 0.5, False),
        "net.hidden": OneOf(("[32]", "[64]")),
    }  # fmt: skip
    assert isinstance(space["epochs"].low, int) and isinstance(space["x"].high, float)  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["lr=1..1", "lr=2..1", "lr=0..1:log", "lr=-1..1:log"])
def test_a_range_without_anything_in_it_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="there is nothing between"):
        parse_space([text])
    parse_space(["lr=0..1"])
    parse_space(["lr=1e-9..1:log"])


def test_a_range_has_two_numbers_and_a_search_something_to_search_for() -> None:
    with pytest.raises(UserError, match="a range has two numbers"):
        parse_space(["lr=a..b"])
    with pytest.raises(UserError, match="nothing to search for"):
        parse_space(["lr=0.1"])


class Asked:
    """A trial that draws what it is told to, and notes how it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

    def _note(self, *given: Any, **how: Any) -> Any:
        self.asked.append((*given, *how.values()))
        return self.answer

    suggest_int = suggest_float = suggest_categorical = _note


def test_numbers_are_short_and_within_their_range() -> None:
    fraction = Range(0.012344, 0.987654, True)
    for drawn, short in ((0.123456, 0.1235), (0.0123441, 0.012344), (0.987651, 0.987654)):
        trial = Asked(drawn)
        assert fraction.suggest(trial, "lr") == short
        assert trial.asked == [("lr", 0.012344, 0.987654, True)]
    assert Range(0.5, 0.98765, False).suggest(Asked(0.98765), "lr") == 0.98765
    whole = Range(2, 8, False).suggest(Asked(5), "n")
    assert whole == 5 and isinstance(whole, int)
    mixed = Range(1, 2.5, False).suggest(Asked(2), "n")
    assert mixed == 2.0 and isinstance(mixed, float)
    assert OneOf(("a", "b")).suggest(Asked("b"), "n") == "b"
    assert Range(2, 8, False).examples == ["2", "8"] and OneOf(("a",)).examples == ["a"]


def test_every_end_and_every_choice_is_tried_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[list[str]] = []
    monkeypatch.setattr(tune, "_config", lambda what, changes: read.append(changes) or len(read))
    space = {"lr": Range(1, 2, False), "net": OneOf(("a", "b", "c"))}
    assert tune._check_examples("preset", ["rounds=1"], space) == 3
    assert read == [
        ["rounds=1", f"lr={lr}", f"net={net}"] for lr, net in ((1, "a"), (2, "b"), (2, "c"))
    ]


DATA = fb.small_federation()
METHODS = [fb.FedAvg(fb.small_net()), fb.Local(fb.small_net())]


def test_a_comparison_has_methods_seeds_and_test_data() -> None:
    grid = grid_of(METHODS, DATA, 2, 3, {"seed": 5})
    assert grid.cells == [(name, seed) for seed in (5, 6, 7) for name in ("fedavg", "local")]
    assert [grid.config("local", seed).seed for seed in (5, 7)] == [5, 7]
    assert list(grid_of(METHODS, DATA, 2, 1, {}).configs) == [("fedavg", 0), ("local", 0)]
    for seeds, said in ((0, "0 seeds: nothing to run"), ([1, 2], "seeds is a list, and says how")):
        with pytest.raises(UserError, match=said):
            grid_of(METHODS, DATA, 2, seeds, {})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="methods are compared on test data"):
        grid_of(METHODS, DATA, 2, 1, {"evaluation": {"parts": ["validation"]}})
    both = {"evaluation": {"parts": ["validation", "test"]}}
    assert len(grid_of(METHODS, DATA, 2, 1, both).cells) == 2


def test_methods_of_a_comparison_have_names_of_their_own() -> None:
    assert list(names_of(METHODS)) == ["fedavg", "local"]
    assert list(names_of({"one": METHODS[0], "two": METHODS[0]})) == ["one", "two"]
    for wrong, said in (
        (METHODS[0], "one method alone is not compared"),
        ([], "no method to compare"),
        ({}, "no method to compare"),
        ([METHODS[0], METHODS[0]], "two methods are called fedavg"),
    ):
        with pytest.raises(UserError, match=said):
            names_of(wrong)  # type: ignore[arg-type]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Runs in "finished" and "stopped" were begun with the configuration "c"."""
    noted: list[Any] = []
    for name in ("finished", "stopped"):
        (tmp_path / name).mkdir()
        (tmp_path / name / cells.CONFIG).touch()
    load = lambda path: SimpleNamespace(status=path.name, config=CONFIG)
    monkeypatch.setattr(cells, "load_run", load)
    monkeypatch.setattr(cells, "run", lambda *given: noted.append(("run", *given)))
    monkeypatch.setattr(cells, "resume", lambda *given: noted.append(("resume", *given)))
    monkeypatch.setattr(cells, "check_taken_over", lambda *given: noted.append(("look", *given)))
    return noted


CONFIG: Any = SimpleNamespace(ingredients="objects")


def test_a_finished_run_is_taken_over_and_the_others_are_done(
    calls: list[Any], tmp_path: Path
) -> None:
    places = {(name, 0): (tmp_path / name, CONFIG) for name in ("finished", "stopped", "new")}
    taken = cells.take_over(places)
    assert list(taken) == [("finished", 0)] and calls == [("look", tmp_path / "finished", CONFIG)]
    calls.clear()
    for name in ("finished", "stopped", "new"):
        done = cells.complete(tmp_path / name, CONFIG, "rounds", "notes")  # type: ignore[arg-type]
        assert (done is not None) == (name == "finished")
    assert calls == [
        ("resume", tmp_path / "stopped", "rounds", "notes", "objects"),
        ("run", CONFIG, tmp_path / "new", "rounds", "notes"),
    ]
    other: Any = SimpleNamespace(ingredients=None)
    with pytest.raises(RunFolderError, match="holds a run with other settings"):
        cells.complete(tmp_path / "finished", other, None, None)


def test_a_run_that_is_stopped_ends_silently_at_ranks_that_write_nothing() -> None:
    with pytest.raises(Interrupted, match="the first rank says") as stopped, _ending_elsewhere():
        raise KeyboardInterrupt
    assert vars(stopped.value)["silent"] is True
    with pytest.raises(ValueError, match="odd"), _ending_elsewhere():
        raise ValueError("odd")


def test_the_key_of_a_comparison_does_not_depend_on_the_order_of_its_options() -> None:
    tables = ({"b": 1, "a": {"d": 2, "c": 3}}, {"a": {"c": 3, "d": 2}, "b": 1})
    keys = {Grid(SimpleNamespace(resolved=lambda t=t: t), {}, 1).key() for t in tables}  # type: ignore[arg-type,misc]
    assert len(keys) == 1 and len(keys.pop()) == 8
