"""What holds for every command that has an option: it is heeded, whatever else is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedblocks.cli.app import FOR_RANKS, app
from fedblocks.cli.help import Command, Commands
from fedblocks.flower import simulation
from fedblocks.flower.hosts import launch
from fedblocks.runs.ranks import joining


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


def test_every_command_explains_its_arguments_and_every_group_knows_similar_names() -> None:
    assert [path for path, one in EVERY.items() if not isinstance(one, Command)] == []
    groups = [one for one in typer.main.get_command(app).commands.values() if is_group(one)]
    assert len(groups) == 3 and all(isinstance(one, Commands) for one in groups)


def is_group(command: Any) -> bool:
    return hasattr(command, "commands")


BY_FLOWER = ("local", "init", "join", "enrol", "revoke", "rotate", "renew", "keys", "run")


@pytest.mark.parametrize("path", [("federation", name) for name in BY_FLOWER])
def test_without_flower_a_federation_is_refused_before_anything_is_written(
    path: tuple[str, ...], fedblocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda _: None)
    done = fedblocks(*words(path))
    assert done.code != 0 and "pip install 'fedblocks[flower]'" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [path for path in EVERY if path[0] not in FOR_RANKS])
def test_a_command_for_one_process_is_refused_to_several_ranks(
    path: tuple[str, ...], fedblocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = fedblocks(*words(path))
    assert done.code != 0 and f"fedblocks {path[0]} is work for one process" in done.err
    monkeypatch.setenv("RANK", "1")
    assert fedblocks(*words(path)).err == ""  # the first says it for all
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rank", "size", "is_one"),
    [("0", "2", True), ("0", " 1 ", False), ("0", None, False), (None, "2", False)],
)
def test_a_process_is_a_rank_where_there_are_several(
    rank: str | None, size: str | None, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert joining.is_rank() is is_one
