"""Methods that stand for the others, where a fact is one of the engines and not of the method.

`make test` looks at one method of each kind, `make test-rest` at the others, and `.ci/run` calls
both. Oracles (`tests/oracles`) of all methods are in `make test`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet

# a shared net, a private head, two nets, mixtures, clusters, branches, modules, routes of
# modules, memory at both ends, a net that makes nets
REPRESENTATIVES = frozenset(
    {
        *("fedavg", "fedper", "ditto", "fedem", "ifca", "pfedmb", "modfl", "fedmn"),
        *("scaffold", "pfedhn"),
    }
)


def mark_others(names: Iterable[str]) -> list[ParameterSet]:
    """Names of methods, for `parametrize`: those that stand for no others are left
    to `make test-rest`."""
    return [case_of(name, always=name in REPRESENTATIVES) for name in names]


def case_of(*values: object, always: bool) -> ParameterSet:
    """A case of `make test`, or of `make test-rest` alone."""
    return pytest.param(*values, marks=() if always else pytest.mark.rest)
