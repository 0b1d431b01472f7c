"""A client's process that misbehaves as a file beside its configuration says; started
by the deployment tests.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedblocks import __version__
from fedblocks.flower.client import app, node, prepare
from fedblocks.flower.client import side as client
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import Wire
from fedblocks.flower.wire.run_spec import RunSpec

FOLDER = Path(sys.argv[1])
EXAMPLES = 10**7
honest, honest_sides = client.ClientSide.answer, prepare.sides_at
honest_member = client.member_of
header_of_old: list[str] = []  # of an answer in an earlier round


def plot() -> list[str]:
    """What to do in each round; empty: behave."""
    file = FOLDER / "attack"
    return file.read_text().split() if file.exists() else []


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
        case "claim":
            arrays = {key: inflated(key, array) for key, array in arrays.items()}
        case "replay" if header_of_old:  # once: asked again, it gives the answer that is asked for
            return Wire(header_of_old.pop(), arrays)
        case "remember":
            header_of_old.append(answer.header)
    return Wire(answer.header, arrays)


def inflated(key: str, array: np.ndarray) -> np.ndarray:
    """Ones that weigh as much as ten million examples."""
    if key.startswith("weights/"):
        return np.full_like(array, EXAMPLES)
    return np.ones_like(array) if key.startswith("blocks/") else array


def member_of(side: client.ClientSide, group: str = "all") -> Member:
    member = honest_member(side, group)
    return replace(member, size=EXAMPLES, limit=float(EXAMPLES)) if "claim" in plot() else member


def answer(self: client.ClientSide, message: Wire) -> Wire:
    header, attacks = json.loads(message.header), plot()
    name = (
        attacks[header["round"]] if header["round"] < len(attacks) and header.get("train") else ""
    )
    if name == "sleep":
        (FOLDER / "sleeping").touch()
        time.sleep(600)
    if name == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    reply = honest(self, message)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return changed(name, reply) if name and reply.arrays else reply


def sides_at(folder: Path, spec: RunSpec) -> dict:
    prepare.__version__ = "0.0.0" if plot() == ["version"] else __version__
    return honest_sides(folder, spec)


client.ClientSide.answer = answer
app.member_of = member_of
prepare.sides_at = sides_at

if __name__ == "__main__":
    sys.exit(node.main(FOLDER))
