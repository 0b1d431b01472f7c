"""Small parts of methods, each against what is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.blocks import Private
from fedblocks.core.net import Net
from fedblocks.core.server import Cohort
from fedblocks.core.task import CLASSIFICATION
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods._common.clustering import alike, complete_linkage, merges
from fedblocks.methods._common.mixtures import scale_gradient, steps_of_one_net
from fedblocks.methods.apfl import clip
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedala import FedALA
from fedblocks.methods.fedamp import FedAMP, HeurFedAMP, mean_square_distance
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedfomo import FedFomo
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.instance_routes import blend, mean_route, one_hot
from fedblocks.methods.per_fedavg import PerFedAvg, move
from fedblocks.methods.pfedmb.branches import NEGLIGIBLE, without_negligible, without_small
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import small_federation, small_net
from fedblocks.testing.extras import normed_net


def cohort(sizes: list[float], round: int = 0, population: int | None = None) -> Cohort:
    return Cohort(
        torch.arange(len(sizes)), torch.tensor(sizes).double(), {}, population or len(sizes),
        round, 0, torch.tensor([], dtype=torch.long),
    )  # fmt: skip


def test_the_parts_of_a_mixture_are_scaled_by_one_over_their_squared_weights() -> None:
    weights = torch.tensor([0.5, 0.25, 0.25], requires_grad=True)
    factor = steps_of_one_net(weights)
    assert factor.item() == pytest.approx(1 / (0.25 + 0.0625 + 0.0625))
    assert not factor.requires_grad
    value = torch.tensor(3.0, requires_grad=True)
    scaled = scale_gradient(value, factor)
    scaled.backward()
    assert scaled.item() == 3.0 and value.grad is not None
    assert value.grad.item() == pytest.approx(8 / 3)


def test_groups_are_merged_one_by_one_from_one_each() -> None:
    """Rows at 0, 10, 14 and 90 degrees: 10 and 14 are nearest, then 0 joins them, then 90."""
    angles = np.deg2rad([0.0, 10.0, 14.0, 90.0])
    similarity = np.cos(angles[:, None] - angles)
    steps = [labels.tolist() for labels in list(merges(similarity))]
    assert steps == [[0, 1, 2, 3], [0, 1, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert complete_linkage(similarity, 3).tolist() == [0, 1, 1, 2]
    assert complete_linkage(similarity, 1).tolist() == [0] * 4


def test_changes_of_single_precision_are_compared_in_double() -> None:
    """Cosines are within 1e-7 of 1, where single precision has two numbers: it would leave another
    row alone. The second row strays most.
    """
    draws = torch.Generator().manual_seed(2)
    base = torch.randn(50, generator=draws)
    strays = [base + size * torch.randn(50, generator=draws) for size in (3e-4, 2e-4, 1e-4)]
    assert alike(torch.stack([base, *strays]), 2).tolist() == [0, 1, 0, 0]


def test_alpha_is_kept_between_0_and_1() -> None:
    for value, kept in ((-0.5, 0.0), (0.25, 0.25), (1.5, 1.0)):
        assert clip({"alpha": {"value": torch.tensor(value)}})["alpha"]["value"].item() == kept


def test_a_split_leaves_the_homes_before_it_as_they_were() -> None:
    """Two that move apart, and their mean stands still; the third is absent."""
    method = Clustered(net=small_net(), epsilon1=0.4, epsilon2=0.5, min_size=1)
    before = torch.tensor([0, 0, 0])
    changes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    after = method.split(before, cohort([1.0, 1.0]), changes, torch.ones(2))
    assert before.tolist() == [0, 0, 0] and after.tolist() == [0, 1, -1]


def test_a_cluster_is_torn_only_beyond_its_limits() -> None:
    method = Clustered(net=small_net(), epsilon1=0.4, epsilon2=0.5, min_size=2)
    three = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    assert method.torn(three, torch.ones(3))
    assert not method.torn(three[:2], torch.ones(2))  # too few
    assert not method.torn(three, torch.tensor([3.0, 1.0, 0.0]))  # the mean moves by 1/2
    assert not method.torn(0.5 * three, torch.ones(3))  # the longest is not above 0.5
    assert not replace(method, epsilon1=0.5).torn(three, torch.tensor([3.0, 1.0, 0.0]))


def test_a_client_attends_to_itself_by_what_the_others_leave_over() -> None:
    """Attention far above 1 is scaled down to 1: nothing is left over, nor less than nothing."""
    draws = torch.Generator().manual_seed(0)
    names = small_net().whole.init(0)
    cloud = {k: torch.randn(60, *v.shape, generator=draws).double() for k, v in names.items()}
    method = FedAMP(net=small_net(), sigma=1e3, step_size=1e6)
    weights = method.reads({"cloud": cloud}, cohort([1.0] * 60))["cloud"].weights  # type: ignore[union-attr]
    assert (weights >= 0).all() and weights.diagonal().max() < 1e-12
    assert torch.allclose(weights.sum(1), torch.ones(60).double())


def test_distances_and_pulls_of_fedamp_are_as_worked_out() -> None:
    models = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    assert mean_square_distance(models).item() == pytest.approx((4 + 16 + 20) / 3)
    assert mean_square_distance(models[:1]).item() == 0.0
    assert FedAMP(net=small_net(), strength=0.5, step_size=0.25).pull_strength == 2.0
    heur = HeurFedAMP(net=small_net(), scale=1.0, own_share=0.25)
    hidden = torch.eye(3).bool()
    attention = heur.attention(models.double(), cohort([1.0] * 3), hidden)
    # cosines are 0: both others count alike
    expected = 0.375 * (1 - torch.eye(3).double())
    assert torch.allclose(attention, expected)


def test_a_component_of_no_share_has_a_logarithm() -> None:
    method = FedEM(net=small_net(), components=2)
    logs = method.log_mixture({"mixture": {"value": torch.tensor([0.0, 1.0]).double()}})
    assert logs.tolist() == pytest.approx([-69.07755278982137, 0.0])  # log 1e-30


def fomo_client(count: int) -> Any:
    """Two examples of which the first `count` are real."""
    mask = torch.tensor([1.0, 1.0]).double() * (torch.arange(2) < count)
    x, y = torch.zeros(2, 6).double(), torch.tensor([0, 1])
    return SimpleNamespace(x=x, y=y, mask=mask, task=CLASSIFICATION)


def test_losses_of_peers_are_means_over_what_a_client_has() -> None:
    """Two models: one that knows nothing, log 4 each; one that is sure of class 0."""
    net = small_net()
    zeros = {k: torch.zeros(2, *v.shape).double() for k, v in net.whole.init(0).items()}
    zeros["2.bias"][1, 0] = 10.0
    method = FedFomo(net=net)
    sure = float(np.log(1 + 3 * np.exp(-10)))
    both = method.losses(zeros, fomo_client(2)).tolist()
    assert both == pytest.approx([np.log(4), (sure + sure + 10) / 2])
    assert method.losses(zeros, fomo_client(1)).tolist() == pytest.approx([np.log(4), sure])
    assert method.losses(zeros, fomo_client(0)).tolist() == [0.0, 0.0]


def test_gains_are_by_length_and_none_for_the_base_itself() -> None:
    losses, lengths = torch.tensor([3.0, 1.0, 5.0, 3.0]), torch.tensor([4.0, 2.0, 0.0])
    assert FedFomo(net=small_net()).gains(losses, lengths).tolist() == [0.5, -1.0, 0.0]


def test_routes_are_averaged_over_steps_that_are_real() -> None:
    routes = torch.tensor([[[0.2, 0.8], [0.4, 0.6]], [[0.5, 0.5], [0.9, 0.1]]])
    real = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    flat = mean_route(routes, real).flatten().tolist()
    assert flat == pytest.approx([0.3, 0.7, 0.5, 0.5])
    assert mean_route(routes, 0 * real).tolist() == [[0.0, 0.0]] * 2
    assert one_hot(torch.tensor([[0.5, 0.5], [0.4, 0.6]])).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    one, two = torch.ones(2, 3), torch.full((2, 3), 3.0)
    assert blend(torch.tensor([[0.25, 0.75], [1.0, 0.0]]), one, two)[:, 0].tolist() == [2.5, 1.0]


def test_a_portrait_of_flow_has_mean_routes_and_their_standard_deviation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares of 0.2 and 0.6 for one of both branches: means 0.4 and 0.6, deviation 0.2."""
    routes = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    monkeypatch.setattr(Flow, "routes", lambda *_: routes)
    seen = SimpleNamespace(x=None, mean=lambda values: values.mean(0))
    client: Any = SimpleNamespace(first=lambda count: seen)
    portrait = Flow.portrait(object.__new__(Flow), {}, client)
    assert portrait["route"].tolist() == pytest.approx([0.4, 0.6, 0.2])


def meta_gradient(variant: str) -> Tensor:
    """Of one number w, with f(w) = w^3 on every part of the batch, at w = 1."""
    net = Net.of(lambda: nn.Linear(1, 1, bias=False), dtype=torch.float64)
    method = PerFedAvg(net=net, variant=variant, inner_lr=0.1, delta=0.01)  # type: ignore[arg-type]
    object.__setattr__(method, "loss_on", lambda model, batch: model["weight"].pow(3).sum())
    w = torch.tensor([[1.0]]).double().requires_grad_()
    client: Any = None
    zeros = torch.zeros(6)
    batch: Any = SimpleNamespace(
        x=zeros, y=zeros, index=zeros, mask=torch.ones(6), key=torch.tensor(0), client=client
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedblocks.methods.per_fedavg.divide", lambda batch, count: [batch] * count)
        value = method.meta_loss({"model": {"weight": w}}, batch)
    return torch.autograd.grad(value, w)[0]


def test_the_meta_gradient_is_that_of_the_moved_model_with_or_without_curvature() -> None:
    """w - 0.1 x 3 w^2 = 0.7, where the slope is 3 x 0.49 = 1.47. Finite differences of the slope
    3 w^2 are exact: the curvature times it is 6 x 1.47.
    """
    assert meta_gradient("fo").item() == pytest.approx(1.47)
    assert meta_gradient("hf").item() == pytest.approx(1.47 - 0.1 * 6 * 1.47)


def test_a_model_is_moved_along_a_direction_and_other_tensors_stay() -> None:
    model = {"w": torch.tensor([1.0]), "running_mean": torch.tensor([5.0])}
    moved = move(model, {"w": torch.tensor([2.0])}, -0.5)
    assert moved["w"].tolist() == [0.0] and moved["running_mean"] is model["running_mean"]


def test_a_federation_of_one_has_no_peers_to_lean_on() -> None:
    data = small_federation(sizes=(5,))
    for method in (FedAMP(net=small_net()), HeurFedAMP(net=small_net(), own_share=1.0)):
        experiment = Experiment.of(method, data)
        state, _ = run_round(experiment, experiment.start(), [0], Sequential())
        tensors = [v for block in state.server.values() for v in block.values()]
        assert all(bool(torch.isfinite(value).all()) for value in tensors)


def test_a_compressed_upload_of_a_client_with_one_example_is_that_of_all_branches() -> None:
    states = []
    for compressed in (False, True):
        method = PFedMB(small_net(), branches=2, compressed_upload=compressed)
        experiment = Experiment.of(method, small_federation(sizes=(1, 4)))
        states.append(run_round(experiment, experiment.start(), [0, 1], Sequential())[0])
    for name, slots in states[0].server.items():
        for key, value in slots.items():
            assert torch.allclose(states[1].server[name][key], value, atol=1e-12), (name, key)


def test_own_statistics_stay_in_the_mixture_of_fedala() -> None:
    method = FedALA(net=normed_net(), statistics="local")
    shared = {k: torch.zeros_like(v) for k, v in method.net.init(0).items()}
    local = {k: torch.full_like(v, 4) for k, v in shared.items()}
    mixing = {"3.weight": torch.full_like(shared["3.weight"], 0.25)}
    mixed = method.mixture({"model": shared, "local": local, "mixing": mixing})
    values = {name: set(value.flatten().tolist()) for name, value in mixed.items()}
    assert values["3.weight"] == {3.0} and values["0.weight"] == {0.0}  # mixed, and below
    assert values["1.running_mean"] == {4.0} == values["1.running_var"]
    average = FedALA(net=normed_net()).mixture({"model": shared, "local": local, "mixing": mixing})
    assert float(average["1.running_mean"][0]) == 0.0


@pytest.mark.parametrize(("scope", "rows"), [("layer", 2), ("model", 1)])
def test_alpha_has_a_row_for_each_layer_or_one_for_all(scope: Any, rows: int) -> None:
    alpha = PFedMB(small_net(), branches=3, alpha_scope=scope).blocks()["alpha"]
    assert isinstance(alpha, Private)
    assert alpha.part.init(0)["value"].shape == (rows, 3)


def test_weights_of_a_least_size_stay_and_the_largest_always() -> None:
    weights = torch.tensor([0.5, 0.25, 0.125, 0.125])
    assert without_small(weights, 0.25).tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0])
    assert without_small(weights, 0.9).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert without_small(weights, 0) is weights
    small = torch.tensor([NEGLIGIBLE, 2 * NEGLIGIBLE])
    assert without_negligible(small).tolist() == [0.0, small[1].item()]


def test_ditto_trains_the_personal_model_for_the_epochs_that_are_asked_for() -> None:
    asked = [Ditto(small_net(), epochs=2, personal_epochs=own) for own in (None, 0, 3)]
    assert [[phase.epochs for phase in one.phases()] for one in asked] == [[2, 2], [0, 2], [3, 2]]
    assert [one.joining()[0].epochs for one in asked] == [2, 0, 3]
