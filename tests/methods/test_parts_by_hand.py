"""Parts of methods on one or two numbers: compressed uploads, control variates, halves of data,
policies, widths of routers.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.server import Cohort
from fedblocks.core.task import CLASSIFICATION
from fedblocks.methods.flow.layer_routes import (
    ChainLayers,
    Policy,
    RecurrentLayers,
    Sizes,
    layers_of,
    segments_of,
)
from fedblocks.methods.pfedmb.compression import average_branches, change_of, common_change

NET = fb.small_net()


def double(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def test_the_router_of_fedmn_has_the_options_of_its_method() -> None:
    plain = fb.FedMN(NET, modules=(2, 3))
    usual = plain.router
    assert (usual.samples, usual.spread) == (256, 10.0)
    other = replace(
        plain, router_samples=3, router_spread=2.0,
        unit_length=not usual.unit_length, router_relu=not usual.relu,
        reading="apart" if usual.joint else "joint",
    )  # fmt: skip
    own = other.router
    assert (own.samples, own.spread) == (3, 2.0)
    assert (own.unit_length, own.relu) == (not usual.unit_length, not usual.relu)
    assert own.joint is not usual.joint and replace(plain, reading="joint").router.joint
    printed = fb.FedMNReference(NET, modules=(2, 3)).router
    assert (printed.unit_length, printed.relu, printed.samples) == (True, True, 0)
    assert (printed.spread, printed.joint) == (1.0, False)
    assert plain.layers == ("encoders", "outputs")
    assert fb.FedMN(NET, modules=(2, 3, 2)).layers == ("encoders", "modules.2", "outputs")


def test_hidden_layers_of_a_policy_are_dealt_out_to_its_exits() -> None:
    assert segments_of((8, 6, 4), 3) == ((8,), (6,), (4,))
    assert segments_of((8, 6, 4), 2, first=2) == ((8, 6), (4,))
    assert segments_of((8, 6), 1) == ((8,),) and segments_of((8,), 3) == ((8,), (), ())
    policy = Policy(5, ((8, 6), (4,), ()))
    assert [out.in_features for out in policy.exits] == [6, 4, 4]  # type: ignore[union-attr]
    assert [len(segment) for segment in policy.trunk] == [6, 3, 0]  # type: ignore[arg-type]
    assert policy(torch.zeros(7, 5)).shape == (7, 3, 2)


def test_two_copies_of_a_chain_are_mixed_layer_by_layer() -> None:
    """Shared layers double and add one, local ones do nothing; routes of 1/4 and 1/2 to local."""
    net = fb.Net.of(
        nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)),
        dtype=torch.float64, input_shape=(1,),
    )  # fmt: skip
    layers = layers_of(net)
    assert isinstance(layers, ChainLayers) and layers.count == 2
    one = {"0.weight": double([2.0]), "0.bias": double(1.0)}
    shared = {**one, "2.weight": double([2.0]), "2.bias": double(1.0)}
    local = {"0.weight": double([1.0]), "0.bias": double(0.0)}
    local |= {"2.weight": double([1.0]), "2.bias": double(0.0)}
    routes = double([[0.75, 0.25], [0.5, 0.5]])
    seen: list[Any] = []
    choose = lambda name, x: seen.append((name, x.tolist())) or routes
    logits, same = layers.run(shared, local, choose, double([3.0]))
    first = 0.75 * 7 + 0.25 * 3  # 6
    assert logits.tolist() == [[0.5 * (2 * first + 1) + 0.5 * first]] and same is routes
    assert seen == [("policy", [[3.0]])]
    assert layers.real(routes, double([3.0])).tolist() == [[1.0, 1.0]]
    sizes = Sizes((4, 3), (2,), (2, 2), 0.0)
    (policy,) = layers.policies(sizes).values()
    shapes = [tuple(v.shape) for n, v in policy.init(0).items() if n.endswith("weight")]
    assert sorted(shapes) == [(2, 3), (2, 4), (3, 4), (4, 1)]


def test_the_layer_after_an_lstm_must_have_a_width() -> None:
    def unrolled(*after: nn.Module) -> Any:
        template = nn.Sequential(nn.Identity(), *after)
        stages = [SimpleNamespace(names=["w"]) for _ in template]
        decoder = SimpleNamespace(stages=range(1, len(template)))
        return SimpleNamespace(
            net=SimpleNamespace(stages=stages, template=template), decoder=decoder
        )

    assert RecurrentLayers(unrolled(nn.ReLU(), nn.Linear(3, 7), nn.LayerNorm(7))).width == 7
    for after in ((), (nn.ReLU(),), (nn.LayerNorm(3), nn.Linear(3, 7))):
        with pytest.raises(fb.UserError, match="the layer after the LSTM has no known width"):
            RecurrentLayers(unrolled(*after))


def test_one_change_of_a_layer_is_read_off_all_its_branches() -> None:
    """Branches 1 and -2 become s W + alpha D, with s = 1/2, alpha = (1/4, 3/4) and D = 8."""
    alpha, before = double(0.25, 0.75), {"w": double([1.0], [-2.0])}
    after = {"w": double([0.5 + 2.0], [-1.0 + 6.0])}
    change = common_change(after, before, alpha, double(0.5))
    assert change["w"].tolist() == pytest.approx([8.0])
    assert change_of("layers.0") == "change of layers.0"


def test_branches_are_averaged_from_changes_and_one_of_nobody_stays() -> None:
    """Two clients, three branches; the last has no weight.

    Branch 1: shares 1/4 and 3/4, s of 1 and 1/2: (1/4 + 3/8) x 8 + 1/4 x 0.5 x 4 + 3/4 x 1 x 2 = 7.
    Branch 2: the first client alone: 1 x -4 + 0.5 x 4 = -2.
    """
    before = {"w": double([8.0], [-4.0], [9.0])}
    after = average_branches(
        before,
        {"w": double([4.0], [2.0])},
        alpha=double([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]),
        decay=double([1.0], [0.5]),
        weights=double([1.0, 2.0, 0.0], [3.0, 0.0, 0.0]),
    )
    assert after["w"].flatten().tolist() == pytest.approx([7.0, -2.0, 9.0])


def test_a_branch_that_one_small_client_writes_takes_all_of_its_change() -> None:
    """One example and an alpha of 0.25: the weight is below 1, and still all that there is."""
    one = {
        name: torch.tensor([[value]]) for name, value in {"alpha": 0.5, "s": 1.0, "n": 0.25}.items()
    }
    after = average_branches(
        {"w": torch.tensor([[4.0]])}, {"w": torch.tensor([[2.0]])}, one["alpha"], one["s"], one["n"]
    )
    assert after["w"].tolist() == [[5.0]]  # 4 + 0.5 * 2


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_compressed_upload_sends_alpha_and_what_decay_leaves(decay: float) -> None:
    method = fb.PFedMB(NET, compressed_upload=True, optimizer=fb.SGD(weight_decay=decay))
    plain = fb.PFedMB(NET, averaging=method.averaging)
    assert method.sends_alpha and method.has_decay == (decay > 0)
    names = {*method.change_blocks()}
    changes = {change_of(layer) for layer in method.layers}
    assert names == (changes | {"decay", "decayed"} if decay else changes)
    cohort: Any = None
    extra = ("decay",) if decay else ()
    assert tuple(method.single_uploads({}, cohort)) == (*method.layers, *extra)
    assert plain.change_blocks() == {} and plain.single_uploads({}, cohort) == ()
    assert plain.upload_of("layers.0") is None
    assert method.upload_of("layers.0") == "change of layers.0"


def client(size: float, steps: float = 0.0, **more: Any) -> Any:
    return SimpleNamespace(
        size=torch.tensor(size).double(), steps=torch.tensor(steps).double(), round=0, **more
    )


def test_a_control_variate_is_the_mean_gradient_of_a_round() -> None:
    """From 5 to 1 in four steps of 0.5: a mean gradient of 2; c is 0.5 and c_i 3."""
    method = fb.Scaffold(NET, lr=0.5)
    blocks = {"model": {"w": double(1.0)}, "control": {"w": double(0.5)}, "own": {"w": double(3.0)}}
    start = {"model": {"w": double(5.0)}}
    done = method.finish(blocks, start, client(3.0, steps=4.0))
    assert done["change"]["w"].tolist() == [1.5] and done["own"]["w"].tolist() == [4.5]
    idle = method.finish(blocks, start, client(0.0))
    assert idle["change"]["w"].tolist() == [0.0] and idle["own"]["w"].tolist() == [3.0]
    assert method.writes({}, client(3.0))["control"].tolist() == [3.0]
    alike = replace(method, weigh_by="clients")
    assert alike.writes({}, client(3.0))["model"].tolist() == [1.0]
    assert alike.writes({}, client(0.0))["model"].tolist() == [0.0]


def test_the_control_of_all_moves_by_the_share_of_those_who_took_part() -> None:
    """Two of five clients have weight: 1 + 2/5 x 10."""
    uploads: Any = {"control": SimpleNamespace(weights=double([2.0], [0.0], [7.0]))}
    cohort = Cohort(torch.arange(3), torch.ones(3).double(), {}, 5, 0, 0)
    server = {"control": {"w": double([10.0])}, "model": {"w": double([0.0])}}
    after = fb.Scaffold(NET).conclude(server, {"control": {"w": double([1.0])}}, uploads, cohort)
    assert after["control"]["w"].tolist() == [[5.0]] and after["model"] is server["model"]


def test_a_loss_is_tilted_by_the_difference_of_both_controls() -> None:
    method = fb.Scaffold(NET)
    object.__setattr__(method, "loss", lambda blocks, batch: torch.tensor(100.0))
    blocks = {
        "own": {"w": double(1.0, 2.0), "b": double(3.0)},
        "control": {"w": double(2.0, 2.0), "b": double(1.0)},
        "model": {"w": double(5.0, 7.0), "b": double(11.0), "running_mean": double(1.0)},
    }
    batch: Any = None
    assert method.corrected_loss(blocks, batch).item() == 100 + 1 * 5 + 0 * 7 - 2 * 11


def test_the_shared_model_of_pfedme_has_the_statistics_of_the_personal_one() -> None:
    method = fb.PFedMe(NET, strength=3.0, inner_lr=0.2, inner_steps=4, lr=0.05, local_rounds=6)
    blocks = {
        "shared": {"w": double(1.0), "running_mean": double(2.0)},
        "personal": {"w": double(3.0), "running_mean": double(4.0)},
    }
    done = method.finish(blocks, blocks, client(1.0))
    assert done["shared"]["w"].tolist() == [1.0] and done["shared"]["running_mean"].tolist() == [
        4.0
    ]
    assert method.from_shared(blocks)["personal"] is blocks["shared"]
    solve, follow = method.solve, method.follow
    assert (solve.train, solve.lr, solve.repeat) == (("personal",), 0.2, 4)
    assert (follow.train, follow.lr, follow.repeat, follow.loss) == (("shared",), 0.05, 1, None)
    assert solve.pull is not None and follow.pull is not None
    assert (solve.pull.to, solve.pull.strength, solve.pull.live) == ("shared", 3.0, True)
    assert (follow.pull.to, follow.pull.strength, follow.pull.live) == ("personal", 3.0, True)
    assert method.phases()[0].steps == 6 and len(method.phases()[0].updates) == 2
    assert replace(method, local_rounds=0).phases()[0].steps is None
    assert [len(phase.updates) for phase in method.joining()] == [1]


@pytest.mark.parametrize(
    ("size", "split", "labels"),
    [(4, True, 2), (3, True, 1), (1, True, 1), (0, True, 0), (4, False, 4), (1, False, 1)],
)
def test_the_shared_part_of_fedrecon_counts_by_its_half_of_the_labels(
    size: int, split: bool, labels: int
) -> None:
    """Of an odd number of examples the first half has one more; one example alone is in both."""
    own = client(
        float(size), rows=torch.arange(5), task=CLASSIFICATION, y=torch.tensor([0, 1, 2, 1, 0]),
        mask=(torch.arange(5) < size).double(),
    )  # fmt: skip
    method = fb.FedRecon(NET, split_data=split)
    assert method.writes({}, own)["shared"].tolist() == [float(labels)]


def test_labels_that_are_not_scored_do_not_count_in_fedrecon() -> None:
    own = client(
        2.0, rows=torch.arange(3), task=CLASSIFICATION, y=torch.tensor([[0, 1], [2, -100], [3, 3]]),
        mask=double(1.0, 1.0, 0.0),
    )  # fmt: skip
    assert fb.FedRecon(NET).writes({}, own)["shared"].tolist() == [1.0]
    assert fb.FedRecon(NET, split_data=False).writes({}, own)["shared"].tolist() == [3.0]


def test_fedrecon_begins_at_random_or_at_zero_and_averages_plainly_at_a_rate_of_1() -> None:
    blocks = {"shared": {"w": double(1.0)}, "local": {"v": double(2.0)}}
    assert fb.FedRecon(NET).prepare(blocks, client(1.0)) is blocks
    zero = fb.FedRecon(NET, local_init="zero").prepare(blocks, client(1.0))
    assert zero["local"]["v"].tolist() == [0.0] and zero["shared"] is blocks["shared"]
    rules: dict[Any, str] = {}
    for rule, rate in (("average", 1.0), ("average", 0.5), ("yogi", 1.0)):
        method = fb.FedRecon(NET, server_rule=rule, server_lr=rate)  # type: ignore[arg-type]
        rules[rule, rate] = type(method.blocks()["shared"].rule).__name__  # type: ignore[union-attr]
    assert rules == {
        ("average", 1.0): "Average", ("average", 0.5): "MovingAverage", ("yogi", 1.0): "ServerYogi",
    }  # fmt: skip
    halves = [phase.on for phase in fb.FedRecon(NET).phases()]
    assert halves == ["support", "query"]
    assert [phase.on for phase in fb.FedRecon(NET, split_data=False).phases()] == ["all", "all"]
    steps = fb.FedRecon(NET, recon_steps=3, recon_epochs=2, recon_lr=0.3)
    (phase,) = steps.adaptation()
    assert (phase.on, phase.steps, phase.epochs, phase.updates[0].lr) == ("all", 3, 2, 0.3)


def test_gains_of_peers_are_added_up_where_their_client_has_weight() -> None:
    """Clients 0 and 2 had the peers 1 and 3; the second has no weight, and says nothing."""
    method = fb.FedFomo(NET, peers=3)
    object.__setattr__(method, "choose", lambda server, cohort: torch.tensor([[1, 3], [3, 1]]))
    upload: Any = SimpleNamespace(
        copies={"value": double([1.5, -2.0, 99.0], [4.0, 8.0, 99.0])}, weights=double([2.0], [0.0])
    )
    cohort = Cohort(torch.tensor([0, 2]), torch.ones(2).double(), {}, 4, 0, 0)
    before = {"affinity": {"value": torch.ones(4, 4).double()}}
    after = method.conclude({}, before, {"gains": upload}, cohort)["affinity"]["value"]
    assert (after - 1).tolist() == [[0.0, 1.5, 0.0, -2.0], [0.0] * 4, [0.0] * 4, [0.0] * 4]


@pytest.mark.parametrize(("round", "epsilon"), [(0, 0.5), (2, 0.3), (5, 0.0), (9, 0.0)])
def test_peers_are_drawn_by_a_chance_that_falls(
    round: int, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    name = "fedblocks.methods.fedfomo.epsilon_greedy"
    monkeypatch.setattr(name, lambda *given: asked.append(given) or "peers")
    server = {"affinity": {"value": torch.arange(16.0).view(4, 4)}}
    cohort = Cohort(torch.tensor([3, 1]), torch.ones(2).double(), {}, 4, round, 7)
    assert (
        fb.FedFomo(NET, peers=9, epsilon=0.5, epsilon_decay=0.1).choose(server, cohort) == "peers"
    )
    affinity, own, count, chance, seed, _ = asked[0]
    assert affinity[:, 0].tolist() == [12.0, 4.0] and own.tolist() == [3, 1]
    assert (count, seed) == (3, 7) and chance == pytest.approx(epsilon)
    alone = Cohort(torch.tensor([0]), torch.ones(1).double(), {}, 1, 0, 7)
    assert fb.FedFomo(NET).choose(server, alone).tolist() == [[0]]
