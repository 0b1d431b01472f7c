"""Scores of the suite against numbers worked out by hand."""

from typing import Any

import pytest

from fedblocks.core.errors import DataError
from fedblocks.recipes.suite.entrants import TUNED
from fedblocks.recipes.suite.numbers import read_counts, write_counts
from fedblocks.recipes.suite.scores import PANEL, BedRuns, read_runs, score_of
from fedblocks.recipes.suite.summary import summarise_method
from fedblocks.reports.compare import differences_of, interval_of

HALF = "0:5/10 1:5/10"


def seed(test: str, new: str = "", partition: str = "same", **more: Any) -> dict[str, Any]:
    return {"test": test, "new": new, "bytes": 4_000, "seconds": 2.0, "partition": partition} | more


def bed(name: str = "bed", **methods: list[dict[str, Any]] | str) -> BedRuns:
    """A bed from the runs of methods, one for each seed; text is why a method failed."""
    cells: dict[str, Any] = {}
    for method, runs in methods.items():
        key = f"{name}/{method.replace('_tuned', TUNED)}"
        if isinstance(runs, str):
            cells[key] = {"seeds": {}, "error": runs}
        else:
            cells[key] = {"seeds": {str(number): run for number, run in enumerate(runs)}}
    return read_runs(name, [{"cells": {**cells, "other/mine": {"seeds": {}}}}])


def test_counts_are_read_as_they_were_written_and_clients_without_examples_are_left_out() -> None:
    rows = [
        {"client": 0, "correct": 12.0, "examples": 15.0},
        {"client": 3, "correct": 9.0, "examples": 14.0},
        {"client": 4, "correct": 0.0, "examples": 0.0},
    ]
    assert write_counts(rows) == "0:12/15 3:9/14"
    assert read_counts("0:12/15 3:9/14") == {0: (12.0, 15.0), 3: (9.0, 14.0)}


def test_the_error_reduction_is_the_difference_as_a_share_of_the_references_error() -> None:
    mine = [seed("0:8/10 1:6/10"), seed("0:9/10 1:7/10")]  # means .7 and .8
    score = score_of("mine", bed(mine=mine, local=[seed(HALF), seed(HALF)]))
    assert score is not None
    assert score["mean"] == pytest.approx(0.75) and score["seeds"] == 2
    gain = score["gains"]["local"]
    assert gain["difference"]["mean"] == pytest.approx(0.25)
    assert gain["error_reduction"]["mean"] == pytest.approx(0.25 / 0.5)
    half = {0: 0.5, 1: 0.5}
    plain = interval_of(differences_of([({0: 0.8, 1: 0.6}, half), ({0: 0.9, 1: 0.7}, half)]))
    assert gain["difference"]["low"] == pytest.approx(plain.low)
    assert gain["error_reduction"]["low"] == pytest.approx(max(-1, plain.low / 0.5))
    assert score["gains"]["fedavg"] is None


def test_an_error_reduction_is_clipped_to_all_of_the_error() -> None:
    runs = bed(mine=[seed("0:2/10")], local=[seed("0:9/10")])  # -.7 of an error of .1
    score = score_of("mine", runs)
    assert score is not None and score["gains"]["local"]["error_reduction"]["mean"] == -1


def test_a_reference_without_errors_leaves_nothing_to_gain() -> None:
    score = score_of("mine", bed(mine=[seed("0:9/10")], local=[seed("0:10/10")]))
    assert score is not None
    reduction = score["gains"]["local"]["error_reduction"]
    assert reduction["mean"] == pytest.approx(-0.1) and reduction["high"] == 0


def test_one_answer_fewer_harms_nobody_and_two_do() -> None:
    mine = [seed("0:4/10 1:3/10 2:9/10"), seed("0:5/10 1:5/10 2:2/10")]
    local = [seed("0:5/10 1:5/10 2:5/10")] * 2
    score = score_of("mine", bed(mine=mine, local=local))
    assert score is not None
    # client 1 of the first seed (2 fewer) and client 2 of the second (3 fewer), of 6
    assert score["harmed"]["local"] == pytest.approx(2 / 6) and score["harmed"]["fedavg"] is None


def test_a_method_that_failed_with_a_seed_counts_as_local_with_all_of_them() -> None:
    mine = {"seeds": {"0": seed("0:8/10")}, "error": "mine, seed 1: odd"}
    cells = {
        "bed/mine": mine,
        "bed/other": {**mine, "seeds": {}},
        "bed/local": {"seeds": {"0": seed("0:5/10"), "1": seed("0:4/10")}},
    }
    runs = read_runs("bed", [{"cells": cells}])
    own, other = score_of("mine", runs), score_of("other", runs)
    assert own is not None and other is not None
    for one in (own, other):
        assert (one["mean"], one["seeds"]) == (pytest.approx(0.45), 2)
    assert own["error"] == other["error"] == "mine, seed 1: odd"


def test_decile_new_clients_and_bytes_are_means_over_seeds() -> None:
    ten = " ".join(f"{client}:{client}/10" for client in range(1, 11))  # accuracies .1 to 1
    mine = [seed(ten, "11:2/4"), seed(ten, "11:4/4", bytes=6_000)]
    score = score_of("mine", bed(mine=mine))
    assert score is not None
    assert score["bottom_decile"] == pytest.approx(0.2)  # sorted(accuracies)[10 // 10]
    assert score["new"] == pytest.approx(0.75) and score["bytes"] == pytest.approx(500)


def panel(**more: list[dict[str, Any]]) -> dict[str, Any]:
    """The panel with accuracies .1 to .8, one seed."""
    return {name: [seed(f"0:{i}/10")] for i, name in enumerate(PANEL, 1)} | more


@pytest.mark.parametrize(
    ("right", "rank"), [(9, 1), (0, 9), (5, 4.5)]
)  # 5/10: three above (6, 7, 8), one is equal: 1 + 3 + .5
def test_the_rank_is_the_place_among_the_panel_and_equal_ones_share_it(
    right: int, rank: float
) -> None:
    score = score_of("mine", bed(**panel(mine=[seed(f"0:{right}/10")])))
    assert score is not None and score["rank"] == rank


def test_the_panel_is_ranked_by_the_seeds_that_all_have() -> None:
    """With its second seed, FedAvg would be above 5/10, or no longer below it."""
    for more in ("0:10/10", "0:0/10"):
        runs = panel(mine=[seed("0:5/10")])
        runs["fedavg"].append(seed(more))
        score = score_of("mine", bed(**runs))
        assert score is not None and score["rank"] == 4.5


def test_a_member_of_the_panel_is_ranked_among_the_seven_others() -> None:
    score = score_of(PANEL[0], bed(**panel()))
    assert score is not None and score["rank"] == 8


def test_there_is_no_rank_unless_all_of_the_panel_were_run() -> None:
    some = panel(mine=[seed(HALF)])
    del some["apfl"]
    score = score_of("mine", bed(**some))
    assert score is not None and score["rank"] is None


def test_a_method_that_failed_counts_as_local_and_is_marked() -> None:
    runs = bed(mine="it crashed", local=[seed("0:7/10")], fedavg=[seed("0:9/10")])
    score = score_of("mine", runs)
    assert score is not None and score["mean"] == pytest.approx(0.7)
    assert score["error"] == "it crashed"
    assert score["gains"]["fedavg"]["difference"]["mean"] == pytest.approx(-0.2)


def test_a_tuned_row_is_compared_with_tuned_references() -> None:
    runs = bed(mine_tuned=[seed("0:8/10")], local_tuned=[seed("0:6/10")], local=[seed("0:1/10")])
    score = score_of("mine" + TUNED, runs)
    assert score is not None
    assert score["gains"]["local"]["difference"]["mean"] == pytest.approx(0.2)
    assert score["gains"]["fedavg"] is None


def test_runs_of_one_seed_on_other_data_are_not_compared() -> None:
    runs = bed(mine=[seed(HALF)], local=[seed(HALF, partition="other")])
    with pytest.raises(DataError, match="other data on bed, seed 0"):
        score_of("mine", runs)


def test_only_six_seeds_have_a_verdict() -> None:
    for seeds, verdict in ((5, None), (6, "better")):
        # a little noise: an interval needs some
        mine = [seed(f"0:{8 + n % 2}/10 1:8/10") for n in range(seeds)]
        score = score_of("mine", bed(mine=mine, local=[seed(HALF)] * seeds))
        assert score is not None and score["gains"]["local"]["verdict"] == verdict


def test_a_method_is_below_both_only_where_it_is_below_local_and_fedavg() -> None:
    both = bed("both", mine=[seed("0:1/10")], local=[seed("0:2/10")], fedavg=[seed("0:3/10")])
    one = bed("one", mine=[seed("0:2/10")], local=[seed("0:1/10")], fedavg=[seed("0:3/10")])
    alone = bed("alone", mine=[seed("0:1/10")], local=[seed("0:2/10")])
    row = summarise_method("mine", [both, one, alone])
    assert row["below_both"] == ["both"] and row["compared"] == ["both", "one"]
    assert summarise_method("local", [both])["below_both"] == []
    close = bed(mine=[seed("0:495/999")], local=[seed("0:500/999")], fedavg=[seed("0:600/999")])
    assert summarise_method("mine", [close])["below_both"] == []  # half a point below Local


def test_the_mean_over_beds_is_that_of_the_shares_of_error_with_students_interval() -> None:
    first = bed(
        "first",
        mine=[seed("0:8/10"), seed("0:6/10")],
        fedavg_ft=[seed("0:5/10"), seed("0:5/10")],  # error .5; reductions .6 and .2
    )
    second = bed(
        "second",
        mine=[seed("0:8/10"), seed("0:8/10")],
        fedavg_ft=[seed("0:8/10"), seed("0:8/10")],  # reductions 0 and 0
    )
    row = summarise_method("mine", [first, second])
    mean = row["error_reduction"]["fedavg_ft"]
    assert mean["mean"] == pytest.approx(0.2)
    # seeds: .3 and .1; deviation .1414, over sqrt(2) is .1, times 12.706
    assert mean["half_width"] == pytest.approx(12.706 * 0.1)


def test_a_method_that_was_not_run_on_every_bed_has_no_mean() -> None:
    run = bed("run", mine=[seed(HALF)], fedavg_ft=[seed(HALF)])
    missing = bed("missing", fedavg_ft=[seed(HALF)])
    row = summarise_method("mine", [run, missing])
    assert (row["beds"], row["of"]) == (1, 2)
    assert row["error_reduction"]["fedavg_ft"] is None and row["rank"] is None
