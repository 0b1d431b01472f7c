"""The quickstart: nine methods, a leaderboard, a report."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import quickstart
from fedblocks.config.presets import PRESETS, read_config
from fedblocks.reports.ideas import REASONS
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run

METHODS = {"local", "fedavg", "fedavg_ft", "fedper", "fedem", "fedmn", "flow", "modfl", "pfedmb"}


def test_it_trains_nine_methods_and_ends_with_a_leaderboard_and_a_report(fedblocks: Any) -> None:
    pytest.importorskip("plotly", reason="the report needs plotly: pip install 'fedblocks[report]'")
    shown = fedblocks("quickstart", "--rounds", "1")
    assert shown.code == 0, shown.err
    for words in (
        "accuracy, mean",
        "bottom decile",
        "worst client",
        "worse off than Local",
        "MB",
        "seconds",
        *METHODS,
    ):
        assert words in shown.out
    folder = Path("runs/quickstart-001")
    assert f"Open the report in a browser: {(folder / 'report.html').resolve()}" in shown.out
    assert "<html" in (folder / "report.html").read_text()
    runs = {name: load_run(folder / name) for name in METHODS}
    assert {(run.status, run.rounds, run.config.seed) for run in runs.values()} == {
        ("finished", 1, 3)
    }
    for idea in ("paths through its modules", "cohorts of clients", "form 4 groups", "varies by"):
        assert idea in shown.out
    assert [group.net.name for group in runs["modfl"].config.groups.values()] == ["cnn"]
    assert runs["modfl"].config.net.name == "mlp" and runs["flow"].config.net.name == "cnn"


def test_as_json_it_is_json_and_nothing_else_in_a_folder_of_its_own(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "METHODS", ("local",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # no package for reports
    Path("runs/quickstart-001").mkdir(parents=True)
    actual = fedblocks("quickstart", "--rounds", "1", "--json").json
    assert actual["folder"] == "runs/quickstart-002" and actual["report"] is None
    assert [(row["name"], row["megabytes"]) for row in actual["methods"]] == [("local", 0)]
    again = fedblocks("quickstart", "--out", "runs/quickstart-002")
    assert again.code == 4 and "is not an empty folder" in again.err


def test_without_the_extra_for_reports_it_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page, said = quickstart._report(Path("q"))
    assert page is None
    assert (
        said == 'For a report with charts: pip install "fedblocks[report]", then fedblocks report q'
    )


def test_every_run_of_it_is_a_preset_on_the_same_data_for_the_same_rounds() -> None:
    configs = {name: PRESETS[f"quickstart-{name}"]() for name in METHODS}
    assert set(quickstart.METHODS) == METHODS
    assert len({str(config.data) for config in configs.values()}) == 1
    assert {config.rounds for config in configs.values()} == {40}
    shift = configs["pfedmb"].data.shift
    assert shift is not None and shift.name == "joint"


def test_a_method_below_local_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the quickstart; runs of one round, in which means are ours."""
    monkeypatch.setattr(quickstart, "METHODS", ("local", "flow"))
    for name in quickstart.METHODS:
        config = read_config(f"quickstart-{name}", ["rounds=1"])
        run(config, tmp_path / name)
    rows = [{"name": "local", "mean": 0.8}, {"name": "flow", "mean": 0.7}]
    said = quickstart._ideas(tmp_path, rows)
    assert said[-1] == f"flow is below Local: {REASONS['flow']}."
    rows[1]["mean"] = 0.9
    assert quickstart._ideas(tmp_path, rows) == said[:-1] and said[0].startswith("flow: the local")


def test_every_method_of_it_has_a_reason_for_being_below_local() -> None:
    assert set(REASONS) == METHODS - {"local"}
