"""Checks that hold for every method: ours, and yours.

for check in check_method(example_for(MyMethod, strength=0.5)):
    print(check.number, check.says, "ok" if check.passed else check.detail)
"""

from fedblocks.testing.contract import CHECKS, Check, Invariant, check_method, run_check
from fedblocks.testing.example import Alone, Example, Reduction
from fedblocks.testing.examples import EXAMPLES
from fedblocks.testing.federations import small_federation, small_net
from fedblocks.testing.making import example_for, is_fedavg
from fedblocks.testing.movement import plan_text

__all__ = [
    "CHECKS",
    "EXAMPLES",
    "Alone",
    "Check",
    "Example",
    "Invariant",
    "Reduction",
    "check_method",
    "example_for",
    "is_fedavg",
    "plan_text",
    "run_check",
    "small_federation",
    "small_net",
]
