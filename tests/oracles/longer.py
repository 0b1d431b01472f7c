"""Tasks of more rounds than two, and federations with a validation part, for methods
that need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedblocks.core.method import Method
from fedblocks.data.federation import Federation

from .harness import SIZES, TOLERANCE, federation, plans, task_of
from .plain import Params, Task

LONGER = ((0, 1, 2, 3, 4), (1, 3, 4), (0, 1, 2, 3), (0, 3, 2, 1))


def validated() -> Federation:
    """The oracles' federation; clients validate on the rows that they are tested on."""
    data = federation()
    return replace(data, validation=data.test)


def longer_task(method: Method, cohorts: tuple[tuple[int, ...], ...] = LONGER) -> Task:
    """The oracles' task with other cohorts."""
    drawn = plans(method, SIZES, cohorts=[tuple(sorted(cohort)) for cohort in cohorts])
    return replace(task_of(method), **drawn)


def close(
    found: Mapping[str, Tensor], expected: Params, what: str = "", within: float = TOLERANCE
) -> None:
    """The library's tensors are the oracle's."""
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name].numpy(), value, rtol=0, atol=within, err_msg=f"{name} of {what}"
        )
