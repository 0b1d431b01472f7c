"""What holds for every command that has an option: it is heeded, whatever else is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedblocks.cli.app import app
from fedblocks.flower import simulation


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that it is called by."""
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, (*path, name))
    if not hasattr(group, "commands"):
        yield path, group


EVERY = dict(commands(typer.main.get_command(app)))
NEEDS = {"client": "0", "clients": "0", "method": "fedavg", "net": "mlp", "out": "out.npz"}
# a folder that is not there is said before torch is imported
SOONER = {("export",): "there does not exist"}
CONFIG = {"config": "digits-fedavg", "what": "digits-fedavg"}


def words(path: tuple[str, ...]) -> list[str]:
    """A call of a command with all that it needs."""
    asked = []
    for one in EVERY[path].params:
        if one.required:
            value = NEEDS.get(one.name, CONFIG.get(one.name, "there"))
            asked += [*([one.opts[0]] if one.opts[0].startswith("-") else []), value]
    return [*path, *asked]


@pytest.mark.parametrize(
    "path", [path for path, one in EVERY.items() if any(p.name == "code" for p in one.params)]
)
def test_code_is_read_before_anything_else(
    path: tuple[str, ...], fedblocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "need_ray", lambda: None)
    (tmp_path / "own.py").write_text("raise ValueError('read it was')\n")
    done = fedblocks(*words(path), "--code", str(tmp_path / "own.py"))
    assert done.code != 0 and SOONER.get(path, "read it was") in done.err
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.suffix != ".pyc") in (
        ["own.py"],
        ["__pycache__", "own.py"],
    )
