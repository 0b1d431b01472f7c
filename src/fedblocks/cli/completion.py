"""Shell completion: of commands and options, of the names of methods and presets;
without importing torch.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.names import method_names, preset_names

VARIABLE = "_FEDBLOCKS_COMPLETE"  # how typer is asked for completions


class Shell(StrEnum):
    """Shells that are known."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a completion script for a shell.

    Use it with `eval "$(fedblocks completion bash)"`.
    """
    from fedblocks.cli.app import app

    os.environ[VARIABLE] = f"source_{shell.value}"
    try:
        app(args=[], prog_name="fedblocks")
    finally:
        del os.environ[VARIABLE]


def some_method(incomplete: str) -> list[str]:
    """Methods that begin like this."""
    return [name for name in method_names() if name.startswith(incomplete)]


def some_methods(incomplete: str) -> list[str]:
    """A list such as `fedper,dit` with its last name completed."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in some_method(last) if name not in before.split(",")]


def some_config(incomplete: str) -> list[str]:
    """Presets and TOML files that begin like this."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    files = [str(path) for path in folder.glob("*.toml")] if folder.is_dir() else []
    return [name for name in [*preset_names(), *sorted(files)] if name.startswith(incomplete)]
