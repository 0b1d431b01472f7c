"""`fedblocks compare` and `fedblocks report`: what they print, and how they end."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main

SMALL = ["--set", "rounds=1", "--set", "data.clients=6", "--set", "method.epochs=1"]
needs_charts = pytest.mark.skipif(
    find_spec("plotly") is None, reason="reports need plotly: pip install 'fedblocks[report]'"
)


@pytest.fixture
def fedblocks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a command in this process, in an empty folder: exit code, output, error stream."""
    monkeypatch.chdir(tmp_path)

    def running(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return running


def test_a_comparison_prints_a_leaderboard_and_says_what_the_seeds_allow(fedblocks: Any) -> None:
    code, out, err = fedblocks(
        "compare", "digits-pfedmb", "--methods", "ditto", "--seeds", "2", "--out", "c", *SMALL
    )
    assert code == 0, err
    for words in (
        "bottom decile",
        "worst client",
        "worse off than Local",
        "difference to Local",
        "MB",
        "seconds",
    ):
        assert words in out
    assert "1: local, seed 0  round 1/1" in out and "8: ditto, seed 1  round 1/1" in out
    assert "not enough seeds for a verdict: 2 of at least 6." in out and "better" not in out
    assert {path.name for path in Path("c/runs").iterdir()} == {
        f"{method}-{seed}"
        for method in ("local", "fedavg", "fedavg_ft", "ditto")
        for seed in (0, 1)
    }
    code, out, err = fedblocks("compare", "c/compare.toml", "--out", "c", "--json")
    actual = json.loads(out)
    assert code == 0 and "round" not in err  # everything was there
    assert {row["name"] for row in actual["methods"]} == {"local", "fedavg", "fedavg_ft", "ditto"}
    assert actual["runs"]["ditto"]["1"] == "c/runs/ditto-1"


def test_refused_updates_are_told_with_the_table_also_of_runs_that_were_there(
    fedblocks: Any,
) -> None:
    small = [*SMALL, "--set", "method.lr=1e30", "--set", "method.optimizer.name=sgd"]
    words = ["compare", "digits-fedavg", "--seeds", "2", "--out", "c", "--quiet", *small]
    for _ in range(2):  # the second time all runs are there
        code, out, _ = fedblocks(*words)
        assert code == 0
        warned = [line for line in out.splitlines() if line.startswith("warning: fedavg, seed 0: ")]
        assert len(warned) == 1 and "updates of the last round were refused" in warned[0]
        assert warned[0].endswith("; seed 1 likewise")
    _, out, _ = fedblocks("compare", "c/compare.toml", "--out", "c", "--json")
    assert any(text.startswith("local, seed 0: ") for text in json.loads(out)["warnings"])


def test_without_a_folder_the_same_command_finds_its_runs_again(fedblocks: Any) -> None:
    words = ["compare", "digits-fedavg", "--methods", "local", "--seeds", "1", "--quiet", *SMALL]
    assert fedblocks(*words)[0] == 0
    (folder,) = Path("runs").iterdir()
    record = (folder / "runs" / "local-0" / "run.sqlite").stat().st_mtime_ns
    assert fedblocks(*words)[0] == 0
    assert list(Path("runs").iterdir()) == [folder]
    assert (folder / "runs" / "local-0" / "run.sqlite").stat().st_mtime_ns == record


@needs_charts
def test_a_report_is_written_beside_the_run_or_where_one_says(fedblocks: Any) -> None:
    assert fedblocks("run", "digits-fedavg", *SMALL, "--out", "a")[0] == 0
    code, out, _ = fedblocks("report", "a")
    assert code == 0 and out.startswith("a/report.html: ") and Path("a/report.html").is_file()
    actual = json.loads(fedblocks("report", "a", "--out", "b/x.html", "--json")[1])
    assert (
        actual["file"] == "b/x.html"
        and actual["bytes"] == Path("b/x.html").stat().st_size <= 6_000_000
    )


def test_a_comparison_that_is_stopped_says_how_to_go_on(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.runs.grids import cells

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "run", stopped)
    code, _, err = fedblocks("compare", "digits-fedavg", "--seeds", "1", *SMALL)
    assert code == 130 and "the same command goes on from there" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["compare", "digits-nothing"], 2, 'there is no preset or file "digits-nothing"'),
        (["compare", "digits-fedavg", "--methods", "dito"], 2, 'did you mean "ditto"'),
        (["compare", "digits-fedavg", "--seeds", "0"], 2, "0 seeds"),
        (
            ["compare", "digits-fedavg", "--methods", "ditto", "--set", "ditto.strength=-1"],
            2,
            "method.strength",
        ),
        pytest.param(["report", "nowhere"], 4, "nowhere does not exist", marks=needs_charts),
        pytest.param(["report", "."], 4, "is empty", marks=needs_charts),
    ],
)
def test_wrong_input_is_told_with_a_fix(
    fedblocks: Any, words: list[str], code: int, said: str
) -> None:
    actual, _, err = fedblocks(*words)
    assert actual == code
    assert said in err and "fix: " in err and "Traceback" not in err
