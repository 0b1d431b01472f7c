"""A parameter without dimensions is a parameter like any other, in every method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.testing import EXAMPLES, Example
from fedblocks.testing.compare import close, differences, state_leaves
from fedblocks.testing.rounds import ENGINES, run
from tests.representatives import mark_others

CLIPPED = 0.5  # a norm that gradients of the examples are longer than


class Scale(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def with_scalar(name: str) -> Example:
    """An example whose net begins with a number."""
    example = EXAMPLES[name]()
    plain: Net = example.options["net"]

    def make() -> nn.Module:
        return nn.Sequential(Scale(), *plain.make())

    net = Net.of(make, dtype=plain.dtype, input_shape=plain.input_shape)
    return replace(example, options={**example.options, "net": net}, rounds=2)


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_a_method_trains_a_net_with_a_number_among_its_parameters(name: str) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = with_scalar(name)
    ends = []
    for engine in ENGINES:
        experiment = example.experiment(clip_norm=CLIPPED)
        ends.append(state_leaves(run(experiment, engine, example.cohorts()).last))
    assert differences(ends[0], ends[1], close(experiment)) == []
    assert any(value.isfinite().all() and "factor" in place for place, value in ends[0].items())
