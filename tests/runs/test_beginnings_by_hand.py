"""What a run writes down before its first round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.task import CLASSIFICATION
from fedblocks.runs import loop
from fedblocks.runs.sampling import TRACE
from fedblocks.runs.scored import POPULATION
from fedblocks.runs.storage.main_metric import KEY, MainMetric
from fedblocks.runs.storage.record import Note


@pytest.mark.parametrize("trace", ["", "abc"])
def test_a_run_writes_down_what_it_works_on_and_tells_its_notes_once(
    trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    for name in ("store_constants", "store_frozen"):
        monkeypatch.setattr(loop, name, lambda *given, name=name: done.append((name, given)))
    monkeypatch.setattr(loop, "clients_text", lambda data: "clients")
    monkeypatch.setattr(loop, "behaviour_facts", lambda store, experiment: {"behaviour": "b"})
    monkeypatch.setattr(loop, "patience_of", lambda *given: given)
    experiment = SimpleNamespace(methods="methods", data=SimpleNamespace(task=CLASSIFICATION))
    prepared = SimpleNamespace(
        hash="hash", experiment=experiment, engine=SimpleNamespace(name="sequential"),
        clients=[1, 2, 3], config="config", sampling=SimpleNamespace(content_hash=trace),
    )  # fmt: skip
    written: list[Any] = []
    store = SimpleNamespace(
        rows=lambda query: [{"text": "known"}],
        write_facts=lambda facts, notes: written.append((facts, [note.text for note in notes])),
    )
    folder = SimpleNamespace(path=Path("runs/a"), store=store)
    lane: Any = SimpleNamespace(
        folder=folder, prepared=prepared, state=SimpleNamespace(round=4),
        notes=[Note("known"), Note("new")],
    )  # fmt: skip
    told: list[str] = []
    tell = lambda note: told.append(note.text)
    loop.begin(lane, tell)
    assert lane.patience == ("config", store, 4, tell)
    assert done == [
        ("store_constants", (Path("runs/a"), "methods")),
        ("store_frozen", (folder, experiment)),
    ]
    facts = {
        "federation": "hash", KEY: MainMetric.of(CLASSIFICATION).text(), "engine": "sequential",
        "clients": "clients", POPULATION: "3", "behaviour": "b",
    }  # fmt: skip
    facts |= {TRACE: trace} if trace else {}
    assert written == [(facts, ["new"])] and told == ["known", "new"]
