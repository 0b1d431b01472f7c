"""Commands that answer in a few words: what they take, and what they refuse early."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import typer

from fedblocks.cli import packages
from fedblocks.cli.check_net import _sizes
from fedblocks.core.errors import UserError

COMMANDS = Path(packages.__file__).parent


@pytest.mark.parametrize("text", ["3,8,9", "3x8x9", " 3, 8 ,9 "])
def test_a_shape_may_be_written_in_several_ways(text: str) -> None:
    assert _sizes(text) == (3, 8, 9)


@pytest.mark.parametrize("text", ["", "3,", "3,0", "-1", "a", "1.5"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no shape"):
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
    command: str, fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.flower.hosts import launch

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    done = fedblocks("federation", command, *WORDS[command])
    assert done.code != 0 and "needs Flower, which is not installed" in done.err
    assert "fedblocks[flower]" in done.err


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
