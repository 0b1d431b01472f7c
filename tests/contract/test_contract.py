"""Every method keeps every invariant of the contract."""

from functools import lru_cache

import pytest

from fedblocks.methods import METHODS
from fedblocks.testing import CHECKS, EXAMPLES, Example, Invariant, run_check
from tests.representatives import mark_others


def test_every_method_has_an_example() -> None:
    assert EXAMPLES.keys() == METHODS.keys()


@lru_cache(maxsize=1)  # its checks come one after another, and have some runs in common
def example_of(method: str) -> Example:
    return EXAMPLES[method]()


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize("method", mark_others(EXAMPLES))
def test_the_method_keeps_the_invariant(method: str, invariant: Invariant) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    check = run_check(invariant, example_of(method))
    assert check.passed, check.detail
