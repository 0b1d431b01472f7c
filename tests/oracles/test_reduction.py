"""The one aggregation kernel against a loop, for any weights and copies."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedblocks.core.reduction import reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.uploads import Upload
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.pfedmb.method import PFedMB

from .harness import COHORTS, ENGINES, apart, mlp_net, play
from .plain import Array

SHAPES = {"weight": (3, 2), "bias": (3,), "scale": ()}


def looped(old: Array, copies: Array, weights: Array, per_slot: bool) -> Array:
    """slot s <- sum_c w[c, s] copy[c] / sum_c w[c, s]; nobody wrote: as it was."""
    new = old.copy()
    for slot in range(weights.shape[1]):
        total = 0.0
        value = np.zeros_like(old[slot])
        for client in range(weights.shape[0]):
            copy = copies[client, slot] if per_slot else copies[client]
            value = value + weights[client, slot] * copy
            total += weights[client, slot]
        if total > 0:
            new[slot] = value / total
    return new


@st.composite
def uploads(draw: st.DrawFn) -> tuple[dict[str, torch.Tensor], Upload]:
    """Some clients, some slots; weights that are often 0, for whole slots and whole clients."""
    clients, slots = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    weight = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
    rows = draw(
        st.lists(
            st.lists(weight, min_size=slots, max_size=slots), min_size=clients, max_size=clients
        )
    )
    per_slot = draw(st.booleans())
    numbers = np.random.Generator(np.random.PCG64(draw(st.integers(0, 2**32))))
    lead = (clients, slots) if per_slot else (clients,)
    copies = {
        k: torch.from_numpy(numbers.normal(size=(*lead, *shape))) for k, shape in SHAPES.items()
    }
    old = {k: torch.from_numpy(numbers.normal(size=(slots, *shape))) for k, shape in SHAPES.items()}
    ids = torch.arange(clients) * 3 + 1
    return old, Upload(
        "block", ids, copies, torch.tensor(rows, dtype=torch.double), per_slot, Average()
    )


@given(uploads())
def test_the_reduction_is_the_loop(case: tuple[dict[str, torch.Tensor], Upload]) -> None:
    old, upload = case
    new, written = reduce_slots(old, upload)
    assert written.tolist() == (upload.weights.numpy().sum(0) > 0).tolist()
    for k in old:
        expected = looped(
            old[k].numpy(), upload.copies[k].numpy(), upload.weights.numpy(), upload.per_slot
        )
        np.testing.assert_allclose(new[k].numpy(), expected, rtol=1e-12, atol=1e-12)


@given(uploads())
def test_a_slot_nobody_writes_is_unchanged(case: tuple[dict[str, torch.Tensor], Upload]) -> None:
    old, upload = case
    nobody = replace(upload, weights=upload.weights.clone().index_fill_(1, torch.tensor([0]), 0.0))
    new, written = reduce_slots(old, nobody)
    assert not written[0]
    assert all(torch.equal(new[k][0], old[k][0]) for k in old)


@given(uploads(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(
    case: tuple[dict[str, torch.Tensor], Upload], random: Random
) -> None:
    old, upload = case
    order = list(range(len(upload.ids)))
    random.shuffle(order)
    one, other = (
        reduce_slots(old, upload)[0],
        reduce_slots(old, upload.keep(torch.tensor(order)))[0],
    )
    assert all(torch.allclose(one[k], other[k], rtol=1e-12, atol=1e-12) for k in old)


@given(uploads(), st.floats(1e-3, 1e3))
def test_only_the_proportions_of_weights_matter(
    case: tuple[dict[str, torch.Tensor], Upload], scale: float
) -> None:
    old, upload = case
    one, other = (
        reduce_slots(old, replace(upload, weights=upload.weights * s))[0] for s in (1.0, scale)
    )
    assert all(torch.allclose(one[k], other[k], rtol=1e-12, atol=1e-12) for k in old)


@given(uploads())
def test_clients_that_agree_are_not_changed_by_averaging(
    case: tuple[dict[str, torch.Tensor], Upload],
) -> None:
    old, upload = case
    alike = replace(upload, copies={k: v[:1].expand_as(v) for k, v in upload.copies.items()})
    new, written = reduce_slots(old, alike)
    for k, copies in alike.copies.items():
        one = copies[0] if upload.per_slot else copies[0].expand_as(old[k])
        assert torch.allclose(new[k][written], one[written], rtol=1e-12, atol=1e-12)


def test_a_tensor_that_is_not_uploaded_stays() -> None:
    """Local BatchNorm statistics are on the server, and nobody sends them."""
    old = {"weight": torch.zeros(1, 2), "running_mean": torch.ones(1, 2)}
    upload = Upload(
        "b",
        torch.tensor([0]),
        {"weight": torch.ones(1, 2)},
        torch.ones(1, 1).double(),
        False,
        Average(),
    )
    new, _ = reduce_slots(old, upload)
    assert new["weight"].tolist() == [[1, 1]] and new["running_mean"].tolist() == [[1, 1]]


def test_each_client_writes_its_own_slot() -> None:
    old = {"weight": torch.zeros(5, 2)}
    copies = {"weight": torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])}
    weights = torch.tensor([[4.0], [0.0], [9.0]], dtype=torch.double)  # client 1 has nothing to say
    new, written = reduce_slots(
        old, Upload("b", torch.tensor([0, 1, 4]), copies, weights, False, Average(), own=True)
    )
    assert written.tolist() == [True, False, False, False, True]
    assert new["weight"][:, 0].tolist() == [1, 0, 0, 0, 3]


def test_single_precision_is_summed_in_double() -> None:
    """1e8 + 1 is 1e8 in single precision: a thousand ones would be lost."""
    values = torch.tensor([1e8] + [1.0] * 1000)
    weights = torch.ones(1001, 1, dtype=torch.double)
    upload = Upload("b", torch.arange(1001), {"w": values}, weights, False, Average())
    new, _ = reduce_slots({"w": torch.zeros(1)}, upload)
    assert new["w"].dtype == torch.float32
    assert new["w"].item() == np.float32((1e8 + 1000) / 1001)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedAvg(mlp_net()), PFedMB(mlp_net())], ids=["fedavg", "pfedmb"])
def test_a_round_does_not_depend_on_the_order_in_which_clients_are_named(
    method: FedAvg, engine: str
) -> None:
    one = play(method, ENGINES[engine])[1]
    other = play(
        method, ENGINES[engine], cohorts=tuple(tuple(reversed(cohort)) for cohort in COHORTS)
    )[1]
    assert apart(one, other) == 0
