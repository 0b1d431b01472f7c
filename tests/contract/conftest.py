"""How a planted bug is shown to be caught."""

from collections.abc import Callable

import pytest

from fedblocks.testing import CHECKS, Example, run_check


@pytest.fixture
def verdict() -> Callable[[Example, int], str]:
    """What a check says of an example: "" if it passes; an error in the example itself
    is no verdict.
    """

    def told(example: Example, number: int) -> str:
        check = run_check(CHECKS[number - 1], example)
        assert "Error: " not in check.detail, check.detail
        return "" if check.passed else check.detail

    return told
