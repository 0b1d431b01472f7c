"""Which clients were scored after a round, and what is said of the others, from small records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedblocks.core.errors import UserError
from fedblocks.runs.clients import clients_from, remark_on_rows, remarks_on_part
from fedblocks.runs.curves import column_of, curves_of
from fedblocks.runs.evaluated import (
    evaluated_round,
    evaluations_of,
    last_evaluated,
)
from fedblocks.runs.refusals import Refused, read_refusals
from fedblocks.runs.scored import (
    POPULATION,
    count_scored,
    leave_out_refused,
    read_scored,
    remark_on_scored,
    remarks_on_means,
    scored_text,
    unscored_clients,
)
from fedblocks.runs.storage.record import ClientMetric, RefusalRow, RoundRecord
from fedblocks.runs.storage.store import RunStore


def metric(
    part: str, view: str, client: int, right: float = 1.0, loss: float = 0.5
) -> ClientMetric:
    return ClientMetric(part, view, client, right, 2.0, loss)  # type: ignore[arg-type]


PERSONAL, SHARED = "personal", "shared"
# after round 2: three clients on test data, two on validation data, one that never trained
ROWS = [
    *(metric("test", PERSONAL, client, client / 2, client) for client in range(3)),
    *(metric("validation", PERSONAL, client, 2.0, 1.0) for client in range(2)),
    metric("test", SHARED, 0), metric("unseen", PERSONAL, 9),
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Round 1 was not evaluated; in round 2 something of two clients was refused."""
    store = RunStore.create(tmp_path / "run.sqlite")
    store.record_round(RoundRecord(1, 1.0, 4))
    refusals = [RefusalRow(2, "late", "away"), RefusalRow(1, "not-finite", "a NaN")]
    store.record_round(RoundRecord(2, 1.0, 4, metrics=ROWS, refusals=refusals))
    return store


def test_clients_are_scored_if_they_are_in_every_part_that_all_have(store: RunStore) -> None:
    assert count_scored(ROWS) == 2 and count_scored([]) == 0
    assert count_scored(ROWS[:3]) == 3 and count_scored(ROWS[-2:]) == 0
    assert read_scored(store, 2) == (2, 0) and read_scored(store, 1) == (0, 0)
    store.set_meta(POPULATION, "4")
    assert read_scored(store, 2) == (2, 4) and read_scored(store, 1) == (0, 4)
    assert remark_on_scored(store, 2) == "2 of 4 scored after round 2"
    assert remark_on_scored(store, 1) == ""
    assert remarks_on_means(store, 2, 2) == ["2 of 4 scored after round 2"]
    assert remarks_on_means(store, None, None) == []
    assert unscored_clients(store, 2) == {1, 2} and unscored_clients(store, 1) == set()


@pytest.mark.parametrize(
    ("scored", "population", "text"),
    [(0, 4, ""), (1, 4, "1 of 4 scored"), (3, 4, "3 of 4 scored"), (4, 4, ""), (2, 0, "")],
)
def test_scores_of_some_clients_are_told(scored: int, population: int, text: str) -> None:
    assert scored_text(scored, population) == text


def test_scores_of_a_refused_client_are_left_out_and_of_an_absent_one_kept() -> None:
    refusals = [RefusalRow(0, "late"), RefusalRow(1, "not-finite"), RefusalRow(9, "shape")]
    left = leave_out_refused(ROWS, refusals)
    assert [(row.part, row.client) for row in left] == [
        ("test", 0), ("test", 2), ("validation", 0), ("test", 0),
    ]  # fmt: skip


def test_refusals_are_counted_by_round_and_client(store: RunStore) -> None:
    refused = read_refusals(store)
    assert refused[:4] == (2, 8, 2, 4) and refused.clients == (1, 2)
    assert refused.reason == "late: away"  # the first of the last round
    assert refused.text == (
        "2 of 4 updates of the last round were refused (clients 1 and 2; the latest: late: away)"
    )
    store.record_round(RoundRecord(3, 1.0, 5))
    later = read_refusals(store)
    assert later.text.startswith("2 of 13 updates were refused") and later.advice == ""


def test_many_refused_clients_are_counted_and_few_are_named() -> None:
    three, four = ((2, 9, 0, 3, "not-finite: x", tuple(range(n))) for n in (3, 4))
    assert "(clients 0 and 1 and 2; the latest" in Refused(*three).text
    assert "(4 clients; the latest" in Refused(*four).text
    assert "large inputs" in Refused(*four).advice
    lost = Refused(0, 9, 0, 3, "", unscored=(5,), unscored_reason="odd")
    assert lost.text == "client 5 could not be evaluated (odd)" and lost.advice == ""
    assert Refused(0, 9, 0, 3, "").text == ""
    assert Refused(1, 9, 0, 3, "not-finite: x", cause="look there").advice == "look there"


def test_the_last_evaluation_is_that_of_the_last_round_with_one(store: RunStore) -> None:
    assert last_evaluated(store) == 2
    assert evaluations_of(store, 2) == {
        "test": [PERSONAL, SHARED], "unseen": [PERSONAL], "validation": [PERSONAL],
    }  # fmt: skip
    assert evaluated_round(store, None, "test", SHARED) == 2
    for asked, said in (
        ((1, "test", PERSONAL), "round = 1: it was not evaluated"),
        ((2, "train", PERSONAL), 'part = "train": round 2 has no evaluation'),
        ((2, "validation", SHARED), 'view = "shared": round 2 has no validation'),
    ):
        with pytest.raises(UserError) as refused:
            evaluated_round(store, *asked)  # type: ignore[arg-type]
        assert said in refused.value.message
    store.record_round(RoundRecord(3, 1.0, 4))
    assert last_evaluated(store) == 2


def test_a_record_without_evaluations_says_so(tmp_path: Path) -> None:
    empty = RunStore.create(tmp_path / "run.sqlite")
    assert last_evaluated(empty) is None
    with pytest.raises(UserError, match="no evaluation yet"):
        evaluated_round(empty, None, "test", PERSONAL)


@pytest.mark.parametrize(("count", "listed"), [(8, "1, 2, 3, 4, 5, 6, 7, 8"), (9, "7, ..., 9")])
def test_rounds_that_were_evaluated_are_listed_up_to_eight(
    count: int, listed: str, tmp_path: Path
) -> None:
    many = RunStore.create(tmp_path / "run.sqlite")
    for round in range(1, count + 1):
        many.record_round(RoundRecord(round, 1.0, 1, metrics=ROWS[:1]))
    with pytest.raises(UserError) as refused:
        evaluated_round(many, 20, "test", PERSONAL)
    assert refused.value.fix.endswith(listed)


def test_curves_are_means_over_clients_of_each_part_and_model(store: RunStore) -> None:
    """Accuracies 0, 1/4 and 1/2 of the test clients; losses 0, 1 and 2."""
    (row,) = curves_of(store)
    assert row == {
        "round": 2, "test": 0.25, "test (shared)": 0.5, "unseen": 0.5, "validation": 1.0,
    }  # fmt: skip
    (losses,) = curves_of(store, "loss")
    assert (losses["test"], losses["validation"], losses["test (shared)"]) == (1.0, 1.0, 0.5)
    assert column_of("test", PERSONAL) == "test" and column_of("test", SHARED) == "test (shared)"


def kept(**rows: list[int]) -> str:
    return json.dumps({"names": ["a", "b", "c"], "rows": rows})


def test_names_and_sizes_are_read_from_the_record() -> None:
    assert clients_from(kept(train=[5, 6, 7], test=[1, 1, 1])) == {
        0: {"name": "a", "size": 5}, 1: {"name": "b", "size": 6}, 2: {"name": "c", "size": 7},
    }  # fmt: skip
    assert clients_from(None) == clients_from("{}") == {}


def test_clients_without_rows_in_a_part_are_counted_among_those_with_any() -> None:
    text = kept(train=[5, 6, 0], test=[1, 0, 0], validation=[0, 0, 0])
    assert remark_on_rows(text, "test") == "1 of 2 clients have no test rows"
    assert remark_on_rows(text, "validation") == "no client has validation rows"
    assert remark_on_rows(text, "train") == "" == remark_on_rows(None, "train")


def test_clients_with_rows_and_no_known_target_are_counted() -> None:
    text = kept(train=[5, 6, 7], test=[1, 2, 0])
    rows = [{"client": client, "examples": own} for client, own in enumerate([0.0, 4.0, 0.0, 0.0])]
    assert remarks_on_part(text, "test", rows)[1] == (
        "1 of 2 clients with test rows has no known target in them, and has no score"
    )
    none = [{"client": client, "examples": 0.0} for client in range(2)]
    assert remarks_on_part(text, "test", none)[1].startswith("2 of 2 clients with test rows have")
    assert remarks_on_part(text, "test", [{"client": 1, "examples": 1.0}])[1] == ""
