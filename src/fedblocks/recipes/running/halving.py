"""Choosing values by successive halving: many tries for a few rounds, the better ones
for more, the best in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FEW = 4  # tries that are not worth it
SHORT = 10  # rounds of which a part says nothing


@dataclass(frozen=True)
class Rung:
    """So many tries, each for so many rounds."""

    rounds: int
    tries: int


def rungs(tries: int, rounds: int, full_grid: bool) -> list[Rung]:
    """All for a fifth of the rounds, a third of them for half, one in full; or all in full."""
    if full_grid or tries < FEW or rounds < SHORT:
        return [Rung(rounds, tries)]
    return [
        Rung(math.ceil(rounds / 5), tries),
        Rung(math.ceil(rounds / 2), math.ceil(tries / 3)),
        Rung(rounds, 1),
    ]


def cost(steps: Sequence[Rung]) -> float:
    """Runs in full that the tries amount to, where each goes on from the rung before."""
    before = 0
    total = 0.0
    for rung in steps:
        total += rung.tries * (rung.rounds - before) / steps[-1].rounds
        before = rung.rounds
    return total


def best_first(scores: Sequence[float]) -> list[int]:
    """Numbers of the tries, the best score first, the first among equals; a score that
    is no number is the worst.
    """
    ranks = [-math.inf if math.isnan(score) else score for score in scores]
    return sorted(range(len(scores)), key=lambda number: -ranks[number])
