"""Which mutants are planted: the same for the same seed, alike from all packages and operators."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest
from math import sqrt
from typing import Any

from mutants.sites import Site


def sample(
    every: Iterable[Site], stratum: Callable[[str], str | None], seed: int, count: int
) -> list[Site]:
    """A fair draw: strata in turn, in each the operators in turn, of a statement at most one.

    A larger count only adds to a smaller one.
    """
    groups: dict[str, dict[str, list[Site]]] = defaultdict(lambda: defaultdict(list))
    for site in sorted(every, key=lambda s: _lot(seed, s.key)):
        groups[str(stratum(site.file))][site.operator].append(site)
    # by lot, too: a short draw of the first in the alphabet would never have the last
    drawn = [
        _once(_in_turn(own[name] for name in sorted(own, key=lambda n: _lot(seed, f"{group} {n}"))))
        for group, own in groups.items()
    ]
    order = [draw for _, draw in sorted(zip(groups, drawn), key=lambda pair: pair[0])]
    return list(islice(_in_turn(order), count))


def _lot(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed} {key}".encode()).digest()


def _in_turn(rows: Iterable[Iterable[Site]]) -> Iterator[Site]:
    """The first of each, then the second of each, and so on."""
    rounds: Iterable[tuple[Any, ...]] = zip_longest(*rows)
    return (site for site in chain.from_iterable(rounds) if site is not None)


def _once(row: Iterable[Site]) -> Iterator[Site]:
    """At most one mutant of a statement."""
    seen = set()
    for site in row:
        if (site.file, site.lines) not in seen:
            seen.add((site.file, site.lines))
            yield site


def wilson(caught: int, total: int) -> tuple[float, float]:
    """A 95 % interval of a share (Wilson 1927)."""
    if total == 0:
        return 0.0, 1.0
    z, share = 1.959964, caught / total
    middle = share + z * z / (2 * total)
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
