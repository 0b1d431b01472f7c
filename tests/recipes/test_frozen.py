"""What others compare with is as ever: presets, the suite's beds and spaces, official files.

After a change on purpose, delete frozen.txt, run this test twice, and say in the changelog what has
changed; another bed or space is another version of the suite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.config.presets import PRESETS
from fedblocks.config.registry import kinds
from fedblocks.data.sets import SETS
from fedblocks.data.sets.files import StoredSet
from fedblocks.recipes.cost import SHAPES
from fedblocks.recipes.suite.beds import BEDS, VERSION
from fedblocks.recipes.suite.spaces import SPACES, settings_of, space_of

NOTED = Path(__file__).parent / "frozen.txt"


def brief(value: Any) -> str:
    """A fingerprint of plain values, however many there are."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def presets() -> Iterator[str]:
    """As they are written: a new option with a default is no other preset."""
    for name, preset in PRESETS.items():
        yield f"preset {name}: {brief(preset())}"


def suite() -> Iterator[str]:
    yield f"suite: version {VERSION}"
    for name, bed in BEDS.items():
        rates = [bed.rate(method) for method in ("fedavg", "pfedmb", "pfedme")]
        configs = [bed.config("fedavg"), bed.config("modfl")]
        yield f"bed {name}: {brief([asdict(bed), configs, rates])}"
    for name in ("fedavg", *SPACES):
        kind: Any = kinds()["method"][name]
        space = {key: list(values) for key, values in space_of(name, kind, 0.3).items()}
        yield f"space {name}: {brief([space, settings_of(name, kind, 0.3)])}"


def files() -> Iterator[str]:
    """Sizes, hashes and addresses of official files, and what a data set says of itself."""
    for name, entry in SETS.items():
        own = asdict(entry.files) if isinstance(entry, StoredSet) else {}
        yield f"data set {name}: {brief([entry.name, entry.classes, entry.kind, own])}"
    yield f"shapes: {brief(SHAPES)}"


def test_presets_suite_and_official_files_are_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "of", staticmethod(lambda table: table))
    actual = [*presets(), *suite(), *files()]
    if not NOTED.exists():
        NOTED.write_text("\n".join(actual) + "\n")
        pytest.fail("frozen.txt was written: say in the changelog what has changed")
    noted = NOTED.read_text().splitlines()
    how = "if that is meant, delete tests/recipes/frozen.txt, run this test twice, and commit it"
    gone, new = sorted({*noted} - {*actual}), sorted({*actual} - {*noted})
    assert not gone and not new, f"gone: {gone}, new: {new}; {how}"
