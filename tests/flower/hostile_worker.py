"""A client's process that misbehaves as a file beside its configuration says; started by the deployment tests."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from fedblocks import __version__
from fedblocks.flower.client import node
from fedblocks.flower.client import side as client
from fedblocks.flower.wire import run_spec as terms
from fedblocks.flower.wire.messages import Wire

FOLDER = Path(sys.argv[1])
honest, made = client.ClientSide.answer, terms.sides_at


def plot() -> list[str]:
    """What to do in each round; empty: behave."""
    found = FOLDER / "attack"
    return found.read_text().split() if found.exists() else []


def changed(name: str, answer: Wire) -> Wire:
    arrays = dict(answer.arrays)
    first = next(key for key in arrays if key.startswith("blocks/"))
    weights = next(key for key in arrays if key.startswith("weights/"))
    match name:
        case "nan":
            arrays[first] = np.full_like(arrays[first], np.nan)
        case "extra":
            arrays["blocks/body/more"] = np.zeros(3, np.float32)
        case "missing":
            del arrays[first]
        case "shape":
            arrays[first] = arrays[first][:1]
        case "weight":
            arrays[weights] = arrays[weights] * 1e18
        case "large":
            arrays[first] = np.zeros(4_000_000, np.float32)
    return Wire(answer.header, arrays)


def answer(self: client.ClientSide, message: Wire) -> Wire:
    header, attacks = json.loads(message.header), plot()
    name = attacks[header["round"]] if header["round"] < len(attacks) and header.get("train") else ""
    if name == "sleep":
        (FOLDER / "sleeping").touch()
        time.sleep(600)
    if name == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    found = honest(self, message)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return changed(name, found) if name and found.arrays else found


def sides_at(folder: Path, told: terms.RunTerms) -> dict:
    terms.__version__ = "0.0.0" if plot() == ["version"] else __version__
    return made(folder, told)


client.ClientSide.answer = answer
terms.sides_at = sides_at

if __name__ == "__main__":
    sys.exit(node.main(FOLDER))
