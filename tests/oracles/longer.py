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
from fedblocks.engines.batching import Draw, batches

from .harness import SEED, SIZES, TOLERANCE, federation, task_of
from .plain import Params, Task

LONGER = ((0, 1, 2, 3, 4), (1, 3, 4), (0, 1, 2, 3), (0, 3, 2, 1))


def validated() -> Federation:
    """The oracles' federation; clients validate on the rows that they are tested on."""
    data = federation()
    return replace(data, validation=data.test)


def longer_task(method: Method, cohorts: tuple[tuple[int, ...], ...] = LONGER) -> Task:
    """The oracles' task with other cohorts; the method must have one phase."""
    (phase,) = method.phases()
    rounds = [
        {
            i: [batches(method, phase, 0, SIZES[i], Draw(SEED, t, i, "train"))]
            for i in sorted(cohort)
        }
        for t, cohort in enumerate(cohorts)
    ]
    return replace(task_of(method), rounds=rounds)


def close(
    found: Mapping[str, Tensor], expected: Params, what: str = "", within: float = TOLERANCE
) -> None:
    """The library's tensors are the oracle's."""
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name].numpy(), value, rtol=0, atol=within, err_msg=f"{name} of {what}"
        )
