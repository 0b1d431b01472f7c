"""Which commands speak JSON, as the page on commands says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedblocks.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name, those of groups by both."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    context = typer.Context(command)
    for one in command.list_commands(context):
        yield from commands(command.get_command(context, one), f"{name} {one}".strip())


def test_the_page_lists_the_commands_that_take_no_json() -> None:
    listed = re.search(r"^No `--json`: (.+?)\.$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    without = {
        name
        for name, command in commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert {*re.findall("`([^`]+)`", listed[1])} == without
