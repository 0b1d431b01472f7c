"""On a GPU: kernels agree with double precision, and recorded graphs with plain steps,
for every method.
"""

from __future__ import annotations

from dataclasses import replace
from threading import get_ident

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from fedblocks.core.random import fold, uniform
from fedblocks.engines import cuda_graphs as captured
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.layers.recurrence import recurrence
from fedblocks.testing import EXAMPLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [
    (3, 32, 6, 5, 0),
    (6, 14, 16, 5, 0),
    (1, 28, 32, 3, 1),
    (32, 16, 64, 3, 1),
    (8, 9, 70, 3, 2),
    (5, 7, 3, 1, 0),
    (20, 8, 130, 3, 1),  # many filters on a small image
]
# sums whose length is no multiple of a block's depth, of every kind of block
UNEVEN = [(20, 8, 65, 3, 1), (20, 8, 257, 3, 1), (33, 16, 130, 3, 1), (20, 9, 31, 3, 1)]
# rows of pixels that begin at multiples of 16, with many filters
EVEN = [(64, 16, 128, 3, 1), (128, 16, 128, 3, 1), (128, 32, 128, 3, 1), (256, 16, 256, 3, 1)]
EVEN += [(64, 32, 64, 3, 1), (32, 32, 32, 3, 1), (128, 16, 160, 1, 0), (32, 48, 64, 5, 2)]


@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("channels", "size", "filters", "kernel", "pad"), SHAPES + EVEN)
@pytest.mark.filterwarnings("error::RuntimeWarning")  # a kernel that is wrong would be replaced
def test_convolutions_of_a_stack_are_those_of_each_client(
    channels, size, filters, kernel, pad, stride, compiler, monkeypatch
):
    from fedblocks.kernels.cuda import nvrtc
    from fedblocks.layers.mapped_convolution import ClientConvolution

    if not compiler:
        monkeypatch.setattr(nvrtc, "available", lambda: False)  # then Triton does it all
    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(4, 5, channels, size, size, device="cuda", generator=noise, requires_grad=True)
    w = torch.randn(
        4, filters, channels, kernel, kernel, device="cuda", generator=noise, requires_grad=True
    )
    b = torch.randn(4, filters, device="cuda", generator=noise, requires_grad=True)
    y = vmap(lambda x, w, b: ClientConvolution.apply(x, w, b, (pad, stride)))(x, w, b)
    expected = torch.stack(
        [
            F.conv2d(*(t[i].double() for t in (x, w, b)), padding=pad, stride=stride)
            for i in range(4)
        ]
    )
    slope = torch.randn_like(y)
    actual = (y, *torch.autograd.grad(y, (x, w, b), slope))
    wanted = (expected, *torch.autograd.grad(expected, (x, w, b), slope.double()))
    for one, other in zip(actual, wanted, strict=True):
        assert (one - other).abs().max() <= 3e-6 * other.abs().max()


@pytest.mark.parametrize(("channels", "size", "filters", "kernel", "pad"), SHAPES + UNEVEN + EVEN)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_convolutions_in_tensor_float_32_are_those_of_each_client(
    channels, size, filters, kernel, pad
):
    """Four factors on the way to a gradient, each cut to ten bits: 4 / 1024."""
    from fedblocks.layers.mapped_convolution import ClientConvolution
    from fedblocks.runs.run import tf32

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(3, 4, channels, size, size, device="cuda", generator=noise)
    w = torch.randn(3, filters, channels, kernel, kernel, device="cuda", generator=noise)
    slopes = grad(
        lambda x, w: ClientConvolution.apply(x, w, None, (pad, 1)).square().mean(), (0, 1)
    )
    plain = grad(lambda x, w: F.conv2d(x, w, padding=pad).square().mean(), (0, 1))
    with tf32(True):
        actual = vmap(slopes)(x, w)
    for i in range(3):
        for one, other in zip(actual, plain(x[i].double(), w[i].double()), strict=True):
            assert (one[i] - other).abs().max() <= 4e-3 * other.abs().max()


@pytest.mark.parametrize(("channels", "size", "filters", "kernel", "pad"), SHAPES + UNEVEN + EVEN)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_convolutions_in_half_precision_are_those_of_each_client(
    channels, size, filters, kernel, pad
):
    """Results of seven bits: 1 / 128, of the largest."""
    from fedblocks.layers.mapped_convolution import ClientConvolution

    noise = torch.Generator(device="cuda").manual_seed(0)
    shapes = [(3, 4, channels, size, size), (3, filters, channels, kernel, kernel)]
    x, w = (torch.randn(*s, device="cuda", generator=noise).bfloat16() for s in shapes)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = vmap(lambda x, w: ClientConvolution.apply(x, w, None, (pad, 1)))(x, w)
    expected = torch.stack([F.conv2d(x[i].double(), w[i].double(), padding=pad) for i in range(3)])
    slope = torch.randn_like(y)
    actual = (y, *torch.autograd.grad(y, (x, w), slope))
    wanted = (expected, *torch.autograd.grad(expected, (x, w), slope.double()))
    for one, other in zip(actual, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - other).abs().max() <= other.abs().max() / 128


@pytest.mark.parametrize("net", ["lenet", "resnet", "vit", "gru", "gpt", "next_word"])
def test_a_stack_in_half_precision_moves_as_far_from_single_precision_as_one_client_does(net):
    from fedblocks.bench import jobs
    from fedblocks.bench.materials import materials
    from fedblocks.runs.run import products_in

    kinds = (jobs.J1, jobs.J10, jobs.J12, jobs.J13, jobs.J14, jobs.J4)
    job = next(one for one in kinds if one.net == net)
    few = replace(job, clients=3, cohort=3, cpu_cohort=None, examples=16, batch=8)
    ready = materials(few, "cuda")

    def move(precision, engine):
        with products_in(precision):
            state, _ = run_round(ready.experiment, ready.start, ready.cohort, engine)
        blocks = state.server.items()
        moved = [v - ready.start.server[n][k] for n, b in blocks for k, v in b.items()]
        return torch.cat([t.flatten().double() for t in moved])

    exact = move("float32", Sequential())
    away = [(move("bf16", e) - exact).norm() for e in (Sequential(), Vectorised(graphs=False))]
    assert 0 < away[1] <= 2 * away[0] and away[0] <= 0.3 * exact.norm()


@pytest.mark.parametrize("turned", [(), (0,), (1,), (0, 1)])
def test_products_of_a_stack_are_those_of_each_client_however_they_lie_in_memory(turned):
    from fedblocks.kernels.triton.product import multiply

    noise = torch.Generator(device="cuda").manual_seed(0)
    shapes = [(3, 130, 70), (3, 70, 65)]
    pair = [torch.randn(*shape, device="cuda", generator=noise) for shape in shapes]
    factors = [t.mT.contiguous().mT if i in turned else t for i, t in enumerate(pair)]
    bias = torch.randn(3, 65, device="cuda", generator=noise)
    expected = factors[0].double() @ factors[1].double()
    shifted = expected + bias[:, None]
    assert (multiply(*factors) - expected).abs().max() <= 2e-6 * expected.abs().max()
    assert (multiply(*factors, bias) - shifted).abs().max() <= 2e-6 * shifted.abs().max()


@pytest.mark.parametrize(("filters", "joined"), [(5, False), (20, False), (5, True)])
def test_gradients_inside_a_client_and_second_derivatives_are_those_of_each_client(filters, joined):
    from fedblocks.kernels.triton.pooling import max_pool
    from fedblocks.layers.mapped_convolution import ClientConvolution
    from fedblocks.layers.mapped_pooling import convolve_and_pool

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(3, 4, 2, 9, 9, device="cuda", generator=noise)
    w = torch.randn(3, filters, 2, 3, 3, device="cuda", generator=noise)
    v = torch.randn(3, 6, filters, 3, 3, device="cuda", generator=noise)

    def ours(w, v, x):
        shift = w.sum((1, 2, 3))
        pooled = (
            convolve_and_pool(x, w, shift, 1, False)
            if joined
            else max_pool(ClientConvolution.apply(x, w, shift, (1, 1)), 2)
        )
        return ClientConvolution.apply(pooled.sigmoid(), v, None, (1, 2)).square().mean()

    def plain(w, v, x):
        hidden = F.max_pool2d(F.conv2d(x, w, w.sum((1, 2, 3)), padding=1), 2).sigmoid()
        return F.conv2d(hidden, v, None, padding=1, stride=2).square().mean()

    def curved(loss):  # the length of the gradient, and how that changes with the weights
        return grad(
            lambda w, v, x: sum(g.square().sum() for g in grad(loss, (0, 1))(w, v, x)), (0, 1)
        )

    for actual, wanted in (
        (grad(ours, (0, 1)), grad(plain, (0, 1))),
        (curved(ours), curved(plain)),
    ):
        expected = [wanted(*(t[i].double() for t in (w, v, x))) for i in range(3)]
        for one, other in zip(vmap(actual)(w, v, x), zip(*expected, strict=True), strict=True):
            assert (one - torch.stack(other)).abs().max() <= 1e-5 * torch.stack(other).abs().max()


POOLED = [
    (3, 32, 6, 5, 0),
    (6, 14, 16, 5, 0),
    (1, 28, 16, 3, 1),
    (2, 9, 5, 3, 2),
    (4, 11, 7, 4, 1),
    (20, 8, 12, 3, 1),
]


@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize(("channels", "size", "filters", "kernel", "pad"), POOLED)
def test_a_convolution_with_its_pooling_is_that_of_each_client(
    channels, size, filters, kernel, pad, rectified
):
    from fedblocks.layers.mapped_pooling import convolve_and_pool

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(
        4, 5, channels, size, size + 2, device="cuda", generator=noise, requires_grad=True
    )
    w = torch.randn(
        4, filters, channels, kernel, kernel, device="cuda", generator=noise, requires_grad=True
    )
    b = torch.randn(4, filters, device="cuda", generator=noise, requires_grad=True)

    def plain(x, w, b):
        pooled = F.max_pool2d(F.conv2d(x, w, b, padding=pad), 2)
        return pooled.relu() if rectified else pooled

    y = vmap(lambda x, w, b: convolve_and_pool(x, w, b, pad, rectified))(x, w, b)
    expected = torch.stack([plain(*(t[i].double() for t in (x, w, b))) for i in range(4)])
    slope = torch.randn_like(y)
    actual = (y, *torch.autograd.grad(y, (x, w, b), slope))
    wanted = (expected, *torch.autograd.grad(expected, (x, w, b), slope.double()))
    for one, other in zip(actual, wanted, strict=True):
        assert (one - other).abs().max() <= 3e-6 * other.abs().max()


def test_a_stack_of_one_input_and_of_inputs_that_begin_anywhere_is_served_too():
    from fedblocks.layers.mapped_pooling import convolve_and_pool

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(1 + 2 * 3 * 12 * 12, device="cuda", generator=noise)[1:].view(2, 3, 12, 12)
    w = torch.randn(5, 6, 3, 5, 5, device="cuda", generator=noise, requires_grad=True)
    y = vmap(lambda w: convolve_and_pool(x, w, None, 0, True))(w)
    expected = torch.stack(
        [F.max_pool2d(F.conv2d(x.double(), own.double()), 2).relu() for own in w]
    )
    slope = torch.randn_like(y)
    theirs = torch.autograd.grad(expected, w, slope.double())[0]
    assert (y - expected).abs().max() <= 3e-6 * expected.abs().max()
    assert (torch.autograd.grad(y, w, slope)[0] - theirs).abs().max() <= 3e-6 * theirs.abs().max()


def test_what_is_no_number_goes_through_a_convolution_and_its_pooling():
    from fedblocks.layers.mapped_pooling import convolve_and_pool

    x = torch.zeros(2, 1, 1, 6, 6, device="cuda")
    x[1, 0, 0, 0, 0] = torch.nan
    y = vmap(lambda x: convolve_and_pool(x, torch.ones(2, 1, 3, 3, device="cuda"), None, 0, True))(
        x
    )
    assert y.isnan().any(-1).any(-1).tolist() == [[[False, False]], [[True, True]]]


@pytest.mark.parametrize(
    ("height", "width", "size"), [(28, 28, 2), (7, 9, 2), (9, 9, 3), (5, 4, 1)]
)
def test_max_pooling_of_a_stack_and_its_gradient_are_torchs_also_among_equals(height, width, size):
    from fedblocks.kernels.triton.pooling import max_pool

    noise = torch.Generator(device="cuda").manual_seed(0)
    x = (
        torch.randint(-2, 3, (3, 4, 5, height, width), device="cuda", generator=noise)
        .float()
        .requires_grad_()
    )
    y = vmap(lambda x: max_pool(x, size))(x)
    expected = F.max_pool2d(x.flatten(0, 1), size).view_as(y)
    slope = torch.randn_like(y)
    assert torch.equal(y, expected)
    assert torch.equal(
        torch.autograd.grad(y, x, slope)[0], torch.autograd.grad(expected, x, slope)[0]
    )
    inner = vmap(grad(lambda x, s: (max_pool(x, size) * s).sum()))(x.detach(), slope)
    assert torch.equal(
        inner,
        torch.autograd.grad((F.max_pool2d(x.flatten(0, 1), size).view_as(y) * slope).sum(), x)[0],
    )


def test_noise_on_a_gpu_is_that_of_the_cpu():
    keys = torch.tensor([0, 1, -1, 2**62, -(2**63)])
    for number in (0, 7, torch.tensor(3), torch.arange(5), torch.arange(3).view(3, 1)):
        moved = number.cuda() if isinstance(number, torch.Tensor) else number
        assert torch.equal(fold(keys.cuda(), moved).cpu(), fold(keys, number))
    assert torch.equal(
        fold(keys[3].cuda(), torch.arange(4).cuda()).cpu(), fold(keys[3], torch.arange(4))
    )
    for shape in ((3, 700), (1,), ()):
        drawn = vmap(lambda key, shape=shape: uniform(key, shape))(keys.cuda())
        assert torch.equal(drawn.cpu(), torch.stack([uniform(key, shape) for key in keys]))
        assert torch.equal(uniform(keys[1].cuda(), shape).cpu(), uniform(keys[1], shape))


def test_an_lstm_of_a_stack_and_its_gradients_are_the_fused_ones(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    lstms = [torch.nn.LSTM(6, 7, batch_first=True).cuda() for _ in range(3)]
    x = torch.randn(3, 4, 5, 6, device="cuda")
    names = [name for name, _ in lstms[0].named_parameters()]
    weights = [
        torch.stack([lstm.get_parameter(n).detach() for lstm in lstms]).requires_grad_()
        for n in names
    ]

    def outputs(x, w_in, w_state, b_in, b_state):
        zero = x.new_zeros(len(x), 7)
        return recurrence(F.linear(x, w_in, b_in + b_state), w_state, zero, zero)[0]

    actual = vmap(outputs)(x, *weights)
    expected = torch.stack([lstm(one)[0] for lstm, one in zip(lstms, x)])
    assert torch.allclose(actual, expected, atol=1e-5)
    own = torch.autograd.grad(actual.square().sum(), weights)
    theirs = torch.autograd.grad(
        expected.square().sum(), [lstm.get_parameter(n) for n in names for lstm in lstms]
    )
    for number, gradient in enumerate(own):
        assert torch.allclose(gradient, torch.stack(theirs[3 * number : 3 * number + 3]), atol=1e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_recorded_graphs_and_plain_steps_and_a_loop_end_alike(name, monkeypatch):
    monkeypatch.setattr(captured, "_WORTH_A_HOOK", 0.0)  # all of them
    example = EXAMPLES[name]()
    experiment = example.experiment(example.federation.to("cuda"))
    ends = []
    for engine in (Sequential(), Vectorised(graphs=False), Vectorised(graphs=True)):
        state = experiment.start()
        for _ in range(5):
            state, report = run_round(experiment, state, example.everybody, engine)
            assert not report.refusals
        ends.append(state)
    for other in ends[1:]:
        for block, params in ends[0].server.items():
            for key, value in params.items():
                assert torch.allclose(other.server[block][key], value, atol=1e-4, rtol=1e-4), (
                    name,
                    block,
                    key,
                )
        assert other.private.keys() == ends[0].private.keys()


def test_hooks_are_really_recorded_if_they_take_long(monkeypatch):
    for least, recorded in ((0.0, True), (60.0, False)):
        monkeypatch.setattr(captured, "_WORTH_A_HOOK", least)
        example = EXAMPLES["fedfomo"]()
        experiment, engine = (
            example.experiment(example.federation.to("cuda")),
            Vectorised(graphs=True),
        )
        state = experiment.start()
        for _ in range(4):
            state, _ = run_round(experiment, state, example.everybody, engine)
        graphs = next(iter(engine.recorded.values())).graphs.values()
        assert any(isinstance(graph, captured.HookGraph) for graph in graphs) == recorded


def test_steps_are_really_recorded():
    example = EXAMPLES["pfedmb"]()
    experiment = example.experiment(example.federation.to("cuda"))
    engine = Vectorised(graphs=True)
    state = experiment.start()
    for _ in range(6):
        state, _ = run_round(experiment, state, example.everybody, engine)
    actual = next(iter(engine.recorded.values()))
    assert actual.graphs and not actual.refused


def test_a_learning_rate_schedule_reaches_a_recorded_graph():
    from fedblocks.core.schedules import Milestones

    example = EXAMPLES["fedavg"]()
    options = {**example.options, "lr": Milestones(0.2, rounds=(6,), factor=1e-300)}
    experiment = replace(example, options=options).experiment(example.federation.to("cuda"))
    engine, state, seen = Vectorised(graphs=True), experiment.start(), []
    for _ in range(8):
        state, _ = run_round(experiment, state, example.everybody, engine)
        seen.append(next(iter(state.server["model"].values())))
    assert not torch.equal(seen[4], seen[5]) and torch.allclose(seen[5], seen[7], atol=1e-7)


def test_tf32_costs_no_more_accuracy_than_another_seed_does(tmp_path):
    """Three seeds of pFedMB on the digits: tf32 moves the mean test accuracy by less
    than their spread.
    """
    from fedblocks.config.presets import PRESETS, change
    from fedblocks.runs.run import run

    table = PRESETS["digits-pfedmb"]()
    ends = {}
    for precision in ("float32", "tf32"):
        runs = [
            change(
                table.resolved(),
                table.source,
                [f"seed={s}", 'device="cuda"', f'precision="{precision}"'],
            )
            for s in range(3)
        ]
        actual = [
            run(one, tmp_path / f"{precision}-{k}").accuracies() for k, one in enumerate(runs)
        ]
        ends[precision] = [sum(own.values()) / len(own) for own in actual]
    spread = max(ends["float32"]) - min(ends["float32"])
    differences = [one - other for one, other in zip(ends["tf32"], ends["float32"])]
    assert abs(sum(differences)) / 3 <= max(spread, 0.01), ends


def test_a_comparison_on_a_gpu_runs_its_seeds_as_lanes(tmp_path):
    from fedblocks.runs.grids.grid import cell_folder, play_grid, read_grid
    from fedblocks.runs.result import load_run

    changes = ['device="cuda"', "rounds=2", 'engine="vectorised"']
    actual = play_grid(read_grid("digits-fedavg", ["fedper"], 2, changes), tmp_path / "grid")
    assert all(one.status == "finished" for by_seed in actual.values() for one in by_seed.values())
    lane = load_run(cell_folder(tmp_path / "grid", "fedper", 1))
    assert any("lanes" in note["text"] for note in lane.notes)


def group_norm(x, w, b):
    return F.group_norm(x, 3, w, b)


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def look_back(q, k):
    """Each query on the three keys up to its own; the second one nowhere."""
    own, other = (torch.arange(t.shape[-2], device=t.device) for t in (q, k))
    back = own[:, None] - other
    return (back >= 0) & (back < 3) & (own != 1)[:, None]


def masked_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, look_back(q, k))


def strided(x, w, b):
    return F.conv2d(x, w, b, padding=1, stride=2)


FUSED = {
    "dense": (F.linear, [(130, 70), (129, 70), (129,)]),
    "convolution": (strided, [(3, 4, 7, 7), (20, 4, 3, 3), (20,)]),
    "group_norm": (group_norm, [(5, 6, 7, 5), (6,), (6,)]),
    "group_norm of rows": (group_norm, [(5, 12), (12,), (12,)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 9, 8), (2, 3, 11, 8), (2, 3, 11, 8)]),
    "masked attention": (masked_attention, [(2, 3, 9, 8), (2, 3, 11, 8), (2, 3, 11, 8)]),
    "causal attention": (causal_attention, [(2, 3, 9, 8)] * 3),
}


def fused(name):
    from fedblocks.layers.dense import dense
    from fedblocks.layers.mapped_attention import fused_attention
    from fedblocks.layers.mapped_convolution import ClientConvolution
    from fedblocks.layers.mapped_group_norm import normalise

    if name == "dense":
        return dense
    if name == "convolution":
        return lambda x, w, b: ClientConvolution.apply(x, w, b, (1, 2))
    if name.startswith("group_norm"):
        return lambda x, w, b: normalise(x, w, b, 3, 1e-5)
    if name.startswith("masked"):
        return lambda q, k, v: fused_attention(
            q, k, v, torch.where(look_back(q, k), 0.0, -torch.inf)
        )
    return lambda q, k, v: fused_attention(q, k, v, is_causal=name.startswith("causal"))


@pytest.mark.parametrize("depth", [0, 1, 2])  # the outputs, their gradients, those of gradients
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_layer_of_a_stack_is_that_of_each_client(name, depth):
    plain, shapes = FUSED[name]
    noise = torch.Generator(device="cuda").manual_seed(0)
    inputs = [torch.randn(4, *s, device="cuda", generator=noise) for s in shapes]

    def derived(function):
        def loss(*own):
            return function(*own).pow(3).mean()

        if depth == 0:
            return function
        slopes = grad(loss, (0, 1, 2))
        if depth == 1:
            return slopes
        return grad(lambda *own: sum(s.square().sum() for s in slopes(*own)), (0, 1, 2))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = [derived(plain)(*(t[i].double() for t in inputs)) for i in range(4)]
    actual = vmap(derived(fused(name)))(*inputs)
    pairs = [(actual, expected)] if depth == 0 else zip(actual, zip(*expected, strict=True))
    for one, others in pairs:
        other = torch.stack(list(others))
        assert (one - other).abs().max() <= 2e-5 * other.abs().max()


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_layer_of_a_stack_of_stacks_is_that_of_each(name):
    plain, shapes = FUSED[name]
    noise = torch.Generator(device="cuda").manual_seed(0)
    inputs = [torch.randn(3, 2, *s, device="cuda", generator=noise) for s in shapes]
    slopes = vmap(vmap(grad(lambda *own: fused(name)(*own).pow(3).mean(), (0, 1, 2))))(*inputs)
    double = [t.double() for t in inputs]
    for i in range(3):
        for j in range(2):
            one = grad(lambda *own: plain(*own).pow(3).mean(), (0, 1, 2))(
                *(t[i, j] for t in double)
            )
            for actual, expected in zip(slopes, one, strict=True):
                assert (actual[i, j] - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_gradients_are_recorded_in_the_thread_that_asks():
    """A workspace of cuBLAS stays with every thread that it has met."""
    threads = set()

    def body():
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        x.register_hook(lambda _: threads.add(get_ident()))
        torch.autograd.grad((x @ x).sum(), x)

    captured._capture(body, torch.cuda.graph_pool_handle())
    assert threads == {get_ident()}


def test_recordings_use_one_stream():
    """A workspace of cuBLAS stays with every stream that it has met."""
    held = []
    for _ in range(3):
        x = torch.randn(64, 64, device="cuda")
        captured._capture(lambda x=x: x @ x, torch.cuda.graph_pool_handle())
        del x
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[2] - held[1] < 2**20
