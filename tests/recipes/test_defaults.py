"""Defaults, limits and recipes are as ever: a change of theirs is a change of results.

After a change on purpose, delete defaults.txt, run this test twice, and say in the changelog what
has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.catalogue import describe_options
from fedblocks.config.model import Config
from fedblocks.config.registry import kinds
from fedblocks.recipes import RECIPES

NOTED = Path(__file__).parent / "defaults.txt"
LIMITS = {"default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum"}


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every plain value of nested tables and lists, by its path."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, (*path, str(key)))
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from leaves(one, (*path, str(place)))
    else:
        yield path, value


def sections() -> Iterator[str]:
    """Defaults and limits of the sections of a configuration."""
    for path, value in leaves(Config.model_json_schema()):
        if LIMITS & {*path}:
            named = [part for part in path if part not in ("$defs", "properties")]
            yield f"{'.'.join(named)} = {value!r}"


def options() -> Iterator[str]:
    """Types and defaults of everything that can be named in a configuration."""
    for kind, known in kinds().items():
        for name in known:
            for one in describe_options(kind, name):
                yield f"{kind} {name}: {one['name']} = {one['default']!r} ({one['type']})"


def recipes() -> Iterator[str]:
    """What is run for a published table, and what was published, in short."""
    for name, recipe in RECIPES.items():
        built = recipe()
        grids = [[cell.points(quick) for cell in built.cells] for quick in (True, False)]
        whole = [[asdict(cell) for cell in built.cells], grids, built.quick_seeds]
        text = json.dumps(whole, sort_keys=True, default=str)
        yield f"recipe {name}: {len(built.cells)} cells {sha256(text.encode()).hexdigest()[:12]}"


def test_defaults_limits_and_recipes_are_as_ever() -> None:
    actual = sorted([*sections(), *options(), *recipes()])
    if not NOTED.exists():
        NOTED.write_text("\n".join(actual) + "\n")
        pytest.fail("defaults.txt was written: say in the changelog what has changed")
    noted = {*NOTED.read_text().splitlines()}
    ours = {line.partition(":")[0] for line in noted}  # other tests may have added names
    known = {one for one in actual if ":" not in one or one.partition(":")[0] in ours}
    how = "if that is meant, delete tests/recipes/defaults.txt, run this test twice, and commit it"
    assert known == noted, f"gone: {sorted(noted - known)}, new: {sorted(known - noted)}; {how}"
