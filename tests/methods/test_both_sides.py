"""Every limit of every option of every method, from the annotations: what lies on the right side is
taken, what lies just beyond is refused with the name of the option.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.introspection import Option, options_of
from fedblocks.core.option_types import fits
from fedblocks.core.options import Above, AtLeast, AtMost, Limit
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import EXAMPLES, Example
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.federations import small_net

EVERY = {**EXAMPLES, **ADAPTERS}


def sides(option: Option, limit: Limit) -> tuple[float, float]:
    """The last number that a limit allows, and the first that it does not."""
    if fits(option.kind, 0.5):
        up, down = (math.nextafter(limit.bound, end) for end in (math.inf, -math.inf))
    else:
        up, down = int(limit.bound) + 1, int(limit.bound) - 1
    edge = limit.bound if fits(option.kind, 0.5) else int(limit.bound)
    if isinstance(limit, AtLeast | AtMost):
        return edge, down if isinstance(limit, AtLeast) else up
    return up if isinstance(limit, Above) else down, edge


def refusals(example: Example, name: str, value: float) -> str:
    """What is said of an option, if it is refused for itself and not for the others."""
    try:
        example.methods(**{name: value})
    except UserError as error:
        return error.message if f".{name} = " in error.message else ""
    return ""


def limits_of(example: Example) -> Iterator[tuple[str, Option, Limit]]:
    kind = type(next(iter(example.methods().values())))
    own = {name for group in example.groups.values() for name in group}
    for name, option in options_of(kind).items():
        if option.length is None and name not in own:  # a list, or the groups' own
            yield from ((name, option, limit) for limit in option.limits)


@pytest.mark.parametrize("name", EVERY)
def test_both_sides_of_each_limit_are_told_apart(name: str) -> None:
    example = EVERY[name]()
    tried = 0
    for option_name, option, limit in limits_of(example):
        if not (fits(option.kind, 1) or fits(option.kind, 0.5)):
            continue  # a list of numbers
        right, wrong = sides(option, limit)
        assert "must be" not in refusals(example, option_name, right), (option_name, right)
        said = refusals(example, option_name, wrong)
        assert "must be" in said and limit.words in said, (option_name, wrong, said)
        tried += 1
    assert tried >= 3  # lr, epochs, batch_size at least


def test_branches_of_a_layer_that_the_net_does_not_have_are_refused() -> None:
    PFedMB(small_net(), branched=("0",))
    with pytest.raises(NetError, match='the net has no linear layer "nothing"'):
        PFedMB(small_net(), branched=("nothing",))
