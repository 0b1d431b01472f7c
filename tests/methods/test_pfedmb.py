"""pFedMB's limit cases, its compressed upload, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.arithmetic import mix
from fedblocks.core.blocks import Pool, Shared
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.plan import plan
from fedblocks.core.random import derive
from fedblocks.core.state import State, initial_private, initial_state
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.pfedmb.branches import without_small
from fedblocks.methods.pfedmb.method import PFedMB

SIZES = (11, 4, 7, 9)
ENGINES = [Sequential(), Vectorised(chunk=3)]


def conv_net(dtype: torch.dtype = torch.float64) -> Net:
    """A convolution with its norm, and a dense layer: 6 x 6 images, 3 classes."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
        )

    return Net.of(make, dtype=dtype)


def dense_net() -> Net:
    """No norms, whose scales all clients would share."""
    return Net.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), dtype=torch.float64)


def federation(dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = SIZES) -> Federation:
    draw = np.random.Generator(np.random.PCG64(2))
    cuts = np.split(np.arange(2 * sum(sizes)), np.cumsum([s for s in sizes for _ in range(2)])[:-1])
    x = torch.from_numpy(draw.normal(size=(2 * sum(sizes), 1, 6, 6))).to(dtype)
    y = torch.from_numpy(draw.integers(0, 3, 2 * sum(sizes)))
    return Federation(
        x, y, Rows.of(cuts[::2]), Rows.none(len(sizes)), Rows.of(cuts[1::2]), classes=3
    )


def pfedmb(net: Net | None = None, **options: Any) -> PFedMB:
    usual: dict[str, Any] = {
        "lr": 0.1,
        "epochs": 2,
        "batch_size": 4,
        "branches": 3,
        "alpha_lr": 0.5,
    }
    return PFedMB(net or conv_net(), **{**usual, **options})


def play(
    method: PFedMB | FedAvg, rounds: int = 2, engine: Any = ENGINES[0], **at: Any
) -> tuple[State, Report]:
    experiment = Experiment.of(method, at.get("data") or federation(method.net.dtype), seed=1)
    state = at.get("start") or experiment.start()
    for _ in range(rounds):
        state, report = run_round(experiment, state, range(experiment.data.clients), engine)
        assert report.refusals == []
    return state, report


def with_alpha(state: State, rows: Tensor) -> State:
    """Every client starts with these weights: [clients, rows, branches]."""
    return replace(state, private={i: {"alpha": {"value": row}} for i, row in enumerate(rows)})


def alphas(method: PFedMB, state: State) -> Tensor:
    """[clients, layers, branches]."""
    return torch.stack(
        [torch.stack(list(method.alpha(own).values())) for own in state.private.values()]
    )


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
@pytest.mark.parametrize("param", ["softmax", "projection"])
def test_one_branch_is_fedavg(param: str, engine: Any) -> None:
    # FedAvg's batches are those of its phase 0; pFedMB's weights train in phase 1. One batch a
    # client makes them alike.
    whole = {"batch_size": 20}
    one, _ = play(pfedmb(branches=1, alpha_param=param, **whole), engine=engine)
    plain, _ = play(FedAvg(conv_net(), lr=0.1, epochs=2, **whole), engine=engine)
    for block in ("layers.0", "layers.4", "rest"):
        for name, value in one.server[block].items():
            torch.testing.assert_close(value, plain.server["model"][name], rtol=0, atol=1e-12)


def test_mixing_weights_is_mixing_outputs_for_dense_layers_and_convolutions() -> None:
    draw = torch.Generator().manual_seed(0)
    alpha = torch.softmax(torch.randn(3, generator=draw), 0)
    dense = {
        "weight": torch.randn(3, 5, 7, generator=draw),
        "bias": torch.randn(3, 5, generator=draw),
    }
    kernel = {
        "weight": torch.randn(3, 4, 2, 3, 3, generator=draw),
        "bias": torch.randn(3, 4, generator=draw),
    }
    for stack, layer, x in (
        (dense, F.linear, torch.randn(6, 7, generator=draw)),
        (kernel, F.conv2d, torch.randn(6, 2, 8, 8, generator=draw)),
    ):
        outputs = sum(alpha[b] * layer(x, stack["weight"][b], stack["bias"][b]) for b in range(3))
        torch.testing.assert_close(layer(x, **mix(stack, alpha)), outputs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(),
        SGD(momentum=0.9),
        SGD(momentum=0.9, weight_decay=5e-3),
        SGD(momentum=0.8, nesterov=True, weight_decay=0.05),
    ],
    ids=["sgd", "momentum", "momentum and decay", "nesterov and decay"],
)
def test_a_compressed_upload_gives_the_same_server_state(
    optimizer: SGD, dtype: torch.dtype, engine: Any
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "lr": 0.05}
    full, before = play(pfedmb(conv_net(dtype), **options), rounds=1, engine=engine)
    small, after = play(
        pfedmb(conv_net(dtype), compressed_upload=True, **options), rounds=1, engine=engine
    )
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for block in full.server:
        for name, value in full.server[block].items():
            torch.testing.assert_close(small.server[block][name], value, rtol=0, atol=tolerance)
    assert torch.equal(alphas(pfedmb(), full), alphas(pfedmb(), small))
    number = 8 if dtype == torch.float64 else 4
    layers = (2 * 9 + 2) + (32 * 3 + 3)  # numbers of the convolution and of the dense layer
    rest = number * 8 + 8  # two scales, two shifts, four statistics; and its weight
    # what weight decay left of a branch, and its weight
    decay = number + 8 if optimizer.weight_decay else 0
    for client in range(len(SIZES)):
        up = sum(by_client[client] for by_client in after.bytes_up.values())
        # P, and B weights for each of L layers
        assert up == number * layers + 8 * 3 * 2 + rest + decay
        assert (
            sum(b[client] for b in before.bytes_up.values())
            == 3 * number * layers + 8 * 3 * 2 + rest
        )


def test_a_compressed_upload_skips_branches_that_nobody_uses() -> None:
    options: dict[str, Any] = {"alpha_param": "projection", "alpha_epochs": 0, "branches": 2}
    start = Experiment.of(pfedmb(**options), federation(), 1).start()
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(len(SIZES), 2, 2)
    full, _ = play(pfedmb(**options), start=with_alpha(start, one_hot))
    small, _ = play(pfedmb(compressed_upload=True, **options), start=with_alpha(start, one_hot))
    for name, value in full.server["layers.0"].items():
        assert torch.equal(value[1], start.server["layers.0"][name][1])
        torch.testing.assert_close(small.server["layers.0"][name], value, rtol=0, atol=1e-12)


def test_a_step_as_printed_moves_the_merged_weight_by_the_squared_norm_of_alpha() -> None:
    method = pfedmb(epochs=1, batch_size=20, alpha_epochs=0, lr_scale="printed")
    data = federation(sizes=(9,))
    start = Experiment.of(method, data, 1).start()
    logits = torch.tensor([[[0.5, -1.0, 2.0], [0.0, 0.3, 0.1]]], dtype=torch.float64)
    state, _ = play(method, 1, data=data, start=with_alpha(start, logits))
    alpha = method.alpha({"alpha": {"value": logits[0]}})
    old = {name: mix(start.server[name], weights) for name, weights in alpha.items()}
    whole = {
        **old["layers.0"],
        **old["layers.4"],
        **{k: v[0] for k, v in start.server["rest"].items()},
    }
    module = conv_net().make().double().train()
    module.load_state_dict(whole, strict=False)
    rows = torch.from_numpy(np.array(data.train[0]))
    F.cross_entropy(module(data.x[rows]), data.y[rows]).backward()
    slope = {name: p.grad for name, p in module.named_parameters()}
    for name, weights in alpha.items():
        for key, value in mix(state.server[name], weights).items():
            expected = old[name][key] - 0.1 * weights.square().sum() * slope[key]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scope", ["layer", "model"])
@pytest.mark.parametrize(("param", "lr"), [("softmax", 5.0), ("projection", 2.0)])
def test_alpha_stays_on_the_simplex(param: str, lr: float, scope: str) -> None:
    method = pfedmb(alpha_param=param, alpha_lr=lr, alpha_scope=scope)
    state, _ = play(method)
    actual = alphas(method, state)
    assert actual.min() >= 0
    torch.testing.assert_close(
        actual.sum(-1), torch.ones(len(SIZES), 2, dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert not torch.allclose(actual, torch.full_like(actual, 1 / 3))
    assert torch.equal(actual[:, 0], actual[:, 1]) == (scope == "model")
    assert (actual == 0).any() == (param == "projection")


def test_one_hot_alphas_are_clustered_averaging() -> None:
    """Clients 0 and 2 rely on branch 0, clients 1 and 3 on branch 1: each branch is
    FedAvg among its own.
    """
    method = pfedmb(
        dense_net(), alpha_param="projection", alpha_epochs=0, branches=2, batch_size=20
    )
    start = Experiment.of(method, federation(), 1).start()
    relies = torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1]][:, None]  # [clients, layers, branches]
    branches, _ = play(method, start=with_alpha(start, relies))
    experiment = Experiment.of(
        FedAvg(dense_net(), lr=0.1, epochs=2, batch_size=20), federation(), 1
    )
    for branch, members in enumerate(([0, 2], [1, 3])):
        first = {k: v[branch][None] for k, v in start.server["layers.1"].items()}
        alone = replace(experiment.start(), server={"model": first})
        for _ in range(2):
            alone, _ = run_round(experiment, alone, members, ENGINES[0])
        for name, value in branches.server["layers.1"].items():
            torch.testing.assert_close(
                value[branch], alone.server["model"][name][0], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("param", ["softmax", "projection"])
def test_equal_branches_never_separate(param: str) -> None:
    method = pfedmb(alpha_param=param)
    start = Experiment.of(method, federation(), 1).start()
    alike = {
        n: {k: v[:1].expand_as(v).clone() for k, v in block.items()}
        for n, block in start.server.items()
    }
    state, _ = play(method, start=replace(start, server=alike))
    actual = alphas(method, state)
    torch.testing.assert_close(actual, torch.full_like(actual, 1 / 3), rtol=0, atol=1e-12)


def lenet_like() -> Net:
    """Five layers, as LeNet has, wide enough that the spread of each is known to a few percent."""
    sizes = (60, 64, 64, 64, 64, 40)

    def make() -> nn.Module:
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return Net.of(make, dtype=torch.float64)


def mixed_at_the_start(method: PFedMB, seed: int = 1) -> dict[str, Tensor]:
    """The net of a client that never trained."""
    server = initial_state({"all": method}, 1, seed).server
    return method.merge(server, method.alpha(initial_private(method, seed)))


@pytest.mark.parametrize("param", ["softmax", "projection"])
@pytest.mark.parametrize("branches", [2, 5, 10])
def test_the_mixed_net_at_the_start_has_the_spread_of_a_single_initialisation(
    branches: int, param: str
) -> None:
    net = lenet_like()
    mixed = mixed_at_the_start(pfedmb(net, branches=branches, alpha_param=param))
    one = net.init(12345)  # a seed that no branch has
    for name in one:
        if name.endswith("weight"):
            assert float(mixed[name].std() / one[name].std()) == pytest.approx(1, abs=0.04)
    x = torch.randn(200, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(net(mixed, x).std() / net(one, x).std()) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("branches", [2, 5, 10])
def test_independent_branches_mix_to_a_net_of_less_spread(branches: int) -> None:
    """The mean of B independent numbers has 1 / sqrt(B) of their standard deviation;
    2,560 give that to 1.7 %.
    """
    net = lenet_like()
    mixed, one = (
        mixed_at_the_start(pfedmb(net, branches=branches, start="independent")),
        net.init(12345),
    )
    for name in one:
        if name.endswith("weight"):
            assert float(mixed[name].std() / one[name].std()) == pytest.approx(
                branches**-0.5, rel=0.07
            )


@pytest.mark.parametrize("branches", [1, 4])
def test_the_mixed_net_starts_as_fedavg_does(branches: int) -> None:
    mixed = mixed_at_the_start(pfedmb(branches=branches))
    fedavg = initial_state({"all": FedAvg(conv_net())}, 1, 1).server["model"]
    assert mixed.keys() == fedavg.keys()
    for name, value in fedavg.items():
        torch.testing.assert_close(mixed[name].view_as(value[0]), value[0], rtol=0, atol=1e-15)


def test_one_branch_starts_as_fedavg_to_the_bit() -> None:
    one = initial_state({"all": pfedmb(branches=1)}, 1, 1).server
    fedavg = initial_state({"all": FedAvg(conv_net())}, 1, 1).server["model"]
    for block in one.values():
        for name, value in block.items():
            assert torch.equal(value, fedavg[name])


def test_independent_branches_are_the_initialisations_by_number_to_the_bit() -> None:
    server, net = initial_state({"all": pfedmb(start="independent")}, 1, 1).server, conv_net()
    for number in range(3):
        whole = net.init(derive(1, "init", number))
        for block in ("layers.0", "layers.4"):
            for name, value in server[block].items():
                assert torch.equal(value[number], whole[name])


@pytest.mark.parametrize("start", ["common", "independent"])
def test_branches_start_apart(start: str) -> None:
    server = initial_state({"all": pfedmb(start=start)}, 1, 1).server
    for name, value in {**server["layers.0"], **server["layers.4"]}.items():
        for a, b in combinations(value, 2):
            assert not torch.allclose(a, b), name


@pytest.mark.parametrize("start", ["common", "independent"])
def test_alphas_of_unlike_clients_part_from_either_start(start: str) -> None:
    method = pfedmb(start=start, alpha_lr=3.0)
    actual = alphas(method, play(method)[0])
    assert (actual - 1 / 3).abs().amax() > 1e-3 and (actual[0] - actual[1]).abs().amax() > 1e-3


def test_only_the_named_layers_have_branches() -> None:
    method = pfedmb(branched=("4",))
    layout = method.blocks()
    assert [name for name, block in layout.items() if isinstance(block, Pool)] == ["layers.4"]
    assert isinstance(layout["rest"], Shared) and "0.weight" in method.rest.names
    states = [play(method, engine=engine)[0] for engine in ENGINES]
    for name, value in states[0].server["rest"].items():
        torch.testing.assert_close(value, states[1].server["rest"][name], rtol=0, atol=1e-12)
    start = Experiment.of(method, federation(), 1).start()
    assert not torch.equal(states[0].server["rest"]["0.weight"], start.server["rest"]["0.weight"])
    assert states[0].private[0]["alpha"]["value"].shape == (1, 3)


def test_small_weights_are_dropped_and_the_largest_never_is() -> None:
    weights = torch.tensor([0.5, 0.3, 0.2])
    torch.testing.assert_close(without_small(weights, 0.25), torch.tensor([0.625, 0.375, 0.0]))
    torch.testing.assert_close(without_small(weights, 0.9), torch.tensor([1.0, 0.0, 0.0]))
    assert without_small(weights, 0.0) is weights


def test_dropping_changes_evaluations_and_not_training() -> None:
    data, logits = (
        federation(),
        torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64).expand(len(SIZES), 2, 3),
    )
    actual = []
    for drop in (0.0, 0.2):
        method = pfedmb(drop_below=drop, finetune="none")
        experiment = Experiment.of(method, data, 1)
        state, _ = play(method, start=with_alpha(experiment.start(), logits))
        actual.append((state, evaluate(experiment, state, range(4), ENGINES[0])["personal"][0]))
    assert torch.equal(
        actual[0][0].server["layers.0"]["0.weight"], actual[1][0].server["layers.0"]["0.weight"]
    )
    assert actual[0][1][2] != actual[1][1][2]


def test_more_branches_than_clients_are_allowed() -> None:
    state, _ = play(pfedmb(branches=6))
    assert len(state.server["layers.0"]["0.weight"]) == 6


def test_the_plan_says_how_branches_are_averaged() -> None:
    writes = {how: plan(pfedmb(averaging=how)).rows[0]["writes"] for how in ("alpha", "plain")}
    assert writes == {"alpha": "n x alpha", "plain": "n"}
    assert (
        plan(pfedmb(compressed_upload=True)).rows[0]["writes"]
        == "n x alpha, from change of layers.0"
    )


def test_a_new_client_finds_its_branches_whatever_is_fine_tuned() -> None:
    trains = {
        how: [p.train[0] for p in pfedmb(finetune=how).joining()]
        for how in ("alpha+W", "W", "none")
    }
    assert trains == {
        "alpha+W": ["alpha", "layers.0"],
        "W": ["alpha", "layers.0"],
        "none": ["alpha"],
    }
    tunes = {
        how: [p.train[0] for p in pfedmb(finetune=how).adaptation()]
        for how in ("alpha+W", "W", "none")
    }
    assert tunes == {"alpha+W": ["alpha", "layers.0"], "W": ["layers.0"], "none": []}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"branches": 0}, "branches = 0"),
        ({"alpha_param": "sofmax"}, 'alpha_param = "sofmax": must be .*did you mean "softmax"'),
        ({"alpha_scope": "net"}, "alpha_scope"),
        ({"start": "comon"}, 'start = "comon": must be .*did you mean "common"'),
        ({"averaging": "mean"}, "averaging"),
        ({"finetune": "alpha"}, "finetune"),
        ({"drop_below": 1.0}, "drop_below"),
        ({"branched": ("7",)}, 'no linear layer "7"'),
        ({"branched": ()}, "branched = .*at least 1 item"),
        ({"compressed_upload": True, "optimizer": Adam()}, "not exact with Adam"),
        ({"compressed_upload": True, "keep_optimizer": True}, "not exact with keep_optimizer"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"(?s){told}"):
        pfedmb(**options)


def test_one_branch_is_told_to_be_fedavg() -> None:
    assert pfedmb(branches=1).degenerate() == ["branches = 1 makes pFedMB FedAvg"]
    assert pfedmb().degenerate() == []
