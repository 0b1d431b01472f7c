"""Every method over adapters keeps every invariant of the contract, and the methods that know
nothing of adapters keep them on a net that has some.
"""

from functools import lru_cache

import pytest

from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import CHECKS, Example, Invariant, example_for, run_check
from fedblocks.testing.adapters import ADAPTERS, adapted_net
from tests.representatives import case_of

OTHERS = {
    "fedavg": (FedAvg, {}),
    "fedper": (FedPer, {}),
    "ditto": (Ditto, {}),
    "ifca": (IFCA, {"clusters": 2}),
    "fedem": (FedEM, {"components": 2}),
    "pfedmb": (PFedMB, {"branches": 2}),
}
# what adapters could break: engines, resuming, padding, messages, learning, lanes
ASKED = [c for c in CHECKS if c.number in (1, 2, 4, 6, 8, 9, 10, 13, 16, 21)]


@lru_cache(maxsize=1)  # its checks come one after another, and have some runs in common
def example_of(method: str) -> Example:
    return ADAPTERS[method]()


@lru_cache(maxsize=1)
def example_over_adapters(method: str) -> Example:
    kind, options = OTHERS[method]
    return example_for(kind, net=adapted_net(), epochs=2, **options)


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize(
    "method", [case_of(n, always=n in ("dual_lora", "product_lora")) for n in ADAPTERS]
)
def test_the_method_keeps_the_invariant(method: str, invariant: Invariant) -> None:
    """Private adapters and averaged products; the other three in `make test-rest`."""
    check = run_check(invariant, example_of(method))
    assert check.passed, check.detail


@pytest.mark.parametrize(
    "invariant", ASKED, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize(
    "method", [case_of(name, always=name in ("fedper", "fedem")) for name in OTHERS]
)
def test_a_method_that_knows_nothing_of_adapters_keeps_it_over_them(
    method: str, invariant: Invariant
) -> None:
    """A private head and a mixture; the other four in `make test-rest`."""
    check = run_check(invariant, example_over_adapters(method))
    assert check.passed, check.detail
