"""Stacks of clients, slots and examples whose convolutions are larger than one call may be."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedblocks as fb
from fedblocks.data.rows import Rows
from fedblocks.engines.memory import ByteCount, measure_need
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.layers import large_batches
from fedblocks.layers.convolution import Conv2d

CLIENTS, EXAMPLES, CLUSTERS, SIDE = 4, 10, 3, 6
# the largest result of an example: 5 filters on 6 x 6 pixels. Fewer than a client's cluster has
LIMIT = 8 * CLIENTS * CLUSTERS * 5 * SIDE**2


class LargestCall(TorchDispatchMode):
    """Numbers of the largest tensor that a convolution, or its way back, was given or gave."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if "convolution" in func.__name__:
            tensors = [t for t in tree_leaves((args, results)) if isinstance(t, Tensor)]
            self.numbers = max(self.numbers, *(t.numel() for t in tensors))
        return results


def layers() -> nn.Module:
    torch.manual_seed(2)
    # the first one has an adapter, so that slots differ from there on
    convolutions = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 1)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(*convolutions, *end).double()


def federation() -> fb.Federation:
    torch.manual_seed(3)
    count = CLIENTS * EXAMPLES
    x = torch.randn(count, 2, SIDE, SIDE, dtype=torch.float64)
    rows = [list(range(c * EXAMPLES, (c + 1) * EXAMPLES)) for c in range(CLIENTS)]
    few = Rows.of([own[:2] for own in rows])
    parts = {"train": Rows.of(rows), "validation": few, "test": few}
    return fb.Federation(x, torch.arange(count) % 3, **parts, classes=3)


def experiment(adapters: bool, **options: Any) -> Experiment:
    form = partial(fb.lora, rank=2) if adapters else fb.Net.of
    net = form(layers, dtype=torch.float64)
    method = fb.IFCA(net, **{"clusters": CLUSTERS, "batch_size": 5, "lr": 0.1, **options})
    return Experiment.of(method, federation())


@pytest.mark.parametrize("adapters", [True, False])
def test_no_convolution_of_a_stack_is_larger_than_the_limit(
    adapters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> tuple[Any, int]:
        own = experiment(adapters)
        with LargestCall() as largest:
            state, _ = run_round(own, own.start(), range(CLIENTS), Vectorised())
        return state.server, largest.numbers

    whole, most = train()
    assert most == CLIENTS * CLUSTERS * EXAMPLES * 5 * SIDE**2  # in one call
    monkeypatch.setattr(large_batches, "MOST", LIMIT)
    in_parts, most = train()
    assert LIMIT / 2 < most <= LIMIT
    for one, other in zip(tree_leaves(whole), tree_leaves(in_parts), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2)},
        {"kernel_size": 3, "dilation": 2, "padding": "same"},
        {"kernel_size": 2, "padding": 1, "padding_mode": "circular"},
    ],
)
def test_outputs_are_counted_as_they_are(options: dict[str, Any]) -> None:
    layer, x = nn.Conv2d(2, 7, **options), torch.ones(3, 2, 9, 8)
    assert large_batches._numbers_of_output(layer, x) == layer(x)[0].numel()


def test_copies_are_counted_once_for_each_hidden_dimension() -> None:
    counted: list[int] = []

    def look(x: Tensor, w: Tensor) -> Tensor:
        counted.append(large_batches.count_copies(x, w))
        return x.sum() + w.sum()

    x, w = torch.ones(4, 2), torch.ones(4, 3, 2)
    vmap(lambda own, stack: vmap(partial(look, own))(stack))(x, w)  # 4 clients with 3 slots each
    vmap(torch.func.grad(look), in_dims=(0, None))(x, w)
    look(x, w)
    assert counted == [12, 4, 1]


def test_a_batch_is_cut_only_where_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Conv2d(1, 2, 1), torch.ones(6, 1, 2, 2)  # results of 8 numbers an example
    for limit, calls in ((48, 1), (47, 2), (16, 3), (7, 6)):
        monkeypatch.setattr(large_batches, "MOST", limit)
        sizes: list[int] = []
        convolve = lambda part, sizes=sizes: sizes.append(len(part)) or layer._convolve(part)
        assert torch.equal(large_batches.convolve_in_parts(layer, convolve, x), layer._convolve(x))
        assert len(sizes) == calls and sum(sizes) == 6


@pytest.mark.parametrize("start", ["random", "updates"])
def test_losses_of_all_clusters_take_the_memory_of_so_many_nets(start: str) -> None:
    one, several = (
        measure_need(experiment(True, clusters=n, start=start), "all", ["test"]) for n in (1, 9)
    )
    # activations of 9 models take most, whether they are compared in the first round or later
    assert several.bytes(CLIENTS, CLIENTS) > 6 * one.bytes(CLIENTS, CLIENTS)


def test_clusters_that_come_after_the_first_round_are_in_the_memory_asked_for() -> None:
    own = experiment(False, clusters=4, start="updates")
    need = measure_need(own, "all", ["test"]).bytes(CLIENTS, CLIENTS)
    state, engine, peaks = own.start(), Vectorised(), []
    for _ in range(2):  # the first one with one model for all
        with ByteCount() as count:
            state, _ = run_round(own, state, range(CLIENTS), engine)
        peaks.append(count.most)
    assert int(state.server["begun"]["value"]) == 4
    assert peaks[1] > 3 * peaks[0] and peaks[1] == pytest.approx(need, rel=0.05)
