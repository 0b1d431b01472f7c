"""Every method keeps every invariant of the contract."""

import pytest

from fedblocks.methods import METHODS
from fedblocks.testing import CHECKS, EXAMPLES, Invariant, run_check


def test_every_method_has_an_example() -> None:
    assert EXAMPLES.keys() == METHODS.keys()


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize("method", EXAMPLES)
def test_the_method_keeps_the_invariant(method: str, invariant: Invariant) -> None:
    check = run_check(invariant, EXAMPLES[method]())
    assert check.passed, check.detail
