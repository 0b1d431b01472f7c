"""Small parts of what runs store, search and say, each against what follows by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.runs import refusals
from fedblocks.runs.grids.space import OneOf, Range
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.refusals import ADVICE, NOT_FINITE, Refused, tell_of_refusals
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.shelf import Shelf
from fedblocks.runs.storage import frozen
from fedblocks.runs.storage.folder import CONSTANTS, FROZEN, RunFolder
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import ClientMetric, Note, RoundRecord, Snapshot
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.storage.summary import summarise

Table = dict[str, Any]


def test_facts_about_a_machine_are_written_in_the_order_of_their_names(
    tmp_path: Path, small: Table
) -> None:
    facts = {"torch": "2", "python": "3", "cpu": "one"}
    with RunFolder.create(tmp_path / "run", Config.of(small).resolved(), facts):
        pass
    text = (tmp_path / "run" / "env.json").read_text()
    assert list(json.loads(text)) == ["cpu", "python", "torch"] and text.count("\n") >= 4


def test_a_run_that_failed_before_its_first_round_makes_way_for_another(
    tmp_path: Path, small: Table
) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, Config.of(small).resolved(), {"python": "3"}) as failed:
        failed.store.set_meta("status", "failed")
    (path / FROZEN).mkdir()
    (path / CONSTANTS).write_text("of another net")
    other = Config.of({**small, "seed": 8}).resolved()
    with RunFolder.create(path, other, {"python": "3"}) as folder:
        assert folder.config["seed"] == 8 and folder.status != "failed"
    assert not (path / FROZEN).exists() and not (path / CONSTANTS).exists()


def test_what_is_to_be_known_of_a_run_is_on_record_once_however_often_it_goes_on(
    tmp_path: Path, small: Table
) -> None:
    def stop(done: RoundDone) -> None:
        if done.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(Config.of(small), tmp_path / "run", stop)
    before = [note["text"] for note in load_run(tmp_path / "run").notes]
    assert any("engine" in text or "one client after another" in text for text in before), before
    resume(tmp_path / "run")
    after = [note["text"] for note in load_run(tmp_path / "run").notes]
    assert after[: len(before)] == before and len({*after}) == len(after)


def test_an_evaluation_that_is_dropped_leaves_a_whole_record(tmp_path: Path) -> None:
    metric = ClientMetric("test", "personal", 0, 3, 10, 0.5)
    store = RunStore.create(tmp_path / "run.db")
    for round in (1, 2, 3):
        snapshots = [Snapshot("gates", 0, [0.25 * round])]
        store.record_round(RoundRecord(round, 1.0, 2, metrics=[metric], snapshots=snapshots))
    store.drop_evaluation(2)
    store.verify()
    left = [row["round"] for row in store.rows("SELECT round FROM rounds ORDER BY round")]
    assert left == [1, 2, 3]
    for table in ("client_metrics", "means", "snapshots"):
        rows = store.rows(f"SELECT DISTINCT round FROM {table} ORDER BY round")
        assert [row["round"] for row in rows] == [1, 3]
    store.close()


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (Refused(0, 6, 0, 3, ""), None),
        (Refused(1, 6, 0, 3, "late: 9 s", (4,)), "1 of 6 updates were refused"),
        (Refused(1, 6, 1, 3, f"{NOT_FINITE}: nan", (4,)), f"nan); {ADVICE}"),
        (Refused(0, 6, 0, 3, "", (), (2,), "too large"), "client 2 could not be evaluated"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_updates_that_are_not_in_a_result_are_told_by_the_first_rank_at_its_end(
    refused: Refused, said: str | None, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "is_first", lambda: is_first)
    result: Any = SimpleNamespace(refused=lambda: refused)
    notes: list[Note] = []
    assert tell_of_refusals(result, notes.append) is result
    if said is None or not is_first:
        assert notes == []
    else:
        ((text, level),) = notes
        assert said in text and not text.endswith("; ") and level == "warning"


class Trial:
    """Suggests the upper end, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def suggest_int(self, name: str, low: int, high: int, log: bool = False) -> int:
        self.asked.append((name, low, high, log))
        return high

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        self.asked.append((name, low, high, log))
        return high

    def suggest_categorical(self, name: str, values: tuple[str, ...]) -> str:
        self.asked.append((name, values))
        return values[-1]


@pytest.mark.parametrize("log", [True, False])
def test_whole_and_other_numbers_are_searched_as_was_asked(log: bool) -> None:
    trial = Trial()
    whole = Range(2, 8, log).suggest(trial, "a")
    assert whole == 8 and isinstance(whole, int)
    assert Range(0.5, 1.23456, log).suggest(trial, "b") == 1.23456  # 1.235 is above the end
    assert Range(1, 1.23446, log).suggest(trial, "c") == 1.234  # four digits
    assert OneOf(("x", "y")).suggest(trial, "d") == "y"
    ends = [("a", 2, 8, log), ("b", 0.5, 1.23456, log), ("c", 1, 1.23446, log), ("d", ("x", "y"))]
    assert trial.asked == ends
    assert Range(2, 8, log).examples == ["2", "8"] and OneOf(("x", "y")).examples == ["x", "y"]


def test_of_clients_that_a_reference_lacks_the_first_is_named() -> None:
    rows: list[Table] = [
        {"client": c, "correct": 1.0, "examples": 2, "loss": 1.0, "extra": {}}
        for c in (1000, 64, 3, 1)
    ]
    with pytest.raises(UserError, match="lacks 3 of 4 clients, such as client 3"):
        summarise(rows, {1: 0.5}, MainMetric("accuracy", "higher"))


def test_several_frozen_blocks_lie_side_by_side(tmp_path: Path) -> None:
    for number in range(2):
        frozen._write(tmp_path / "frozen" / f"{number}.safetensors", {"w": torch.zeros(number)})
    assert sorted(path.name for path in (tmp_path / "frozen").iterdir()) == [
        "0.safetensors",
        "1.safetensors",
    ]


@dataclass(frozen=True)
class Held:
    """Rows of a federation, and where they are."""

    x: torch.Tensor
    y: torch.Tensor
    device: Any = "cpu"

    def to(self, device: torch.device) -> Held:
        return Held(self.x.clone(), self.y.clone(), device)


@pytest.mark.parametrize("unlike", ["nothing", "x", "y", "shape", "device"])
def test_federations_over_the_same_rows_have_them_on_a_device_once(unlike: str) -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    read = Held(torch.zeros(4, 2), torch.zeros(4))
    there = read.to(meta if unlike == "device" else cpu)
    fresh: Any = Held(
        {"x": torch.zeros(4, 2), "shape": read.x[:3]}.get(unlike, read.x),
        torch.zeros(4) if unlike == "y" else read.y,
    )
    shelf: Any = Shelf()
    shelf.federations["one"] = read, there
    placed = shelf._place(fresh, cpu)
    shares = placed.x is there.x, placed.y is there.y
    assert shares == ((True, True) if unlike == "nothing" else (False, False))
