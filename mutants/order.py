"""Which tests are asked first, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate


def affordable(tests: list[str], cost: Callable[[str], float], seconds: float) -> list[str]:
    """The first of some tests, as many as so many seconds suffice for."""
    ends = list(accumulate(cost(test) for test in tests))
    return [test for test, end in zip(tests, ends) if end <= seconds]


def spread(tests: list[str], end: str = "[", first: Collection[str] = ()) -> list[str]:
    """One case of each parametrised test, then the second of each, and so on; but all of `first`
    before the others.

    `end` is where the name ends that they have in common: "::" takes tests of each file in turn.
    """
    early = {*first}
    turns: Counter[str] = Counter()
    ranked = []
    for place, test in enumerate(tests):
        if test in early:
            ranked.append((-1, place, test))
            continue
        name = test.partition(end)[0]
        ranked.append((turns[name], place, test))
        turns[name] += 1
    return [test for _, _, test in sorted(ranked)]


def within_budget(
    tests: list[str], seconds: dict[str, float], shared: dict[str, float], budget: float
) -> list[str]:
    """As many as fit, in waves of doubling length, each with the tests of a file side by side.

    Fixtures that tests share are paid for once in each file.
    """
    chosen: list[str] = []
    for wave in _waves(tests, seconds, shared, budget):
        places = {file_of(test): i for i, test in reversed(list(enumerate(wave)))}
        chosen += sorted(wave, key=lambda test: places[file_of(test)])
    return chosen


def file_of(test: str) -> str:
    return test.partition("::")[0]


def _waves(
    tests: list[str], seconds: dict[str, float], shared: dict[str, float], budget: float
) -> Iterator[list[str]]:
    wave: list[str] = []
    paid: dict[str, float] = {}
    spent, edge = 0.0, 0.5
    for test in tests:
        fixtures = max(0.0, shared.get(test, 0.0) - paid.get(file_of(test), 0.0))
        if spent and spent + seconds[test] + fixtures > budget:
            continue
        spent += seconds[test] + fixtures
        paid[file_of(test)] = max(shared.get(test, 0.0), paid.get(file_of(test), 0.0))
        wave.append(test)
        if spent > edge:
            yield wave
            wave, edge = [], 2 * edge
    yield wave
