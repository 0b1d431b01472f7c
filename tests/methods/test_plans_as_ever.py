"""What every method says and does for the ends of each of its options: what it refuses, when it
says that it is another method, and its plan. Words are noted, of plans a fingerprint.

After a change on purpose, delete plans.txt, run this twice, and read what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.core.introspection import Option, options_of
from fedblocks.core.option_types import fits
from fedblocks.core.plan import plan
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing import EXAMPLES, Example
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.extras import normed_net

NOTED = Path(__file__).parent / "plans.txt"
EVERY = {**EXAMPLES, **ADAPTERS}
WORDS = 90  # letters of a refusal that are noted


def values_of(option: Option) -> list[Any]:
    return list(option.choices) or [
        v for v in (None, False, True, 0, 1, 2, 0.5) if fits(option.kind, v)
    ]


def outcome(example: Example, **changes: Any) -> str:
    """What becomes of a method with an option changed, in a line."""
    try:
        (method, *_) = example.methods(**changes).values()
        text = sha256(plan(method).text().encode()).hexdigest()[:8]
        return " ".join([text, *method.degenerate()])
    except UserError as error:
        return f"refused: {error.message[:WORDS]}"


def lines_of(name: str) -> Iterator[str]:
    example = EVERY[name]()
    kind = type(next(iter(example.methods().values())))
    common = options_of(FedAvg).keys() if kind is not FedAvg else {"net"}
    for option_name, option in options_of(kind).items():
        for value in values_of(option) if option_name not in common else ():
            yield f"{name} {option_name}={value!r}: {outcome(example, **{option_name: value})}"
    for statistics in ("average", "local", "refuse"):
        said = outcome(example, net=normed_net(), statistics=statistics)
        yield f"{name} with BatchNorm, statistics={statistics}: {said}"


@cache
def noted() -> dict[str, list[str]]:
    """By method."""
    every: dict[str, list[str]] = {}
    for line in NOTED.read_text().splitlines():
        every.setdefault(line.partition(" ")[0], []).append(line)
    return every


@pytest.mark.parametrize("name", EVERY)
def test_what_a_method_says_and_plans_is_as_noted(name: str) -> None:
    if not NOTED.exists():
        NOTED.write_text("".join(f"{line}\n" for one in EVERY for line in lines_of(one)))
        pytest.fail("plans.txt was written: read what has changed")
    assert list(lines_of(name)) == noted()[name]
