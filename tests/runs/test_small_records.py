"""Small things in run folders: replaced checkpoints, trackers that lag, code that is needed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.runs import beside
from fedblocks.runs.beside import Beside
from fedblocks.runs.curves import column_of
from fedblocks.runs.loop import _go_on
from fedblocks.runs.storage import checkpoint, code_record

PROGRAM = code_record.PROGRAM


def test_a_round_that_is_stored_again_replaces_itself_even_after_a_kill(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        checkpoint.save(tmp_path, 5, {"value": torch.tensor(value)}, {}, None)
        left = tmp_path / ".old-round-000005"
        left.mkdir(exist_ok=True)  # as a process leaves it that is killed while it replaces one
        (left / "rest").write_text("half")
    assert checkpoint.load(tmp_path).shared["value"].item() == 3.0


def test_a_tracker_that_lags_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "WAITING", 2)
    go_on = threading.Event()
    seen: list[int] = []

    class Slow:
        def log(self, round: int, numbers: Any) -> None:
            go_on.wait(10)
            seen.append(round)

        def close(self) -> None:
            seen.append(-1)

    tracker = Beside("slow", Slow)  # type: ignore[arg-type]
    for number in range(9):
        tracker.log(number, {})
    assert len(tracker.remarks) == 1
    assert tracker.remarks[0].startswith("is 2 rounds behind: it misses some from ")
    go_on.set()
    tracker.finish()
    tracker.wait(10)
    assert seen[-1] == -1 and seen[0] == 0 and 3 <= len(seen) <= 4 and len(tracker.remarks) == 1


def test_columns_are_named_by_part_and_by_other_views() -> None:
    assert (
        column_of("test", "personal") == "test" and column_of("test", "shared") == "test (shared)"
    )


@pytest.mark.parametrize(
    "text",
    ["no JSON", "{}", '["a"]', '[{"file": "a"}]', '[{"defines": 3}]', '[{"defines": "a", "b": 1}]'],
)
def test_a_record_of_code_that_is_none_says_nothing(text: str, tmp_path: Path) -> None:
    good = {"defines": "x", "file": "y.py", "sha256": "0" * 64}
    (tmp_path / code_record.FILE).write_text(text)
    assert code_record.read_entries(tmp_path) == []
    (tmp_path / code_record.FILE).write_text(json.dumps([good]))
    assert code_record.read_entries(tmp_path) == [good]
    if text.startswith("["):
        (tmp_path / code_record.FILE).write_text(json.dumps([good, *json.loads(text)]))
        assert code_record.read_entries(tmp_path) == []


def test_what_is_needed_is_said_in_a_word() -> None:
    file = {"defines": "net", "file": "own.py", "sha256": "0123456789abcdef"}
    packed = {"defines": "method", "package": "theirs 1.0"}
    told = code_record.what_to_add
    assert told([file, packed], "net") == (
        "add --code own.py (the file that defines net, recorded with SHA-256 0123456789ab...)"
    )
    assert told([file, packed], "method") == "install theirs 1.0 (the package that defines method)"
    assert told([{**file, "defines": PROGRAM}], "net").startswith(f"add --code own.py ({PROGRAM}, ")
    assert "the run does not say which" in told([], "net")
    assert "a session without a file" in told([{"defines": PROGRAM}], PROGRAM)


def test_the_command_that_goes_on_names_each_file_of_code_once(tmp_path: Path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path)
    assert _go_on(folder) == f"fedblocks resume {tmp_path}"
    entries = [
        {"defines": "net", "file": "a.py"},
        {"defines": "method", "package": "theirs"},
        {"defines": "data", "file": "b.py"},
        {"defines": "more", "file": "a.py"},
    ]
    (tmp_path / code_record.FILE).write_text(json.dumps(entries))
    assert _go_on(folder) == f"fedblocks resume {tmp_path} --code a.py --code b.py"
