"""Commands that answer in a few words: what they take, and what they refuse early."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from fedblocks.cli import packages, progress
from fedblocks.cli.check_net import _sizes
from fedblocks.cli.compare import _Progress
from fedblocks.core.errors import UserError
from fedblocks.reports.comparison_text import difference_text
from fedblocks.runs.storage.record import Note

COMMANDS = Path(packages.__file__).parent


@pytest.mark.parametrize("text", ["3,8,9", "3x8x9", " 3, 8 ,9 "])
def test_a_shape_may_be_written_in_several_ways(text: str) -> None:
    assert _sizes(text) == (3, 8, 9)


@pytest.mark.parametrize("text", ["", "3,", "3,0", "-1", "a", "1.5"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a shape"):
        _sizes(text)


def test_an_unknown_method_is_named_before_anything_is_checked(fedblocks: Any) -> None:
    done = fedblocks("check", "fedavgg")
    assert done.code == 2 and 'did you mean "fedavg"' in done.err and done.out == ""


def test_every_group_of_commands_helps_without_arguments_and_reads_no_markup() -> None:
    modules = [f"fedblocks.cli.{file.stem}" for file in COMMANDS.glob("*.py")]
    apps = [getattr(importlib.import_module(name), "app", None) for name in modules]
    typers = [app for app in apps if isinstance(app, typer.Typer)]
    assert len(typers) == 4
    for app in typers:
        assert app.rich_markup_mode is None and app.info.no_args_is_help


WORDS = {"local": ("digits-fedavg",), "run": ("digits-fedavg", "--server", "there")}


@pytest.mark.parametrize("command", ["local", "run"])
def test_a_federation_without_flower_says_what_to_install(
    command: str, fedblocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.flower.hosts import launch

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    done = fedblocks("federation", command, *WORDS[command])
    assert done.code != 0 and "needs Flower, which is not installed" in done.err
    assert "fedblocks[flower]" in done.err
    assert not (tmp_path / "runs").exists()  # before anything is written


def test_requirements_are_read_whatever_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=2",
        "torch (>=2.4,<3)",
        "httpx[http2] >= 0.27 ; extra == 'flower'",
        'uvloop>=1; sys_platform != "win32"',
        "rich",
    ]
    monkeypatch.setattr(packages.metadata, "requires", lambda package: lines)
    assert packages.requirements("ours") == [
        ("numpy", ">=2", ""),
        ("torch", ">=2.4,<3", ""),
        ("httpx", ">=0.27", "flower"),
        ("rich", "", ""),
    ]
    there = {"numpy": "1.26", "torch": "2.13.0+cpu", "rich": None}
    monkeypatch.setattr(packages, "version_of", lambda name: there.get(name))
    assert packages.unmet("ours") == {"numpy 1.26": "numpy>=2", "rich nothing": "rich"}
    monkeypatch.setattr(packages.metadata, "requires", lambda package: None)
    assert packages.requirements("ours") == []


def test_a_comparison_shows_one_run_at_a_time_and_a_warning_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []

    class Watch:
        def __init__(self, title: str, quiet: bool, file: Any) -> None:
            shown.append((title, quiet, file))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            shown.append("closed")

        def on_round(self, done: Any) -> None:
            shown.append(done)

        def on_note(self, note: Any) -> None:
            shown.append(note.text)

    monkeypatch.setattr(progress, "Watch", Watch)
    here = _Progress(True, "a file")
    warning, remark = Note("mind this", "warning"), Note("by the way")
    on_round, on_note = here.on_run("fedavg", 3, 1)
    on_note(remark)
    assert shown == []  # its line appears with its first round, or with a warning
    on_note(warning)
    on_round("round 1")  # type: ignore[arg-type]
    on_note(warning)
    assert shown == [("1: fedavg, seed 3", True, "a file"), "mind this", "round 1"]
    on_round, on_note = here.on_run("ditto", 3, 2)
    assert shown.pop() == "closed"
    on_note(warning)
    on_round("round 1")  # type: ignore[arg-type]
    assert shown[3:] == [("2: ditto, seed 3", True, "a file"), "round 1"]
    here.close()
    here.close()
    assert shown[5:] == ["closed"]


@pytest.mark.parametrize(
    ("interval", "verdict", "text"),
    [
        (None, None, "-"),
        ({"mean": 0.1, "low": -0.25, "high": 0.5}, None, "+0.100 [-0.250, +0.500]"),
        ({"mean": 0.1, "low": 0.05, "high": 0.5}, "better", "+0.100 [+0.050, +0.500] better"),
    ],
)
def test_a_difference_is_shown_with_its_interval(interval: Any, verdict: Any, text: str) -> None:
    assert difference_text(interval, verdict) == text


def test_a_schema_in_a_file_says_how_to_use_it(fedblocks: Any, tmp_path: Path) -> None:
    done = fedblocks("schema", "--out", "s.json")
    assert (
        done.out == "s.json: write `#:schema s.json` into the first line of a TOML file beside it\n"
    )
    size = (tmp_path / "s.json").stat().st_size
    wanted = {"name": "s.json", "file": "s.json", "bytes": size}
    assert fedblocks("schema", "--out", "s.json", "--json").json == wanted
    assert json.loads((tmp_path / "s.json").read_text()) == fedblocks("schema").json
