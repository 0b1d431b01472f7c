"""What must hold exactly: methods that become others in the limit, and laws that follow
from their formulas.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedblocks.core.errors import NetError
from fedblocks.core.method import Method
from fedblocks.core.mode import mode
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.core.state import State
from fedblocks.engines.round import Engine, Experiment, evaluate
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedavg_ft import FedAvgFT
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.local import Local
from fedblocks.methods.pfedmb.method import PFedMB

from .fedem import mixture, responsibilities
from .harness import BATCH, CLASSES, COHORTS, ENGINES, SIZES, counts, federation, mlp, mlp_net, play

WHOLE = max(SIZES)  # a batch that holds everything: phases of another number see the same batches
NET = mlp_net()
MOMENTUM = SGD(momentum=0.9, weight_decay=5e-4)


def joined(server: dict[str, dict[str, Tensor]], slot: int = 0) -> dict[str, Tensor]:
    """One net out of one slot of every block on the server."""
    return {name: value[slot] for block in server.values() for name, value in block.items()}


def close(found: dict[str, Tensor], expected: dict[str, Tensor], within: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=within)


def personal(method: Method, engine: Engine) -> dict[int, tuple[float, float, float]]:
    experiment, state = play(method, engine)
    return evaluate(experiment, state, range(len(SIZES)), engine)["personal"]


each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("batch_size", [BATCH, WHOLE])
@pytest.mark.parametrize(
    "method", [FedProx(NET, strength=0), IFCA(NET, clusters=1), FedEM(NET, components=1)]
)
def test_a_method_without_its_idea_is_fedavg(
    method: Method, batch_size: int, engine: Engine
) -> None:
    settings = {"lr": 0.1, "epochs": 2, "batch_size": batch_size, "optimizer": MOMENTUM}
    assert method.degenerate()
    _, without = play(replace(method, **settings), engine)
    _, fedavg = play(FedAvg(NET, **settings), engine)
    close(joined(without.server), joined(fedavg.server))


@each_engine
def test_pfedmb_with_one_branch_is_fedavg(engine: Engine) -> None:
    settings = {"lr": 0.1, "epochs": 2, "batch_size": WHOLE, "optimizer": MOMENTUM}
    method = PFedMB(NET, branches=1, **settings)
    assert method.degenerate()
    close(
        joined(play(method, engine)[1].server),
        joined(play(FedAvg(NET, **settings), engine)[1].server),
    )


def test_fedper_with_nothing_private_would_be_fedavg_and_is_refused() -> None:
    method = FedPer(Net.of(mlp, head="3", dtype=torch.float64))  # max(0, .) has no tensors
    with pytest.raises(NetError, match='the head of the net has no tensors: its head is "3"'):
        method.blocks()


@each_engine
def test_ditto_with_strength_0_is_local_beside_fedavg(engine: Engine) -> None:
    settings = {"lr": 0.1, "epochs": 2, "batch_size": WHOLE, "optimizer": MOMENTUM}
    _, ditto = play(Ditto(NET, strength=0, **settings), engine)
    _, fedavg = play(FedAvg(NET, **settings), engine)
    _, local = play(Local(NET, **settings), engine)
    close(joined(ditto.server), joined(fedavg.server))
    assert ditto.private.keys() == local.private.keys()
    for client, blocks in local.private.items():
        close(ditto.private[client]["personal"], blocks["model"])


@each_engine
@pytest.mark.parametrize("strength", [0.1, 2.0])
def test_dittos_shared_model_is_fedavg_at_any_strength(strength: float, engine: Engine) -> None:
    settings = {"lr": 0.1, "batch_size": WHOLE}
    _, ditto = play(Ditto(NET, strength=strength, **settings), engine)
    close(joined(ditto.server), joined(play(FedAvg(NET, **settings), engine)[1].server))


@each_engine
def test_fedavg_tuned_for_0_epochs_is_fedavg(engine: Engine) -> None:
    settings = {"lr": 0.1, "batch_size": BATCH}
    assert personal(FedAvgFT(NET, tune_epochs=0, **settings), engine) == personal(
        FedAvg(NET, **settings), engine
    )


@each_engine
def test_fine_tuning_leaves_no_trace(engine: Engine) -> None:
    experiment, state = play(FedAvgFT(NET, lr=0.1, tune_epochs=3, batch_size=BATCH), engine)
    before = {k: v.clone() for k, v in joined(state.server).items()}
    once = evaluate(experiment, state, range(len(SIZES)), engine)
    assert evaluate(experiment, state, range(len(SIZES)), engine) == once
    close(joined(state.server), before, within=0)


@each_engine
def test_fedem_mixtures_are_column_means_of_responsibilities_whose_rows_sum_to_1(
    engine: Engine,
) -> None:
    method, data = FedEM(NET, components=3, lr=0.1, batch_size=BATCH), federation()
    experiment = Experiment.of(method, data, 7)
    start = experiment.start()
    _, state = play(method, engine, cohorts=(COHORTS[0],))
    components = [
        {k: v[m].numpy() for k, v in start.server["components"].items()} for m in range(3)
    ]
    for client in COHORTS[0]:
        x, y = (t[data.train[client]].numpy() for t in (data.x, data.y))
        q = responsibilities(components, np.full(3, 1 / 3), x, y)  # [examples, components]
        np.testing.assert_allclose(q.sum(1), 1, atol=1e-12)
        pi = state.private[client]["mixture"]["value"].numpy()
        np.testing.assert_allclose(pi, q.mean(0) if len(y) else 1 / 3, atol=1e-10)
        assert pi.sum() == pytest.approx(1, abs=1e-12) and (pi >= 0).all()


@each_engine
def test_a_client_that_joins_fedem_only_fits_its_mixture(engine: Engine) -> None:
    method, data, newcomer = FedEM(NET, components=3, lr=0.1, batch_size=BATCH), federation(), 5
    experiment, state = play(method, engine)
    theta = [{k: v[m].numpy() for k, v in state.server["components"].items()} for m in range(3)]
    x, y = (t[data.train[newcomer]].numpy() for t in (data.x, data.y))
    pi = responsibilities(theta, np.full(3, 1 / 3), x, y).mean(0)
    test = data.test[newcomer]
    expected = counts(mixture(theta, pi, data.x[test].numpy()), data.y[test].numpy())
    found = evaluate(experiment, state, [newcomer], engine, joining=True)["personal"][newcomer]
    assert found == pytest.approx(expected, abs=1e-10)


def pfedmb(net: Net, **options: object) -> PFedMB:
    return PFedMB(net, branches=3, lr=0.1, batch_size=WHOLE, **options)  # type: ignore[arg-type]


def with_alpha(state: State, logits: dict[int, Tensor]) -> State:
    """The same state, with branch weights of our choice."""
    return replace(state, private={i: {"alpha": {"value": value}} for i, value in logits.items()})


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mapped", [False, True])
def test_pfedmb_mixing_weights_is_mixing_outputs_for_convolutions_and_dense_layers(
    mapped: bool,
) -> None:
    net = Net.of(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)),
        dtype=torch.float64,
    )
    method = pfedmb(net)
    server = Experiment.of(method, federation((1, 4, 4))).start().server
    blocks, x = {**server, "alpha": {"value": drawn(0, 2, 3)}}, drawn(1, 6, 1, 4, 4)
    first, last = torch.softmax(blocks["alpha"]["value"], -1)
    conv, dense = server["layers.0"], server["layers.3"]
    hidden = sum(first[b] * F.conv2d(x, conv["0.weight"][b], conv["0.bias"][b]) for b in range(3))
    hidden = F.relu(hidden).flatten(1)
    expected = sum(
        last[b] * F.linear(hidden, dense["3.weight"][b], dense["3.bias"][b]) for b in range(3)
    )
    with mode(training=False, mapped=mapped):
        if mapped:
            stacked = {n: {k: v[None] for k, v in block.items()} for n, block in blocks.items()}
            found = vmap(method.predict, in_dims=(0, None))(stacked, x)[0]
        else:
            found = method.predict(blocks, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@each_engine
def test_pfedmb_branch_weights_stay_on_the_simplex(engine: Engine) -> None:
    method = pfedmb(NET, epochs=3, alpha_lr=30.0)  # large steps
    _, state = play(method, engine, cohorts=(COHORTS[0],) * 4)
    moved = 0.0
    for client in COHORTS[0]:
        for weights in method.alpha(state.private[client]).values():
            assert (weights >= 0).all() and weights.sum().item() == pytest.approx(1, abs=1e-12)
            moved = max(moved, float(weights.max()))
    assert moved > 0.9  # they did move


@each_engine
@pytest.mark.parametrize("scale", ["mixture", "printed"])
def test_pfedmb_a_step_of_the_branches_moves_the_merged_net_as_lr_scale_says(
    scale: str, engine: Engine
) -> None:
    """One step of plain descent: the merged weights of a layer step with the learning rate, or as
    printed with the learning rate times |alpha|^2.
    """
    method = pfedmb(NET, alpha_epochs=0, lr_scale=scale)
    start = Experiment.of(method, federation(), 7).start()
    logits = drawn(3, 3, 3)
    _, after = play(method, engine, cohorts=((0,),), start=with_alpha(start, {0: logits}))
    alpha = torch.softmax(logits, -1)
    old, new = (_merged(state, alpha) for state in (start, after))
    data = federation()
    x, y = data.x[data.train[0]], data.y[data.train[0]]
    leaves = {k: v.clone().requires_grad_() for k, v in old.items()}
    slopes = torch.autograd.grad(F.cross_entropy(NET(leaves, x), y), list(leaves.values()))
    shares = alpha.square().sum(1) if scale == "printed" else alpha.new_ones(3)
    norms = dict(zip(NET.layers, shares, strict=True))
    for (name, value), slope in zip(old.items(), slopes, strict=True):
        expected = value - 0.1 * norms[name.split(".")[0]] * slope
        torch.testing.assert_close(new[name], expected, rtol=0, atol=1e-12)


def _merged(state: State, alpha: Tensor) -> dict[str, Tensor]:
    """The net that a client's branch weights make of the branches."""
    blocks = zip(NET.layers, alpha, strict=True)
    return {
        k: torch.einsum("b,b...->...", row, v)
        for layer, row in blocks
        for k, v in state.server[f"layers.{layer}"].items()
    }


@each_engine
def test_pfedmb_all_branches_of_a_layer_move_in_one_direction(engine: Engine) -> None:
    """With momentum and weight decay too: W_b becomes s W_b + alpha_b D, one s and one
    D for all branches.
    """
    method = pfedmb(NET, alpha_epochs=0, epochs=4, optimizer=MOMENTUM)
    start = Experiment.of(method, federation(), 7).start()
    logits = drawn(4, 3, 3)
    _, after = play(method, engine, cohorts=((0,),), start=with_alpha(start, {0: logits}))
    shrunk = _shrinkage(0.1, 4)
    for layer, row in zip(NET.layers, torch.softmax(logits, -1), strict=True):
        for name, old in start.server[f"layers.{layer}"].items():
            moves = after.server[f"layers.{layer}"][name] - shrunk * old  # [branches, ...]
            directions = moves / row.view(-1, *[1] * (moves.dim() - 1))
            torch.testing.assert_close(
                directions, directions[:1].expand_as(directions), rtol=0, atol=1e-11
            )
            assert directions.abs().max() > 1e-3


def _shrinkage(lr: float, steps: int) -> float:
    """What weight decay alone makes of 1, under momentum."""
    value, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = MOMENTUM.momentum * velocity + MOMENTUM.weight_decay * value
        value -= lr * velocity
    return value


@each_engine
def test_pfedmb_branches_that_start_alike_never_separate(engine: Engine) -> None:
    """The gradient of alpha is the same for all branches, so its projection on the simplex is 0."""
    method = pfedmb(NET, epochs=2, alpha_lr=5.0)
    start = Experiment.of(method, federation(), 7).start()
    alike = {
        n: {k: v[:1].expand_as(v).clone() for k, v in block.items()}
        for n, block in start.server.items()
    }
    _, after = play(method, engine, start=replace(start, server=alike))
    for client in COHORTS[0]:
        assert after.private[client]["alpha"]["value"].abs().max() < 1e-13
    for block in after.server.values():
        for value in block.values():
            torch.testing.assert_close(value, value[:1].expand_as(value), rtol=0, atol=1e-13)


@each_engine
def test_pfedmb_with_one_hot_alpha_is_clustered_averaging(engine: Engine) -> None:
    """Clients on branch b train and average that branch as FedAvg would; a branch of
    nobody stays.
    """
    settings = {"lr": 0.1, "epochs": 2, "batch_size": WHOLE, "optimizer": MOMENTUM}
    method = PFedMB(NET, branches=4, alpha_epochs=0, **settings)
    start = Experiment.of(method, federation(), 7).start()
    groups = {0: (0, 3), 1: (2,), 2: (1, 5)}  # branch -> clients; nobody is on branch 3
    one_hot = {
        i: (torch.eye(4, dtype=torch.float64)[b] * 1e4).expand(3, 4)
        for b, g in groups.items()
        for i in g
    }
    clients = tuple(sorted(one_hot))
    _, after = play(method, engine, cohorts=(clients,), start=with_alpha(start, one_hot))
    for branch, group in groups.items():
        fedavg = FedAvg(NET, **settings)
        alone = Experiment.of(fedavg, federation(), 7).start()
        model = {k: v[None] for k, v in joined(start.server, branch).items()}
        _, expected = play(
            fedavg, engine, cohorts=(group,), start=replace(alone, server={"model": model})
        )
        close(joined(after.server, branch), joined(expected.server))
    close(joined(after.server, 3), joined(start.server, 3), within=0)


@each_engine
def test_ifca_chooses_by_training_loss(engine: Engine) -> None:
    """A client whose data one model fits perfectly takes that one, whatever its test data say."""
    method = IFCA(NET, clusters=3, lr=1e-9, batch_size=BATCH)
    data = federation()
    experiment = Experiment.of(method, data, 7)
    state = experiment.start()
    for client in (0, 1, 2, 3, 5):
        x, y = data.x[data.train[client]], data.y[data.train[client]]
        models = [{k: v[j] for k, v in state.server["clusters"].items()} for j in range(3)]
        best = min(range(3), key=lambda j: F.cross_entropy(NET(models[j], x), y).item())
        test = data.test[client]
        with torch.no_grad():
            expected = F.cross_entropy(
                NET(models[best], data.x[test]), data.y[test], reduction="sum"
            ).item()
        for joining in (False, True):
            found = evaluate(experiment, state, [client], engine, joining=joining)["personal"][
                client
            ]
            assert found[2] == pytest.approx(expected, abs=1e-10)
