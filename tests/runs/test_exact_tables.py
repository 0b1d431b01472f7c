"""Small tables and counts of runs, exactly as they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError
from fedblocks.data.federation import Rows
from fedblocks.runs import clients as client_names
from fedblocks.runs.clients import clients_from, clients_text, remark_on_rows
from fedblocks.runs.faults import faults_of
from fedblocks.runs.federations import _as_it_is, federation_of, hold_out, idle_seed
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.refusals import Refused, read_refusals
from fedblocks.runs.rounds import is_due
from fedblocks.runs.stopping import EarlyStopping, StopRun
from fedblocks.runs.tables import SummaryTable, TableRows

Table = dict[str, Any]


def test_rows_are_aligned_and_a_missing_cell_is_a_dash() -> None:
    table = TableRows([{"a": 1, "bb": 0.12345}, {"a": 100, "c": None}], title="What")
    assert str(table).splitlines() == [
        "What",
        "  a     bb  c",
        "  1  0.123  -",
        "100      -  -",
    ]
    assert str(TableRows([{"a": "x"}])) == "a\nx" and len(table) == 2 and table[1]["a"] == 100


def test_a_name_in_a_table_can_neither_command_a_terminal_nor_break_the_line() -> None:
    names = ["\x1b[31mred", "b\nc", "Zoë"]
    shown = str(TableRows([{"client": name} for name in names])).splitlines()
    assert [line.strip() for line in shown[1:]] == ["\\x1b[31mred", "b\\nc", "Zoë"]


def test_a_notebook_gets_the_same_without_tags_of_others(tmp_path: Path) -> None:
    table = TableRows([{"<a>": "<b>"}], title="<t>")
    shown = table._repr_html_()
    assert "<caption>&lt;t&gt;</caption>" in shown and "<th>&lt;a&gt;</th>" in shown
    assert "<td>&lt;b&gt;</td>" in shown
    path = TableRows([{"a": 1 / 3}, {"b": "x,y"}]).to_csv(tmp_path / "t.csv")
    assert path.read_text().splitlines() == ["a,b", f"{1 / 3},", ',"x,y"']
    both = SummaryTable({"mean": 0.5}, TableRows([{"a": 1}]), ["", "few < many"])
    assert str(both) == "a\n1\nfew < many" and both["mean"] == 0.5
    assert both._repr_html_().endswith("<p>few &lt; many</p>")


def federation(train: list[int], test: list[int]) -> Any:
    rows = lambda sizes: Rows.of([range(size) for size in sizes])
    parts = {"train": rows(train), "test": rows(test)}
    names = [f"c{i}" for i in range(len(train))]
    return SimpleNamespace(clients=len(train), parts=parts, names=names)


def test_names_and_sizes_of_clients_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = clients_text(federation([3, 0], [1, 2]))
    assert clients_from(text) == {0: {"name": "c0", "size": 3}, 1: {"name": "c1", "size": 0}}
    assert clients_from(None) == {} == clients_from("{}")
    monkeypatch.setattr(client_names, "MOST", 2)
    assert json.loads(clients_text(federation([3, 0], [1, 2])))["names"] == ["c0", "c1"]
    assert clients_text(federation([1, 1, 1], [1, 1, 1])) == "{}"


@pytest.mark.parametrize(
    ("train", "test", "remark"),
    [
        ([3, 1], [1, 2], ""),
        ([3, 1, 2], [1, 0, 0], "2 of 3 clients have no test rows"),
        ([3, 1], [0, 0], "no client has test rows"),
        ([3, 0], [0, 0], "no client has test rows"),  # one holds nothing at all
        ([3, 0, 1], [1, 0, 0], "1 of 2 clients have no test rows"),
    ],
)
def test_clients_without_rows_of_a_part_are_counted(
    train: list[int], test: list[int], remark: str
) -> None:
    assert remark_on_rows(clients_text(federation(train, test)), "test") == remark
    assert remark_on_rows(None, "test") == ""


def test_updates_that_were_not_used_are_counted_in_all_and_in_the_last_round() -> None:
    refusals = [(1, 0), (2, 0), (2, 1)]
    tables: dict[str, list[Any]] = {
        "SELECT DISTINCT": [{"round": round, "client": client} for round, client in refusals],
        "SELECT round": [{"round": 1, "clients": 4}, {"round": 2, "clients": 3}],
        "SELECT reason": [{"reason": "not-finite", "detail": "NaN"}],
        "SELECT client": [],
        "SELECT text": [],
    }
    store: Any = SimpleNamespace(
        rows=lambda query: next(rows for start, rows in tables.items() if query.startswith(start))
    )
    refused = read_refusals(store)
    assert refused == Refused(3, 7, 2, 3, "not-finite: NaN", (0, 1), clients_of_last=(0, 1))
    assert (
        refused.text == "2 of 3 updates of the last round were refused "
        "(clients 0 and 1; the latest: not-finite: NaN)"
    )
    others = refused._replace(clients=(0, 1, 2, 7, 9))  # most of them in rounds before
    assert "(clients 0 and 1; the latest" in others.text
    earlier = refused._replace(in_last_round=0, clients=(2,))
    assert earlier.text == "3 of 7 updates were refused (client 2; the latest: not-finite: NaN)"
    many = earlier._replace(clients=(0, 1, 2, 3))
    assert many.text == "3 of 7 updates were refused (4 clients; the latest: not-finite: NaN)"
    assert Refused(0, 7, 0, 3, "").text == ""
    tables["SELECT client"] = [{"client": 1, "detail": "KeyError: 'x'"}]
    assert read_refusals(store).text.endswith("; client 1 could not be evaluated (KeyError: 'x')")
    tables["SELECT client"].append({"client": 0, "detail": "odd"})
    assert read_refusals(store).text.endswith("; clients 0 and 1 could not be evaluated (odd)")
    tables |= {start: [] for start in tables}
    assert read_refusals(store) == Refused(0, 0, 0, 0, "")


def faults(small: Table, **chosen: Any) -> dict[int, str]:
    config = Config.of({**small, "faults": chosen}) if chosen else Config.of(small)
    sampling = SimpleNamespace(names=[f"client {number}" for number in range(3000)])
    prepared = SimpleNamespace(config=config, sampling=sampling)
    return faults_of(prepared, 3, range(1000))  # type: ignore[arg-type, return-value]


def test_faults_come_as_often_as_they_are_asked_for_and_to_nobody_else(small: Table) -> None:
    assert faults(small) == {} and len(faults(small, drop=1.0)) == 1000
    some = faults(small, drop=0.1, slow=0.2, crash=0.1, corrupt=0.3)
    counts = {name: [*some.values()].count(name) for name in ("drop", "slow", "crash", "corrupt")}
    for name, share in {"drop": 100, "slow": 200, "crash": 100, "corrupt": 300}.items():
        assert abs(counts[name] - share) < 50  # 1000 draws: three deviations are 43 of 300
    assert faults(small, drop=1.0, clients=[5, 2000]) == {5: "drop"}


def test_clients_are_held_out_so_that_somebody_is_on_each_side(small: Table) -> None:
    def sides(unseen: float) -> tuple[list[int], list[int]]:
        return hold_out(Config.of({**small, "data": {**small["data"], "unseen": unseen}}), data)

    data = federation_of(Config.of(small))
    seen, unseen = sides(0.25)
    assert len(seen) == 3 and sorted(seen + unseen) == [0, 1, 2, 3] and seen == sorted(seen)
    assert sides(0.0) == ([0, 1, 2, 3], []) and len(sides(0.75)[0]) == 1
    for wrong in (0.1, 0.9):
        with pytest.raises(DataError, match=r"data\.unseen"):
            sides(wrong)


@pytest.mark.parametrize(
    ("name", "value"), [("clients", 3), ("split", [0.5, 0.2, 0.3]), ("stratified", True),
                        ("partition", {"name": "iid"})],
)  # fmt: skip
def test_a_data_set_that_divides_itself_takes_no_partition(
    name: str, value: Any, small: Table
) -> None:
    data = {"name": "gaussian", "partition": {"name": "by_user"}}
    whole: Any = SimpleNamespace(clients=4)
    plain = Config.of({**small, "data": data})
    assert _as_it_is(plain, whole) is whole
    assert _as_it_is(Config.of({**small, "data": {**data, "clients": 4}}), whole) is whole
    with pytest.raises(DataError, match=rf"data\.{name}"):
        _as_it_is(Config.of({**small, "data": {"clients": 4, **data, name: value}}), whole)
    seeded = Config.of({**small, "data": {**data, "seed": 2}})
    assert "data.seed = 2 changes nothing" in idle_seed(seeded)[0] and idle_seed(plain) == []
    assert idle_seed(Config.of({**small, "data": {**data, "seed": 2, "unseen": 0.5}})) == []


@pytest.mark.parametrize(
    ("every", "due"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])]
)
def test_models_are_tried_every_so_many_rounds_and_after_the_last(
    every: int, due: list[int], small: Table
) -> None:
    config = Config.of({**small, "rounds": 5, "evaluation": {"every": every}})
    prepared: Any = SimpleNamespace(config=config)
    assert [done for done in range(1, 6) if is_due(prepared, done - 1)] == due


def test_patience_counts_evaluations_that_are_not_better_from_the_first_on() -> None:
    look = lambda stopping, score: stopping(RoundDone(1, 9, 4, 0.0, 0, 0, 0, {"validation": score}))
    stopping = EarlyStopping(2, least=0.1)
    assert stopping.waited == 0
    for score in (0.5, 0.6, 0.65):  # the second is no more than 0.1 better, the third is
        look(stopping, score)
    assert (stopping.waited, stopping.best) == (0, 0.65)
    look(stopping, 0.7)
    with pytest.raises(StopRun, match="in 2 evaluations"):
        look(stopping, 0.7)
