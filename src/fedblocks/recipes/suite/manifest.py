"""What is frozen: beds, budgets, and the hash of every federation that seeds and variants give.

`studies/suite_manifest.py` writes manifest.json from the data; whatever changes it is another
version of the suite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fedblocks.recipes.running.task import digest
from fedblocks.recipes.suite.beds import BEDS, VERSION, SuiteBed

HASH = 16  # digits of a hash that are kept


def manifest_of(beds: Mapping[str, SuiteBed]) -> dict[str, Any]:
    """Everything that decides a number, but the method and the data themselves."""
    about = {
        name: {**bed.config("fedavg"), "new": bed.new, "view": bed.view}
        for name, bed in beds.items()
    }
    return {"version": VERSION, "beds": about}


def manifest_hash(beds: Mapping[str, SuiteBed] = BEDS) -> str:
    """A short name of the manifest: results of two manifests are never compared."""
    return digest(manifest_of(beds))


@cache
def federations() -> Mapping[str, Mapping[str, str]]:
    """Bed -> data seed -> the first digits of its federation's hash, as they were frozen."""
    text = files(__package__).joinpath("manifest.json").read_text(encoding="utf-8")
    whole: dict[str, dict[str, str]] = json.loads(text)["federations"]
    return whole


def is_frozen(bed: str, seed: int, partition: str) -> bool | None:
    """Whether a run had the data of the suite; None: the manifest does not say."""
    known = federations().get(bed, {}).get(str(seed))
    return None if known is None else partition.startswith(known)
