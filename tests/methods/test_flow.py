"""What must hold for Flow, its second version and DynamicRouting: limit cases,
statelessness, refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.recurrent_net import Unrolled
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.flow.dynamic_routing import DynamicRouting
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.flow_v2 import FlowV2
from fedblocks.methods.flow.instance_routes import Paced
from fedblocks.methods.flow.options import POSTER
from fedblocks.nets import cnn, lstm, mlp, next_word
from fedblocks.recipes.papers import flow as recipe

SMALL: dict[str, Any] = {
    "policy": (6, 5),
    "step_policy": (6, 5),
    "dense_policy": (6, 5, 4),
    "local_epochs": 1,
}
NETS = {
    "dense": mlp((1, 6, 6), 3, hidden=(5,)),
    "convolutional": cnn((1, 6, 6), 3, channels=(2, 3), hidden=4, batch_norm=True),
    "text": next_word((6,), 7, embedding=3, hidden=4, projection=5),
    "signal": lstm((6, 6), 3, units=4),
}


def data(name: str, sizes: tuple[int, ...] = (9, 5, 1)) -> Federation:
    draw = np.random.Generator(np.random.PCG64(1))
    cuts = np.split(np.arange(2 * sum(sizes)), np.cumsum([s for s in sizes for _ in range(2)])[:-1])
    parts = Rows.of(cuts[::2]), Rows.none(len(sizes)), Rows.of(cuts[1::2])
    rows = 2 * sum(sizes)
    if name == "text":
        tokens = draw.integers(1, 7, (rows, 7))
        tokens[::2, 4:] = 0
        y = np.where(tokens[:, 1:] == 0, -100, tokens[:, 1:])
        return Federation(torch.from_numpy(tokens[:, :-1]), torch.from_numpy(y), *parts, classes=7)
    shape = (6, 6) if name == "signal" else (1, 6, 6)
    x = torch.from_numpy(draw.normal(size=(rows, *shape)).astype(np.float32))
    return Federation(x, torch.from_numpy(draw.integers(0, 3, rows)), *parts, classes=3)


def made(kind: type[Method], net: Net, **options: Any) -> Any:
    own = SMALL if kind is FlowV2 else {}
    return kind(net, lr=0.1, batch_size=4, **{**own, **options})


def inputs(name: str) -> Tensor:
    return data(name).x[:8]


def client_blocks(method: Any, seed: int = 3, apart: bool = True) -> Blocks:
    """What a client of Flow holds: a shared net, routers, and a local copy that is
    another net if `apart`.
    """
    shared, other = method.net.init(seed), method.net.init(seed + 1)
    local = {name: (other if apart else shared)[name] for name in method.copied.names}
    return {
        "shared": shared,
        "local": local,
        **{n: router.init(seed) for n, router in method.routers.items()},
    }


def pushed(params: Params, logits: tuple[float, float]) -> Params:
    """A router that always says the same: no weights, these two numbers at every exit."""
    exits = {
        name for name, value in params.items() if name.endswith("bias") and value.shape == (2,)
    }
    last = {name.replace("bias", "weight") for name in exits}
    fixed = {name: torch.tensor(logits, dtype=params[name].dtype) for name in exits}
    return {n: fixed.get(n, torch.zeros_like(v) if n in last else v) for n, v in params.items()}


each_net = pytest.mark.parametrize("name", NETS)
each_flow = pytest.mark.parametrize("kind", [Flow, FlowV2])


@each_flow
@each_net
def test_the_routes_of_an_instance_add_up_to_one(kind: type[Method], name: str) -> None:
    method = made(kind, NETS[name])
    _, routes = method.routed(client_blocks(method), inputs(name), hard=False)
    torch.testing.assert_close(routes.sum(-1), torch.ones(routes.shape[:-1]))
    mean = method.routes(client_blocks(method), inputs(name))
    assert mean.shape == (8, 2) and mean.std(0).min() > 0  # instances take different routes
    torch.testing.assert_close(mean.sum(-1), torch.ones(8))


@each_flow
@each_net
def test_a_router_that_is_sure_of_the_shared_branch_leaves_the_shared_net(
    kind: type[Method], name: str
) -> None:
    method = made(kind, NETS[name])
    blocks = client_blocks(method)
    sure = {n: pushed(blocks[n], (1e4, -1e4)) for n in method.routers}
    actual = method.routed({**blocks, **sure}, inputs(name), hard=False)[0]
    torch.testing.assert_close(
        actual, method.net(blocks["shared"], inputs(name)), rtol=0, atol=1e-6
    )


@each_flow
@each_net
def test_a_local_copy_that_is_the_shared_net_makes_routes_no_matter(
    kind: type[Method], name: str
) -> None:
    method = made(kind, NETS[name])
    blocks = client_blocks(method, apart=False)
    for seed in (1, 2):
        other = {n: router.init(seed) for n, router in method.routers.items()}
        actual = method.routed({**blocks, **other}, inputs(name), hard=False)[0]
        torch.testing.assert_close(
            actual, method.net(blocks["shared"], inputs(name)), rtol=0, atol=1e-6
        )


@each_net
def test_a_low_temperature_makes_routes_one_hot(name: str) -> None:
    method = made(Flow, NETS[name], tau=1e-6)
    blocks = client_blocks(method)
    soft, hard = (method.routed(blocks, inputs(name), hard=hard) for hard in (False, True))
    assert set(soft[1].unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(soft[0], hard[0])


def test_a_hard_route_is_one_of_the_branches_even_when_they_are_equal() -> None:
    method = made(Flow, NETS["dense"], eval_routing="hard")
    blocks = client_blocks(method)
    blocks["router"] = pushed(blocks["router"], (0.0, 0.0))
    assert method.routed(blocks, inputs("dense"), hard=True)[1].tolist() == [[[1.0, 0.0]]] * 8


@each_flow
@each_net
def test_clients_keep_nothing_after_a_round(kind: type[Method], name: str) -> None:
    experiment = Experiment.of(made(kind, NETS[name]), data(name))
    state, report = run_round(experiment, experiment.start(), [0, 1, 2], Sequential())
    assert state.private == {} and report.refusals == []
    assert not experiment.methods["all"].stateful
    # no local copy anywhere
    assert set(state.server) == {"shared", *made(kind, NETS[name]).routers}


@each_flow
@each_net
def test_inference_trains_the_local_copy_and_then_the_router_alone(
    kind: type[Method], name: str
) -> None:
    method = made(kind, NETS[name])
    assert [phase.train for phase in method.adaptation()] == [("local",), tuple(method.routers)]
    assert method.joining()[0].train == ("local",)  # the same for clients that never took part
    experiment = Experiment.of(method, data(name))
    state, _ = run_round(experiment, experiment.start(), [0, 1], Sequential())
    before = {n: {k: v.clone() for k, v in block.items()} for n, block in state.server.items()}
    actual = evaluate(experiment, state, [0, 1, 2], Sequential(), joining=True)
    assert actual["shared"] == evaluate(experiment, state, [0, 1, 2], Sequential())["shared"]
    assert all(
        torch.equal(before[n][k], v) for n, block in state.server.items() for k, v in block.items()
    )


@pytest.mark.parametrize("kind", [Flow, FlowV2, DynamicRouting])
@each_net
def test_engines_agree(kind: type[Method], name: str) -> None:
    own = {} if kind is DynamicRouting else {"router_epochs": 1}
    states, actual = [], []
    for engine in (Sequential(), Vectorised(chunk=2)):
        experiment = Experiment.of(made(kind, NETS[name], **own), data(name))
        state, _ = run_round(experiment, experiment.start(), [0, 1, 2], engine)
        states.append(state)
        actual.append(evaluate(experiment, state, [0, 1, 2], engine))
    for block, slots in states[0].server.items():
        for key, value in slots.items():
            torch.testing.assert_close(states[1].server[block][key], value, rtol=0, atol=1e-5)
    for view, by_client in actual[0].items():
        for client, (_, scored, loss) in by_client.items():
            assert actual[1][view][client][1:] == pytest.approx((scored, loss), rel=1e-4)


@pytest.mark.parametrize("kind", [Flow, FlowV2, DynamicRouting])
def test_a_net_with_no_layers_to_route_is_refused(kind: type[Method]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.first(x))
            return result

    with pytest.raises(UserError, match="no layers to route") as error:
        kind(Net.of(Own))
    assert "nn.Sequential" in error.value.fix


@pytest.mark.parametrize("kind", [Flow, DynamicRouting])
def test_a_net_that_is_all_head_is_refused(kind: type[Method]) -> None:
    with pytest.raises(UserError, match="no layers to route"):
        kind(Net.of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))))


@pytest.mark.parametrize("kind", [Flow, FlowV2, DynamicRouting])
def test_a_convolution_without_the_shape_of_its_inputs_is_refused_with_the_way_to_say_it(
    kind: type[Method],
) -> None:
    chain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(UserError, match="how many numbers") as error:
        kind(Net.of(chain))
    assert "input_shape" in error.value.fix
    assert kind(Net.of(chain, input_shape=(1, 6, 6)))


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (Flow, {"tau": 0.0}, "tau"),
        (Flow, {"router_pace": -1.0}, "router_pace"),
        (Flow, {"router_scope": "own"}, 'router_scope = "own": must be'),
        (Flow, {"global_update_path": "both"}, 'global_update_path = "both": must be'),
        (Flow, {"eval_routing": "random"}, 'eval_routing = "random": must be'),
        (Flow, {"local_epochs": -1}, "local_epochs = -1: must be at least 0"),
        (FlowV2, {"strength": -0.1}, "strength"),
        (FlowV2, {"policy_dropout": 1.0}, "policy_dropout"),
        (FlowV2, {"policy": (4, 0)}, r"policy = \[4, 0\]: must be at least 1"),
        (DynamicRouting, {"tau": -1.0}, "tau"),
        (DynamicRouting, {"tune_epochs": -1}, "tune_epochs"),
    ],
)
def test_a_wrong_option_is_refused_with_a_fix(
    kind: type[Method], wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        kind(NETS["dense"], **wrong)
    assert error.value.fix


@each_flow
def test_a_local_copy_that_is_never_tuned_is_degenerate(kind: type[Method]) -> None:
    assert (
        made(kind, NETS["dense"], local_epochs=0).degenerate()
        and not made(kind, NETS["dense"]).degenerate()
    )


def test_dropout_of_the_step_policy_is_off_at_test() -> None:
    method = made(FlowV2, NETS["text"], policy_dropout=0.9)
    blocks, x = client_blocks(method), inputs("text")
    assert torch.equal(method.predict(blocks, x), method.predict(blocks, x))


def test_the_regulariser_rewards_the_shared_branch_in_every_layer() -> None:
    """One strong step on the reward alone: p_global rises everywhere, whatever the layer."""
    method = made(FlowV2, NETS["text"], strength=100.0, policy_dropout=0.0, local_epochs=0)
    experiment = Experiment.of(method, data("text"))
    start = experiment.start()
    state, _ = run_round(experiment, start, [0, 1], Sequential())
    actual = []
    for server in (start.server, state.server):
        blocks = {name: {k: v[0] for k, v in slots.items()} for name, slots in server.items()}
        actual.append(
            method.routed({**blocks, "local": blocks["shared"]}, inputs("text"), hard=False)[1][
                ..., 0
            ]
        )
    assert (actual[1] > actual[0]).float().mean() > 0.99


def test_the_routers_pace_is_a_learning_rate_of_its_own() -> None:
    params, grads = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
    optimizer = Paced(SGD(momentum=0.5), first=1, pace=0.1)
    memory = optimizer.memory(params)
    for count in (1, 2):  # velocities 1 and 1.5
        optimizer.step(params, grads, memory, 0.2, count)
    torch.testing.assert_close(
        params, [torch.full((2,), 1 - 0.02 * 2.5), torch.full((3,), 1 - 0.2 * 2.5)]
    )


def test_padding_has_no_say_in_the_mean_route() -> None:
    method = made(Flow, NETS["text"])
    blocks, x = client_blocks(method), inputs("text")[:1]  # 4 words, then padding
    _, routes = method.routed(blocks, x, hard=False)
    assert (x[0] == 0).tolist() == [False] * 4 + [True] * 2
    torch.testing.assert_close(method.routes(blocks, x)[0], routes[0, :4].mean(0))


def test_the_next_word_net_and_its_router_have_the_published_sizes() -> None:
    """10,004 x 96 + 4 x 670 x (96 + 670 + 2) + 670 x 96 + 96 + 96 x 10,004 + 10,004;
    and 766 x 2 + 2.
    """
    net = next_word((20,))
    assert net.size() == 4_053_428
    assert Flow(net).routers["router"].size() == 1_534


def test_step_by_step_a_recurrent_net_gives_what_it_gives_at_once() -> None:
    for name in ("text", "signal"):
        net, x = NETS[name], inputs(name)
        unrolled, params = Unrolled.of(net), net.init(0)
        assert unrolled is not None
        words = unrolled.embed(params, x)
        state, states = unrolled.start(words), []
        for word in words.unbind(1):
            state = unrolled.cell(params, word, state)
            states.append(state[0])
        actual = unrolled.decode(params, torch.stack(states, 1))
        torch.testing.assert_close(actual, net(params, x), rtol=0, atol=1e-6)


def test_an_lstm_that_cannot_be_unrolled_is_refused() -> None:
    with pytest.raises(UserError, match="step by step"):
        Flow(lstm((6,), 7, units=4, layers=2))
    assert Unrolled.of(NETS["dense"]) is None


def test_the_recipes_run_what_the_poster_says() -> None:
    assert dict(POSTER) == recipe.POSTER


def test_by_default_the_shared_net_learns_alone() -> None:
    """Through the mixture it hardly learns once routes are local: docs/methods/flow.md."""
    method = Flow(NETS["dense"])
    assert [update.train for update in method.phases()[1].updates] == [("router",), ("shared",)]
    printed = Flow(NETS["dense"], **POSTER)
    assert [update.train for update in printed.phases()[1].updates] == [("router", "shared")]
