"""How the slots of every pool start: all alike, or each from a draw of its own."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.blocks import Pool
from fedblocks.core.starts import Alike
from fedblocks.testing import EXAMPLES

POOLS = {
    (method, name): block
    for method in EXAMPLES
    for name, block in EXAMPLES[method]().experiment().methods["all"].blocks().items()
    if isinstance(block, Pool) and block.size > 1
}
# begin as one and part later, by the data of their clients
ALIKE = {("clustered", "clusters"), ("modfl", "operation")}


@pytest.mark.parametrize(("method", "name"), POOLS)
def test_slots_start_alike_only_where_the_method_says_so(method: str, name: str) -> None:
    block = POOLS[method, name]
    experiment = EXAMPLES[method]().experiment()
    params = experiment.start().server[block.name or name]
    equal = all(torch.equal(value, value[:1].expand_as(value)) for value in params.values())
    assert equal == isinstance(block.start, Alike)
    assert len(next(iter(params.values()))) == block.size


def test_the_methods_whose_slots_start_alike_are_known() -> None:
    assert {key for key, block in POOLS.items() if isinstance(block.start, Alike)} == ALIKE
