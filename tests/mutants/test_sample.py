"""The draw: repeatable, extendable, fair to packages and operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mutants.project import Project
from mutants.sample import sample, wilson
from mutants.sites import Site, sites

PROJECT = Project(Path("/nowhere"))
EVERY = [
    site
    for file, lines in (("core/a.py", 40), ("core/b.py", 4), ("data/a.py", 8), ("cli/a.py", 20))
    for site in sites(
        file,
        "".join(f"def f{i}(a):\n    return a.x(dim={i}) < {i}\n" for i in range(lines)).encode(),
    )
]


def drawn(seed: int, count: int, every: list[Site] = EVERY) -> list[str]:
    return [site.key for site in sample(every, PROJECT.stratum, seed, count)]


def test_one_seed_draws_the_same_twice_and_another_seed_draws_others() -> None:
    assert drawn(0, 30) == drawn(0, 30, EVERY[::-1])
    assert set(drawn(0, 30)) != set(drawn(1, 30))


def test_a_larger_count_only_adds() -> None:
    assert drawn(5, 40)[:10] == drawn(5, 10)


def test_strata_and_operators_take_turns() -> None:
    few = sample(EVERY, PROJECT.stratum, 0, 24)
    assert set(Counter(PROJECT.stratum(s.file) for s in few).values()) == {8}
    kinds = Counter(s.operator for s in few if s.file.startswith("core/"))
    assert kinds.keys() == {"compare", "dimension", "keyword", "number"}
    assert max(kinds.values()) <= 3  # 8 of 4 kinds; a statement that was drawn already costs a turn


def test_a_statement_is_mutated_at_most_once() -> None:
    every = sample(EVERY, PROJECT.stratum, 0, 10_000)
    assert len({(s.file, s.lines) for s in every}) == len(every) == 72  # 40 + 4 + 8 + 20 functions


@pytest.mark.parametrize(
    ("caught", "total", "low", "high"),
    [
        (
            8,
            10,
            0.4902,
            0.9433,
        ),  # statsmodels.stats.proportion.proportion_confint(8, 10, method="wilson")
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_interval_is_wilsons(caught: int, total: int, low: float, high: float) -> None:
    assert wilson(caught, total) == pytest.approx((low, high), abs=1e-4)


def test_a_short_draw_has_other_operators_with_another_seed() -> None:
    first = {sample(EVERY, PROJECT.stratum, seed, 1)[0].operator for seed in range(20)}
    assert first == {site.operator for site in EVERY}
