"""What a report says of how to repeat it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.reports.html import write_report
from fedblocks.reports.html.facts import facts_of
from fedblocks.reports.html.gather import gather

CONFIG = ["rounds=1", "data.clients=4"]


def write_code(run: Path, *files: str) -> None:
    """As if these files had defined what the run needs."""
    entries = [{"defines": "net", "file": file, "sha256": "0" * 64} for file in files]
    (run / "code.json").write_text(json.dumps(entries))


def facts(folder: Path) -> dict[str, Any]:
    return facts_of(gather(folder))


def test_a_comparison_of_objects_is_repeated_run_by_run_with_its_program(tmp_path: Path) -> None:
    net, data = fb.small_net(), fb.small_federation()
    methods = [fb.Local(net), fb.FedAvg(net)]
    found = fb.compare(methods, data, seeds=1, rounds=1, out=tmp_path / "c")
    for by_seed in found.runs.values():
        write_code(by_seed[0].folder, "my program.py")
    first, second = facts(found.folder)["again"].splitlines()
    config = str(found.folder / "runs" / "local-0" / "config.toml")
    options = ["--code", "my program.py", "--out", "NEW_local-0"]
    assert shlex.split(first) == ["fedblocks", "run", config, *options]
    assert second.endswith("--out NEW_fedavg-0")


def test_objects_of_a_session_without_a_file_are_repeated_there(tmp_path: Path) -> None:
    run = fb.run(fb.FedAvg(fb.small_net()), fb.small_federation(), 1, tmp_path / "run")
    write_code(run.folder)
    assert facts(run.folder)["again"] == ""
    pytest.importorskip("plotly")
    said = "a session without a file: repeat it there"
    assert said in write_report(run.folder).read_text()


def test_a_configuration_is_repeated_with_the_files_that_it_needs(tmp_path: Path) -> None:
    run = fb.run(fb.read_config("digits-fedavg", CONFIG), tmp_path / "run")
    assert facts(run.folder)["again"] == f"fedblocks run {run.folder}/config.toml --out NEW_run"
    write_code(run.folder, "a.py", "a.py", "b.py")
    assert "config.toml --code a.py --code b.py --out NEW_run" in facts(run.folder)["again"]


def test_commands_of_several_runs_are_shown_each_once(tmp_path: Path) -> None:
    for seed, command in enumerate((["fedblocks", "run"], ["my.py", "a b"], ["fedblocks", "run"])):
        run = fb.run(
            fb.read_config("digits-fedavg", [*CONFIG, f"seed={seed}"]), tmp_path / str(seed)
        )
        path = run.folder / "env.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "command": command}))
    assert facts(tmp_path)["command"] == "fedblocks run\npython my.py 'a b'"
