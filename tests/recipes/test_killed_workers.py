"""A worker that is killed from outside is no method that fails: real processes, real signals."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.cli import main
from fedblocks.config.registry import CODE
from fedblocks.methods import METHODS
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.process_pool import ProcessPool, WorkerProcess
from fedblocks.recipes.running.reproduce import _company, carry_out
from fedblocks.recipes.running.worker import answers
from fedblocks.recipes.show import rows_of
from fedblocks.recipes.suite.beds import BEDS

from .conftest import DIGITS, asked, tiny
from .test_suite_command import MINE, TINY

# Counts how often it is run, and ends its process by the signal that the file `signal` names. A
# file `once` means: only the first time.
ENDS = MINE.replace(
    "'''Local under another name.'''",
    """def phases(self):
        import os
        from pathlib import Path
        runs = Path("runs.txt")
        before = runs.read_text() if runs.exists() else ""
        runs.write_text(before + "x")
        if Path("signal").exists() and not (before and Path("once").exists()):
            os.kill(os.getpid(), int(Path("signal").read_text()))
        return super().phases()""",
)
Suite = Callable[..., dict[str, Any]]


@pytest.fixture
def suite(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Suite:
    """Runs `mine` on the tiny bed with a worker process, beside a panel of one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CODE, "")
    monkeypatch.setitem(BEDS, "tiny", TINY)  # type: ignore[arg-type]
    monkeypatch.setitem(METHODS, "mine", METHODS["local"])
    for module in ("scores", "trial"):
        monkeypatch.setattr(f"fedblocks.recipes.suite.{module}.PANEL", ("local",))
    Path("mine.py").write_text(ENDS)

    def running(*more: str) -> dict[str, Any]:
        words = ("mine", "--code", "mine.py", "--beds", "tiny", "--seeds", "1", "--jobs", "1")
        with pytest.raises(SystemExit) as stop:
            main(["suite", *words, *more])
        captured = capsys.readouterr()
        assert not stop.value.code, captured.err
        (file,) = Path("results").glob("suite-1-mine-*.json")
        entry = json.loads(file.read_text())["cells"]["tiny/mine"]
        return {"out": captured.out, "err": captured.err, "entry": entry}

    return running


def runs() -> int:
    """How often a worker came to the method's phases; a run that is not killed may do so often."""
    return len(Path("runs.txt").read_text())


def test_a_killed_worker_is_run_again_once_then_named_and_taken_up_by_the_next_call(
    suite: Suite,
) -> None:
    Path("signal").write_text("9")
    actual = suite()
    assert runs() == 2
    assert "tiny/mine, seed 0: killed (signal 9); once more" in actual["err"]
    assert actual["entry"]["killed"] == "tiny/mine, seed 0: killed (signal 9)"
    assert "error" not in actual["entry"] and actual["entry"]["seeds"] == {}
    assert "killed (signal 9); no failure of the method" in actual["out"]
    assert "counts as Local" not in actual["out"] and "budget" not in actual["out"]
    Path("signal").unlink()
    actual = suite("--json")
    assert "killed" not in actual["entry"] and set(actual["entry"]["seeds"]) == {"0"}
    table = json.loads(actual["out"])
    assert table["finished"] and table["methods"][0]["killed"] == {}


def test_a_worker_that_is_killed_once_leaves_a_number_and_no_trace(suite: Suite) -> None:
    Path("signal").write_text("15")
    Path("once").touch()
    actual = suite()
    assert "killed (signal 15); once more" in actual["err"]
    assert set(actual["entry"]["seeds"]) == {"0"} and "killed" not in actual["entry"]


def test_a_worker_that_crashes_is_a_method_that_fails(suite: Suite) -> None:
    Path("signal").write_text("11")  # SIGSEGV: nobody sends it from outside
    actual = suite()
    assert runs() == 1
    assert actual["entry"]["error"].endswith("the worker process ended with code -11")
    assert "killed" not in actual["entry"] and "counts as Local" in actual["out"]


def test_a_killed_cell_is_not_done_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Cell("digits/other", {**DIGITS, "method": {"name": "fedper"}})
    recipe = tiny(*tiny().cells, other)

    def work(_: ProcessPool, batch: dict[str, Any]) -> list[dict[str, Any]]:
        is_other = batch["jobs"][0]["config"]["method"]["name"] == "fedper"
        return answers(batch) if is_other else [{"killed": 9} for _ in batch["jobs"]]

    monkeypatch.setattr(ProcessPool, "work", work)
    reproduction = asked(recipe, tmp_path, seeds=1)
    assert not carry_out(reproduction)
    states = {row["name"]: row["state"] for row in rows_of(reproduction.results, recipe.cells, 1)}
    assert states["digits/other"] == "done"
    assert "killed (signal 9); the same command takes it up again" in states["digits/fedavg"]


def test_half_a_line_of_a_killed_worker_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "printf '[{\"numbers\"'; kill -9 $$"
    worker = WorkerProcess()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"read line; {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    monkeypatch.setattr(worker, "_running_process", lambda: process)
    assert worker.work({"jobs": [{}], "seconds": None, "lanes": False}) == [{"killed": 9}]


def test_a_run_whose_worker_was_killed_is_no_lane_beside_others() -> None:
    first, second, third = (SimpleNamespace(folder=Path(name), kind="alike") for name in "abc")
    crew: Any = SimpleNamespace(retried={Path("b")})
    tasks: Any = [first, second, third]
    assert _company(crew, tasks) == [first, third]
    assert _company(crew, tasks[1:]) == [second]
