"""Every method over adapters keeps every invariant of the contract, and the methods that know
nothing of adapters keep them on a net that has some.
"""

import pytest

from fedblocks.testing import CHECKS, Invariant, run_check
from fedblocks.testing.adapters import ADAPTERS


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize("method", ADAPTERS)
def test_the_method_keeps_the_invariant(method: str, invariant: Invariant) -> None:
    check = run_check(invariant, ADAPTERS[method]())
    assert check.passed, check.detail
