"""On a GPU: kernels agree with double precision, and recorded graphs with plain steps, for every method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from fedblocks.engines.federate import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(3, 32, 6, 5, 0), (6, 14, 16, 5, 0), (1, 28, 32, 3, 1), (32, 16, 64, 3, 1), (8, 9, 70, 3, 2), (5, 7, 3, 1, 0)]


@pytest.mark.parametrize(("channels", "size", "filters", "kernel", "pad"), SHAPES)
def test_convolutions_of_a_stack_and_their_gradients_are_those_of_each_client(channels, size, filters, kernel, pad):
    from fedblocks.core.kernels import ClientConvolution

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(4, 5, channels, size, size, device="cuda", generator=noise, requires_grad=True)
    w = torch.randn(4, filters, channels, kernel, kernel, device="cuda", generator=noise, requires_grad=True)
    b = torch.randn(4, filters, device="cuda", generator=noise, requires_grad=True)
    y = vmap(lambda x, w, b: ClientConvolution.apply(x, w, b, pad))(x, w, b)
    expected = torch.stack([F.conv2d(*(t[i].double() for t in (x, w, b)), padding=pad) for i in range(4)])
    slope = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, w, b), slope))
    wanted = (expected, *torch.autograd.grad(expected, (x, w, b), slope.double()))
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 3e-6 * other.abs().max()


@pytest.mark.parametrize("name", EXAMPLES)
def test_recorded_graphs_and_plain_steps_and_a_loop_end_alike(name):
    example = EXAMPLES[name]()
    setting = example.setting(example.federation.to("cuda"))
    ends = []
    for engine in (Sequential(), Vectorised(graphs=False), Vectorised(graphs=True)):
        state = setting.start()
        for _ in range(5):
            state, report = run_round(setting, state, example.everybody, engine)
            assert not report.refusals
        ends.append(state)
    for other in ends[1:]:
        for block, params in ends[0].server.items():
            for key, value in params.items():
                assert torch.allclose(other.server[block][key], value, atol=1e-4, rtol=1e-4), (name, block, key)
        assert other.private.keys() == ends[0].private.keys()


def test_steps_are_really_recorded():
    example = EXAMPLES["pfedmb"]()
    setting = example.setting(example.federation.to("cuda"))
    engine = Vectorised(graphs=True)
    state = setting.start()
    for _ in range(6):
        state, _ = run_round(setting, state, example.everybody, engine)
    captured = next(iter(engine.recorded.values()))
    assert captured.graphs and not captured.refused


def test_a_learning_rate_schedule_reaches_a_recorded_graph():
    from fedblocks.core.schedules import Milestones

    example = EXAMPLES["fedavg"]()
    options = {**example.options, "lr": Milestones(0.2, rounds=(6,), factor=0.0)}
    setting = replace(example, options=options).setting(example.federation.to("cuda"))
    engine, state, seen = Vectorised(graphs=True), setting.start(), []
    for _ in range(8):
        state, _ = run_round(setting, state, example.everybody, engine)
        seen.append(next(iter(state.server["model"].values())))
    assert not torch.equal(seen[4], seen[5]) and torch.allclose(seen[5], seen[7], atol=1e-7)
