"""Leaderboards of runs that are made up, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError, UserError
from fedblocks.reports import compare, tables
from fedblocks.reports.comparison_text import COLUMNS, difference_text, rank_of, shown_cells
from fedblocks.reports.html import page
from fedblocks.reports.intervals import Interval
from fedblocks.runs.storage.main_metric import MainMetric


def run(*scores: float, status: str = "finished", metric: MainMetric | None = None) -> Any:
    """A finished run with these scores of its clients."""

    def summary(part: str = "test", reference: Any = None) -> dict[str, Any]:
        others = reference.scores() if reference is not None else {}
        pairs = [(value, others[c]) for c, value in enumerate(scores) if c in others]
        below = sum(own < other for own, other in pairs) / len(pairs) if pairs else None
        return {
            "mean": float(np.mean(scores)), "bottom_decile": min(scores), "worst": min(scores),
            "std": float(np.std(scores)), "share_below_reference": below,
        }  # fmt: skip

    return SimpleNamespace(
        status=status, metric=metric or MainMetric(), summary=summary,
        scores=lambda: dict(enumerate(scores)), bytes_down=3_000_000, bytes_up=1_000_000,
        warm_seconds=2.0, seconds=5.0, lanes=2, rounds=7, best=None,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compare, tables):
        monkeypatch.setattr(module, "check_same_data", lambda runs: None)


def test_a_row_is_compared_with_local_and_fedavg_but_not_with_itself() -> None:
    runs = {
        "local": {0: run(0.5, 0.7), 1: run(0.4, 0.4)},
        "fedavg": {0: run(0.6, 0.6), 1: run(0.6, 0.6)},
        "ditto": {0: run(0.8, 0.5), 1: run(0.9, 0.9), 2: run(0.1, 0.1, status="failed")},
    }
    first, second, third = compare.leaderboard_of(runs)
    assert [row["name"] for row in (first, second, third)] == ["ditto", "fedavg", "local"]
    assert first["seeds"] == 2 and first["mean"] == pytest.approx((0.65 + 0.9) / 2)
    assert first["worst"] == first["bottom_decile"] == pytest.approx((0.5 + 0.9) / 2)
    assert first["below_local"] == 0.25  # one of two clients of the first seed
    assert first["to_local"]["mean"] == pytest.approx((0.3 - 0.2 + 0.5 + 0.5) / 4)
    assert first["to_fedavg"]["mean"] == pytest.approx((0.2 - 0.1 + 0.3 + 0.3) / 4)
    assert second["to_fedavg"] is None and second["to_local"]["mean"] == pytest.approx(0.1)
    assert third["to_local"] is None and third["below_local"] is None
    assert third["to_fedavg"]["mean"] == pytest.approx(-0.1)
    assert [first[key] for key in ("megabytes", "seconds", "total_seconds", "lanes")] == [
        4,
        2,
        5,
        2,
    ]
    assert first["against_local"] is None  # of two seeds


@pytest.mark.parametrize(("better", "said"), [("higher", "better"), ("lower", "worse")])
def test_from_six_seeds_on_a_difference_is_called_better_or_worse(better: Any, said: str) -> None:
    metric = MainMetric("mae", better) if better == "lower" else MainMetric()
    one = lambda value: run(value, value + 0.1, metric=metric)
    runs = {
        "local": {seed: one(0.1) for seed in range(6)},
        "far": {seed: one(0.8 + seed / 100) for seed in range(6)},
        "near": {seed: one(0.1 + (-1) ** seed / 100) for seed in range(6)},
        "five": {seed: one(0.8) for seed in range(5)},
    }
    rows = {row["name"]: row for row in compare.leaderboard_of(runs)}
    assert rows["far"]["against_local"] == said and rows["near"]["against_local"] == "unclear"
    assert rows["five"]["against_local"] is None and rows["far"]["against_fedavg"] is None
    places = [row["name"] for row in compare.leaderboard_of(runs)]
    assert places[0 if better == "higher" else -1] == "far"
    assert compare.verdict_on(runs) == "not enough seeds for a verdict: 5 of at least 6"
    del runs["five"]
    assert compare.verdict_on(runs).startswith("6 seeds; better and worse mean")
    assert compare.verdict_on({}).endswith("0 of at least 6")


def test_a_verdict_needs_six_seeds_that_both_methods_have() -> None:
    runs = {
        "local": {seed: run(0.1, 0.2) for seed in range(6)},
        "fedavg": {seed: run(0.8, 0.9) for seed in range(4, 10)},
    }
    first, second = compare.leaderboard_of(runs)
    assert first["seeds"] == second["seeds"] == 6
    assert first["to_local"]["mean"] == pytest.approx(0.7)  # of seeds 4 and 5
    assert first["against_local"] is None and second["against_fedavg"] is None


def test_clients_that_only_one_of_two_runs_has_are_left_out() -> None:
    pairs: Any = [({0: 0.5, 2: 0.7}, {0: 0.4, 1: 0.9, 2: 0.5}), ({0: 1.0}, {0: 0.5, 3: 1.0})]
    found = compare.differences_of(pairs)
    assert found[0].tolist() == pytest.approx([0.1, 0.2])
    assert found[1, 0] == 0.5 and np.isnan(found[1, 1])
    apart = {0: SimpleNamespace(scores=lambda: {0: 1.0})}
    other = {0: SimpleNamespace(scores=lambda: {1: 1.0}), 1: run(0.5)}
    assert compare._difference(apart, other) == (None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clients", "draws"), [(1, 10_000), (2_000, 10_000), (4_000, 5_000), (100_000, 1_000)]
)
def test_many_clients_are_drawn_less_often(
    clients: int, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    keep = lambda differences, draws: asked.append((differences.shape, draws))
    monkeypatch.setattr(compare, "interval_of", keep)
    many = SimpleNamespace(scores=lambda: dict.fromkeys(range(clients), 0.5))
    assert compare._difference({0: many}, {0: many}) == (None, 1)  # type: ignore[dict-item]
    assert asked == [((1, clients), draws)]


def test_an_interval_over_a_few_seeds_is_stretched_to_students() -> None:
    differences = np.array([[0.1, 0.1], [0.3, 0.3]])  # seeds differ, clients do not
    found = compare.interval_of(differences)
    half = 12.706 * np.sqrt(0.02) / np.sqrt(2)
    assert found.mean == pytest.approx(0.2) and found.high - found.low == pytest.approx(2 * half)
    assert found.low == pytest.approx(0.2 - half)
    flat = compare.interval_of(np.full((2, 2), 0.1))
    assert (flat.low, flat.high) == pytest.approx((0.1, 0.1))
    wide = np.array([[-1.0, 1.0], [-1.0, 1.0]])  # clients differ, seeds do not: the bootstrap's
    assert compare.interval_of(wide).high > 0.4


@pytest.mark.parametrize(
    ("low", "high", "sign", "said"),
    [
        (0.1, 0.3, 1, "better"), (0.1, 0.3, -1, "worse"), (-0.3, -0.1, 1, "worse"),
        (-0.3, -0.1, -1, "better"), (0.0, 0.2, 1, "unclear"), (-0.2, 0.0, 1, "unclear"),
        (-0.1, 0.1, -1, "unclear"),
    ],
)  # fmt: skip
def test_a_verdict_needs_an_interval_without_zero(
    low: float, high: float, sign: int, said: str
) -> None:
    assert compare.verdict_of(Interval((low + high) / 2, low, high, 0.95), sign) == said


def test_runs_of_unlike_tasks_are_not_compared() -> None:
    runs = {"a": {0: run(0.5)}, "b": {0: run(0.5, metric=MainMetric("mae", "lower"))}}
    with pytest.raises(DataError, match="some runs are judged by accuracy, others by mae"):
        compare.metric_of(runs)
    assert compare.metric_of({}).name == "accuracy"


def test_a_configuration_and_objects_do_not_go_together() -> None:
    for names, rounds, settings, said in [
        (lambda seed: None, None, {}, "data beside"),
        (None, 3, {}, "rounds beside"),
        (["ditto"], None, {"engine": "auto"}, "engine beside"),
    ]:
        with pytest.raises(UserError, match=said):
            compare._refuse_objects(names, rounds, settings)
    compare._refuse_objects(["ditto"], None, {})
    compare._refuse_objects(None, None, {})
    with pytest.raises(UserError, match="methods need data"):
        compare._refuse_names(None, None, ())
    for methods, changes in ((["a"], ()), (None, ["rounds=2"])):
        with pytest.raises(UserError, match="names or changes of a configuration"):
            compare._refuse_names(3, methods, changes)
    compare._refuse_names(3, None, ())


def test_rows_are_ranked_by_their_mean_and_those_without_one_are_last() -> None:
    means = [0.3, float("nan"), 0.9, None]
    rows = [{"mean": mean} for mean in means]
    assert [row["mean"] for row in sorted(rows, key=lambda row: rank_of(1, row))][:2] == [0.9, 0.3]
    assert [row["mean"] for row in sorted(rows, key=lambda row: rank_of(-1, row))][:2] == [0.3, 0.9]


def test_columns_that_are_empty_everywhere_are_not_shown() -> None:
    interval = {"mean": 0.1, "low": -0.05, "high": 0.25}
    row = {**dict.fromkeys(COLUMNS), "name": "a", "mean": 0.5, "to_local": interval}
    row |= {"against_local": "unclear", "against_fedavg": None}
    (shown,) = shown_cells([row])
    assert shown == {"name": "a", "mean": 0.5, "to_local": "+0.100 [-0.050, +0.250] unclear"}
    assert difference_text(None, "better") == "-"
    assert difference_text(interval, None) == "+0.100 [-0.050, +0.250]"


def test_runs_side_by_side_have_their_best_round_by_validation() -> None:
    best = SimpleNamespace(summaries={"test": {"personal": {"mean": 0.9}}})
    runs = {"a": run(0.5, 0.7), "b": run(0.6, 0.8)}
    runs["b"].best = best
    first, second = tables.leaderboard(runs, reference="a")
    assert [first["name"], second["name"]] == ["b", "a"]
    assert (first["best_by_validation"], second["best_by_validation"]) == (0.9, None)
    assert (first["below_reference"], first["rounds"], first["megabytes"]) == (0.0, 7, 4.0)
    assert [first[key] for key in ("seconds", "total_seconds", "lanes")] == [2.0, 5.0, 2]
    assert first["std"] == pytest.approx(0.1) and first["worst"] == 0.6
    assert tables.leaderboard(runs, part="validation")[0]["below_reference"] is None
    assert tables.leaderboard(runs, part="validation")[0]["best_by_validation"] is None


def test_a_template_that_asks_for_what_is_not_there_fails_and_values_are_escaped() -> None:
    templates = page.environment()
    made = templates.from_string("{{ a }}\n  {% if a %}\nyes\n  {% endif %}\n{{ b|number }}")
    assert made.render(a="<b>", b=None) == "&lt;b&gt;\nyes\n-"
    with pytest.raises(Exception, match="is undefined"):
        made.render(b=1)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_command_that_reads_a_program_is_handed_what_a_comparison_uses(
    by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []
    played: list[Any] = []

    def play(grid: Any, out: Any, on_run: Any) -> Any:
        played.append((grid, out, on_run))
        raise UserError("stop here", "")

    monkeypatch.setattr(compare, "hand_over", lambda recipes: handed.append(recipes()))
    monkeypatch.setattr(compare, "refuse_ranks", lambda name: handed.append(name))
    monkeypatch.setattr(compare, "recipes_of", lambda *given: ["recipes", *given])
    monkeypatch.setattr(compare, "read_grid", lambda *given: ("read", *given))
    monkeypatch.setattr(compare, "grid_of", lambda *given: ("made", *given))
    monkeypatch.setattr(compare, "play_grid", play)
    with pytest.raises(UserError, match="stop here"):
        if by_name:
            compare.compare("digits", ["ditto"], 3, "out", ["rounds=2"])
        else:
            compare.compare(["method"], "data", rounds=2, sampler="own")  # type: ignore[list-item, arg-type]
    (grid, out, _), name, used = played[0], *handed
    assert name == "compare"
    if by_name:
        assert used == [] and grid == ("read", "digits", ["ditto"], 3, ["rounds=2"])
        assert str(out) == "out"
    else:
        assert used == ["recipes", ["method"], "data", "own"] and out is None
        assert grid == ("made", ["method"], "data", 2, 6, {"sampler": "own"})
