"""What a report says of those who were absent, how runs get more rounds, and who else is told."""

from __future__ import annotations

import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.engines.close_round import Report
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs import extension, faults, python
from fedblocks.runs.client_rows import client_rows
from fedblocks.runs.ranks import build
from fedblocks.runs.ranks import run as ranks_run
from fedblocks.runs.refusals import NOT_FINITE, ON_PURPOSE
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import Note


def test_who_was_absent_on_purpose_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came late or crashed had been sent something; 5 is of another rank."""
    job = SimpleNamespace(sent=SimpleNamespace(bytes_down={"model": torch.tensor([9])}), ids=[3])
    asked: list[Any] = []
    experiment = SimpleNamespace(
        members=lambda clients: {"a": [c for c in clients if c != 5], "b": [5]},
        own=lambda ids: [c for c in ids if c != 5],
        training_job=lambda *given: asked.append(given) or job,
    )
    prepared: Any = SimpleNamespace(experiment=experiment)
    before = {"model": {0: 8}}
    rows = [Refusal(4, NOT_FINITE, "odd"), Refusal(7, NOT_FINITE, "odd"), Refusal(8, "x", "odd")]
    report = Report([0], before, {}, rows, {})
    chosen: Any = {2: "drop", 3: "slow", 5: "crash", 4: "corrupt", 8: "corrupt"}
    found = faults.note_absent(prepared, "state", report, chosen)  # type: ignore[arg-type]
    assert asked == [("a", [3], "state")]
    assert found.bytes_down == {"model": {0: 8, 3: 9}} and before == {"model": {0: 8}}
    assert found.refusals == [
        Refusal(4, NOT_FINITE, f"odd: {ON_PURPOSE}"), *rows[1:],
        Refusal(2, "dropped-out", ON_PURPOSE), Refusal(3, "late", ON_PURPOSE),
        Refusal(5, "crashed", ON_PURPOSE),
    ]  # fmt: skip


def test_a_table_of_clients_has_every_column_for_everybody() -> None:
    row = {"part": "test", "view": "personal", "correct": 1.0, "examples": 4.0}
    rows = [
        {**row, "client": 1, "extra": '{"f1": 0.5}'},
        {**row, "client": 7, "view": "local", "correct": 3.0, "extra": "{}"},
        {**row, "client": 3, "correct": 2.0, "extra": "{}"},
    ]
    asked: list[Any] = []
    store: Any = SimpleNamespace(
        meta={"clients": '{"names": ["a", "b"], "rows": {"train": [6, 5]}}'}.get,
        rows=lambda query, round: asked.append(round) or rows,
        metric=lambda: MainMetric(others={"f1": "higher"}),
    )
    columns = dict.fromkeys(
        ["client", "name", "size", "test", "test f1", "test (local)", "test (local) f1"]
    )
    assert client_rows(store, 3) == [
        {**columns, "client": 0, "name": "a", "size": 6},
        {**columns, "client": 1, "name": "b", "size": 5, "test": 0.25, "test f1": 0.5},
        {**columns, "client": 3, "test": 0.5},
        {**columns, "client": 7, "test (local)": 0.75},
    ]
    assert asked == [3]


def folder_of(status: str, last: int | None, table: dict[str, Any]) -> Any:
    """A run of 10 rounds, of which some are on record."""
    whole = {"rounds": 10, "method": {"name": "m", "lr": 0.1}, **table}
    store = SimpleNamespace(last_round=lambda: last, facts=[])
    store.write_facts = lambda *given: store.facts.append(given)
    return SimpleNamespace(status=status, store=store, config=whole, path=Path())


@pytest.mark.parametrize(
    ("status", "last", "early"),
    [
        ("finished", 9, True), ("finished", 10, False), ("finished", None, True),
        ("stopped", 9, False),
    ],
)  # fmt: skip
def test_a_run_was_stopped_early_if_it_ended_before_its_last_round(
    status: str, last: int | None, early: bool
) -> None:
    folder = folder_of(status, last, {})
    assert extension.is_stopped_early(folder) is early
    extension.extend(folder, "+5")
    assert folder.config["rounds"] == (last or 0 if early else 10) + 5
    assert extension.played(folder) == (last or 0)


GLIDE = {"start": 1.0, "rounds": 0.5}


@pytest.mark.parametrize(
    ("table", "over"),
    [
        ({"method": {"lr": GLIDE, "strength": {"rounds": 3}, "momentum": 0.5}}, ["method.lr"]),
        (
            {"groups": {"a": {"method": {"lr": 0.1}}, "b": {"method": {"lr": GLIDE}}}},
            ["groups.b.method.lr"],
        ),
        ({"method": {"lr": {"rounds": 3}}}, []),
    ],
)
def test_schedules_over_a_run_keep_their_length(
    table: dict[str, Any], over: list[str], tmp_path: Path
) -> None:
    folder = folder_of("finished", 10, table)
    folder.path = tmp_path
    extension.extend(folder, 12)
    assert folder.config.get("schedule_rounds") == (10 if over else None)
    extension.write_extension(folder)
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == folder.config
    ((facts, notes),) = folder.store.facts
    text = f"rounds after 10 have the last value of {', '.join(over)}"
    assert notes == ([Note(text, "warning")] if over else [])
    assert facts[extension.SINCE] == "10"
    folder.config["rounds"] = 10
    extension.write_extension(folder)
    assert folder.store.facts[1][1] == []


@pytest.mark.parametrize("listens", [True, False])
def test_other_tools_are_told_of_rounds_after_the_listener(
    listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    class Tools:
        def __init__(self, *given: Any) -> None:
            done.append(given)

        def __enter__(self) -> Tools:
            return self

        def __exit__(self, *_: object) -> None:
            done.append("closed")

        def on_round(self, end: Any) -> None:
            done.append(("tools", end))

    def go(listener: Any) -> str:
        if listener is not None:
            listener("round 1")
        return "result"

    monkeypatch.setattr(python, "Mirrors", Tools)
    monkeypatch.setattr(python, "tell_of_refusals", lambda found, tell: (found, tell))
    monkeypatch.setattr(python, "is_first", lambda: True)
    own: Any = (lambda end: done.append(("own", end))) if listens else None
    given: Any = (Path("f"), "config", own, "note", go)
    assert python.run_mirrored(["wandb"], *given) == ("result", "note")  # type: ignore[comparison-overlap]
    heard = [("own", "round 1")] if listens else []
    tools = (["wandb"], Path("f"), "config", "note")
    assert done == [tools, *heard, ("tools", "round 1"), "closed"]
    done.clear()
    assert python.run_mirrored([], *given) == ("result", "note")  # type: ignore[comparison-overlap]
    monkeypatch.setattr(python, "is_first", lambda: False)
    python.run_mirrored(["wandb"], *given)
    assert done == 2 * heard


@pytest.mark.parametrize("of_objects", [True, False])
@pytest.mark.parametrize("found", ["objects", None])
def test_a_rank_is_told_the_configuration_of_a_run(
    of_objects: bool, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    def config(name: str) -> Any:
        made = SimpleNamespace(name=name, is_of_objects=of_objects)
        made.of_objects = lambda ingredients: config(f"{name} with {ingredients}")
        made.model_copy = lambda update: (name, update)
        return made

    kinds = SimpleNamespace(
        stored=lambda table, source: config(f"stored {table} {source.name} {source.text}"),
        of=lambda table, source: config(f"read {table} {source.name} {source.text}"),
    )
    monkeypatch.setattr(ranks_run, "Config", kinds)
    monkeypatch.setattr(ranks_run, "check_same", lambda own, other: done.append((own.name, other)))
    said = {"table": "t", "source": ["n", "x"], "engine": "quick"}
    name, update = ranks_run._told_config(said, lambda own: found)  # type: ignore[arg-type, misc, return-value]
    assert update == {"engine": "quick"}
    wanted = "stored t n x" if of_objects else "read t n x"
    assert name == (f"{wanted} with objects" if of_objects and found else wanted)
    assert done == ([("stored t n x", "objects")] if of_objects and found else [])


@pytest.mark.parametrize("engine", [Vectorised(chunk=5), Sequential()])
def test_all_ranks_have_the_engine_that_the_first_one_chose(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 7 clients on 3 ranks, one has 3."""
    asked: list[Any] = []
    config = SimpleNamespace(engine="auto", model_copy=lambda update: update)
    experiment = SimpleNamespace(data=SimpleNamespace(device="here"))
    prepared: Any = SimpleNamespace(
        config=config, experiment=experiment, cohort=7, clients="clients"
    )
    monkeypatch.setattr(build, "engine_of", lambda *given: asked.append(given) or (engine, "why"))
    said: list[Any] = []
    first: Any = SimpleNamespace(count=3, lead=lambda work, serve: said.append(work()) or said[-1])
    assert build._choose_engine(first, prepared) == (engine, "why")
    assert build._choose_engine(first, prepared)[0] is engine
    assert asked[0] == ({"processes": 1}, experiment, 3, "here", "clients")
    other: Any = SimpleNamespace(count=3, lead=lambda work, serve: said[0])
    found, why = build._choose_engine(other, prepared)
    assert type(found) is type(engine) and why == "why" and len(asked) == 2
    assert not isinstance(found, Vectorised) or found.chunk == 5
    config.engine = "processes"
    monkeypatch.setattr(build, "placed", lambda *_: nullcontext())
    with pytest.raises(UserError, match="ranks are processes already"):
        build._choose_engine(first, prepared)
