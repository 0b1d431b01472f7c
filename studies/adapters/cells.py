"""The cells of a study of adapters: a split of the data, a method, a learning rate and a seed each.
What is the same for all methods stands in `Settings`; every method has the same learning rates to
choose from, by mean validation accuracy with the first seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

CENTRAL = "central_lora"  # one client, who has everything
BASE = "base"  # no training at all


@dataclass(frozen=True)
class Settings:
    """What was decided before the first run, and is the same for every method."""

    clients: int = 50
    unseen: int = 10  # further clients that never train, for the cold start
    rounds: int = 20  # of one local epoch
    rank: int = 8
    alpha: float = 16.0  # the scale of an adapter is alpha / rank
    batch: int = 10
    central_batch: int = 50
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)  # of Adam; chosen by validation with seed 0
    seeds: tuple[int, ...] = (0, 1, 2)

    def table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Cell:
    """One run."""

    split: str
    method: str
    rate: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.split}/{self.method}/{self.rate:g}/{self.seed}"


@dataclass(frozen=True)
class Schedule:
    """Which methods run on which split of the data, and which of them come last."""

    by_split: dict[str, tuple[str, ...]]
    later: tuple[str, ...]  # no question of the study hangs on them

    def cells(self, settings: Settings, stored: dict[str, Any]) -> Iterator[Cell]:
        """All cells, in the order in which they are worth most: first those that choose the
        learning rates, with the first seed; then the chosen rates with the other seeds. Cells are
        asked for one by one, and what is stored may grow in between; a method whose choice could
        not be made has no further ones.
        """
        pairs = [(split, name) for split, names in self.by_split.items() for name in names]
        for is_later in (False, True):
            group = [pair for pair in pairs if (pair[1] in self.later) is is_later]
            yield from cells_of(group, settings, stored)

    def missing(self, stored: dict[str, Any]) -> list[str]:
        """What of a file of results was not run, in words."""
        gaps = []
        for split, name in ((s, n) for s, names in self.by_split.items() for n in names):
            own = [
                c for c in stored["cells"].values() if (c["split"], c["method"]) == (split, name)
            ]
            rates, seeds = ({cell[what] for cell in own} for what in ("rate", "seed"))
            tries = 1 if name == BASE else len(stored["settings"]["rates"])
            all_seeds = stored["settings"]["seeds"]
            if len(rates) < tries or len(seeds) < len(all_seeds):
                done = f"{len(rates)} of {tries} rates, {len(seeds)} of {len(all_seeds)} seeds"
                gaps.append(f"{split} {name} ({done if own else 'nothing'})")
        return gaps


def cells_of(
    pairs: list[tuple[str, str]], settings: Settings, stored: dict[str, Any]
) -> Iterator[Cell]:
    """Those of these splits and methods."""
    first, *others = settings.seeds
    tries = [
        [Cell(*pair, rate, first) for rate in ((0.0,) if pair[1] == BASE else settings.rates)]
        for pair in pairs
    ]
    yield from (cell for tried in tries for cell in tried)
    for seed in others:
        for tried in tries:
            if all(cell.key in stored for cell in tried):
                best = max(tried, key=lambda cell: stored[cell.key]["validation"])
                yield replace(best, seed=seed)
