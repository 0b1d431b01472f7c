"""What holds of a round whatever the method: a state is a value, in the precision of the net."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core.lora import LoraNet
from fedblocks.core.modular_net import ModularNet, modular
from fedblocks.core.net import Net
from fedblocks.core.optimizers import Adam
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.compare import Leaves, judged, state_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.federations import small_net

EVERY = {**EXAMPLES, **ADAPTERS}
DRAWN_IN_PRECISION = {"pfedhn"}  # its first numbers are others in single precision
KEEPS: dict[str, Any] = {"keep_optimizer": True, "optimizer": Adam()}


@dataclass(frozen=True, eq=False)
class Seen:
    """A state, and what it was when it was new."""

    leaves: Leaves
    copies: Leaves
    writes: dict[str, int]  # how often each tensor was written into

    @staticmethod
    def of(leaves: Leaves) -> Seen:
        return Seen(leaves, {k: v.clone() for k, v in leaves.items()}, writes_into(leaves))


def writes_into(leaves: Leaves) -> dict[str, int]:
    return {place: tensor._version for place, tensor in leaves.items()}


def train(
    experiment: Experiment, example: Example, engine: Engine | None = None
) -> tuple[list[Seen], Leaves]:
    """The states before and after two rounds, and how all models do in the end."""
    engine, state = engine or Sequential(), experiment.start()
    seen = [Seen.of(state_leaves(state))]
    for clients in example.cohorts()[:2]:
        state, _ = run_round(experiment, state, clients, engine, "test")
        seen.append(Seen.of(state_leaves(state)))
    return seen, judged(experiment, state, engine)


@cache
def train_in_double(name: str) -> tuple[list[Seen], Leaves]:
    example = EVERY[name]()
    return train(example.experiment(), example)


def check_left_alone(states: list[Seen]) -> None:
    for state in states:
        assert writes_into(state.leaves) == state.writes
        for place, tensor in state.leaves.items():
            assert torch.equal(tensor, state.copies[place]), place
            assert not tensor.requires_grad, place


@pytest.mark.parametrize("name", EVERY)
def test_a_round_writes_into_nothing_that_it_was_given(name: str) -> None:
    check_left_alone(train_in_double(name)[0])


@pytest.mark.parametrize("name", ["apfl", "clustered", "pfedhn"])
def test_nor_does_a_round_of_all_clients_at_once(name: str) -> None:
    example = EVERY[name]()
    check_left_alone(train(example.experiment(), example, Vectorised())[0])


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=["sequential", "vectorised"])
def test_a_round_writes_into_no_optimizer_that_clients_have_kept(engine: Engine) -> None:
    example = EVERY["ditto"]()
    check_left_alone(train(example.experiment(**KEEPS), example, engine)[0])


def addresses(tensor: Tensor) -> set[int]:
    """Of its numbers."""
    offsets = torch.zeros((), dtype=torch.long)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = offsets[..., None] + stride * torch.arange(size)
    first, width = tensor.data_ptr(), tensor.element_size()
    return {first + width * offset for offset in offsets.flatten().tolist()}


@pytest.mark.parametrize("name", EVERY)
def test_tensors_of_a_start_share_no_number_with_each_other_or_with_another_start(
    name: str,
) -> None:
    experiment = EVERY[name]().experiment()
    starts = [state_leaves(experiment.start()) for _ in range(2)]
    tensors = [t for start in starts for place, t in start.items() if place != "round"]
    places = [addresses(tensor) for tensor in tensors]
    assert [len(own) for own in places] == [tensor.numel() for tensor in tensors]
    assert len(set().union(*places)) == sum(map(len, places))


def in_single(example: Example) -> Example:
    """The same nets, options and examples, in single precision."""
    options = {k: _single(v) for k, v in example.options.items()}
    groups = {g: {k: _single(v) for k, v in own.items()} for g, own in example.groups.items()}
    data = replace(example.federation, x=example.federation.x.float())
    return replace(example, options=options, groups=groups, federation=data)


def _single(value: Any) -> Any:
    """The value itself, unless it is a net."""
    match value:
        case ModularNet():
            return modular(small_net(torch.float32), (6, 5), dropout=0.0)
        case LoraNet():
            return LoraNet(_single(value.plain), value.spec)
        case Net():
            about = (value.input_shape, value.output)
            return Net(value.make, value.named_head, None, torch.float32, *about)
    return value


def kinds(leaves: Leaves) -> dict[str, torch.dtype]:
    return {place: tensor.dtype for place, tensor in leaves.items()}


@pytest.mark.parametrize("name", EVERY)
def test_a_method_does_the_same_in_single_precision(name: str) -> None:
    """To a thousandth: two rounds of a few steps add up few roundings of 6e-8."""
    example = in_single(EVERY[name]())
    states, scores = train(example.experiment(), example)
    wide, right = train_in_double(name)
    check_left_alone(states)
    start, end = states[0].leaves, states[-1].leaves
    assert kinds({k: end[k] for k in start}) == kinds(start)
    for own in wide[-1].leaves if name not in DRAWN_IN_PRECISION else ():
        expected = wide[-1].leaves[own]
        torch.testing.assert_close(end[own].double(), expected.double(), rtol=1e-3, atol=1e-4)
    for place in scores if name not in DRAWN_IN_PRECISION else ():
        torch.testing.assert_close(scores[place], right[place], rtol=1e-3, atol=1e-3)
