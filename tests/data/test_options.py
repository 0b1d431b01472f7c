"""Options of data sets, partitions, shifts and test-beds: a wrong one is told before any work."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.core.introspection import REQUIRED, Option, options_of
from fedblocks.core.options import Above, AtLeast
from fedblocks.data import DATASETS, PARTITIONS, Federation
from fedblocks.data.options import Alpha, checked
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import SHIFTS
from fedblocks.data.testbeds import TESTBEDS

LOADS = {name: getattr(entry, "load", entry) for name, entry in DATASETS.items()}
# A stretch may be infinite, which no annotation can say: these check their options as they go.
FUNCTIONS = {
    name: function
    for name, function in {**PARTITIONS, **TESTBEDS, **LOADS}.items()
    if "stretch" not in options_of(function)
}


def lower_limit(option: Option) -> float | None:
    return next((m.bound for m in option.marks if isinstance(m, AtLeast | Above)), None)


LIMITED = [
    (name, option)
    for name, function in FUNCTIONS.items()
    for option, about in options_of(function).items()
    if lower_limit(about) is not None
]


@pytest.mark.parametrize(("name", "option"), LIMITED, ids=[f"{n}.{o}" for n, o in LIMITED])
def test_a_number_below_its_limit_is_refused_before_anything_is_read(
    name: str, option: str
) -> None:
    function: Callable[..., Any] = FUNCTIONS[name]
    known = options_of(function)
    bound = lower_limit(known[option])
    assert bound is not None
    below = type(bound)(bound - 1)
    wrong = [below] * 3 if option == "split" else below
    required = [o for o in known.values() if o.default is REQUIRED]
    needed: dict[str, Any] = {o.name: 1 if o.is_numeric else "some" for o in required}
    with pytest.raises(DataError, match=f"{option} = .*: must be") as caught:
        function(**{**needed, option: wrong})
    assert caught.value.fix.startswith("give ")


def test_most_options_have_a_limit_that_is_tried_here() -> None:
    assert len(LIMITED) > 80


@pytest.mark.parametrize("shift", ["skew_labels", "joint"])
def test_a_shift_keeps_a_share_above_0_and_at_most_1(shift: str) -> None:
    x = np.zeros((8, 1, 2, 2), np.float32)
    federation = Federation.from_arrays(x, np.arange(8) % 4, lambda y: iid(y, 2))
    for keep in (0.0, 1.5):
        with pytest.raises(DataError, match=f"keep = {keep}: must be above 0 and at most 1"):
            SHIFTS[shift](federation, 2, keep=keep)


def test_the_error_of_an_option_is_one_of_data_and_says_what_to_give() -> None:
    @checked
    def spread(alpha: Alpha = 1.0) -> float:
        return alpha

    assert spread(0.5) == 0.5
    with pytest.raises(DataError, match=r"spread\.alpha = -1: must be above 0") as caught:
        spread(-1)
    assert caught.value.fix.startswith("give a number, above 0, e.g. 0.1 to 1")
