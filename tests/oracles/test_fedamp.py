"""FedAMP and its heuristic form against their boxes; it must not be Local, as it is in
well-known public code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core.blocks import Mixture
from fedblocks.core.errors import UserError
from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.methods.fedamp import FedAMP, HeurFedAMP
from fedblocks.methods.local import Local

from . import fedamp
from .harness import BATCH, COHORTS, ENGINES, SIZES, agrees, mlp_net, play, task_of
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.1, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize("start", ["cloud", "model"])
@pytest.mark.parametrize("relative", [False, True])
def test_two_rounds_are_those_of_the_paper(relative: bool, start: str, engine: Any) -> None:
    own = {"step_size": 0.4, "sigma": 0.7, "relative": relative}
    method = FedAMP(**COMMON, strength=0.3, start=start, **own)
    attention = partial(fedamp.by_distance, **own)
    agrees(
        method,
        fedamp.run(task_of(method), Descent(0.1), attention, 0.3 / 0.4, start == "cloud"),
        engine,
    )


@each_engine
@pytest.mark.parametrize("share", [None, 0.3])
def test_two_rounds_of_the_heuristic_form_are_those_of_the_paper(
    share: float | None, engine: Any
) -> None:
    method = HeurFedAMP(**COMMON, strength=0.5, scale=8.0, own_share=share)
    attention = partial(fedamp.by_cosine, scale=8.0, own=share)
    agrees(method, fedamp.run(task_of(method), Descent(0.1), attention, 0.5, True), engine)


def models_of(state: State) -> list[dict[str, Tensor]]:
    return [blocks["model"] for _, blocks in sorted(state.private.items())]


def gap(a: State, b: State) -> float:
    pairs = [(x[k], y[k]) for x, y in zip(models_of(a), models_of(b), strict=True) for k in x]
    return max(float((x - y).abs().max()) for x, y in pairs)


@each_engine
@pytest.mark.parametrize("start", ["cloud", "model"])
def test_with_a_vanishing_sigma_and_no_pull_it_is_local(start: str, engine: Any) -> None:
    _, actual = play(FedAMP(**COMMON, sigma=1e-9, strength=0.0, start=start), engine)
    assert gap(actual, play(Local(**COMMON), engine)[1]) < 1e-12


@pytest.mark.parametrize(
    "method", [FedAMP(**COMMON), FedAMP(**COMMON, start="model"), HeurFedAMP(**COMMON)]
)
def test_it_is_not_local(method: Any) -> None:
    """In the second round clients 1 and 3 have others to listen to; the pull and the
    start both count.
    """
    _, actual = play(method, ENGINES["vectorised"])
    assert gap(actual, play(Local(**COMMON), ENGINES["vectorised"])[1]) > 1e-2


def test_the_pull_has_a_gradient() -> None:
    """From the client's own model, the pull is all that tells FedAMP from Local."""
    actual = [
        play(FedAMP(**COMMON, start="model", strength=s), ENGINES["sequential"])[1]
        for s in (0.0, 0.5, 1.0)
    ]
    local = play(Local(**COMMON), ENGINES["sequential"])[1]
    assert (
        gap(actual[0], local) < 1e-12
        and gap(actual[1], local) > 1e-3
        and gap(actual[2], actual[1]) > 1e-3
    )


def sent(method: Any, models: Tensor, ids: Tensor) -> Tensor:
    """The weights with which models, [population, parameters], are mixed for some clients."""
    cohort = Cohort(ids, torch.ones(len(ids)), {}, len(models), round=1, seed=0)
    read = method.reads({"cloud": {"w": models}}, cohort)["cloud"]
    assert isinstance(read, Mixture)
    return read.weights


METHODS = [
    FedAMP(mlp_net()),
    FedAMP(mlp_net(), relative=True),
    FedAMP(mlp_net(), sigma=0.01),
    HeurFedAMP(mlp_net()),
]


@pytest.mark.parametrize("method", METHODS)
def test_equal_models_are_their_own_average(method: Any) -> None:
    models = torch.linspace(-1, 1, 5, dtype=torch.double).expand(7, 5)
    weights = sent(method, models, torch.tensor([0, 3, 6]))
    torch.testing.assert_close(weights @ models, models[:3])


@pytest.mark.parametrize("method", METHODS)
def test_every_client_is_sent_a_convex_mixture(method: Any) -> None:
    """Also where sigma = 1 alone would give nine near models a weight of almost 1 each."""
    generator = torch.Generator().manual_seed(0)
    models = 1e-2 * torch.randn(10, 4, generator=generator, dtype=torch.double)
    weights = sent(method, models, torch.arange(10))
    assert weights.min() >= 0
    torch.testing.assert_close(weights.sum(1), torch.ones(10, dtype=torch.double))


def test_with_a_vanishing_sigma_nobody_listens_to_others() -> None:
    models = torch.arange(6, dtype=torch.double).view(6, 1)
    assert torch.equal(
        sent(FedAMP(mlp_net(), sigma=1e-3), models, torch.tensor([1, 4])),
        torch.eye(6).double()[[1, 4]],
    )


def test_nearer_models_get_more_attention() -> None:
    models = torch.tensor([[0.0, 1], [0.1, 1], [0.5, 1], [-0.9, 1]], dtype=torch.double)
    for method in METHODS:
        weights = sent(method, models, torch.tensor([0]))[0]
        assert weights[1] > weights[2] > weights[3]


def test_a_relative_sigma_does_not_depend_on_the_scale_of_the_models() -> None:
    models = torch.tensor([[0.0, 1], [0.3, 1], [0.5, 2], [-0.9, 1]], dtype=torch.double)
    small, large = (
        sent(FedAMP(mlp_net(), relative=True), scale * models, torch.arange(4))
        for scale in (1, 1000)
    )
    torch.testing.assert_close(small, large)
    assert not torch.allclose(
        *(sent(FedAMP(mlp_net()), scale * models, torch.arange(4)) for scale in (1, 1000))
    )


def test_a_client_alone_keeps_its_own_model() -> None:
    for method in METHODS:
        assert sent(method, torch.ones(1, 3, dtype=torch.double), torch.tensor([0])).tolist() == [
            [1.0]
        ]


def test_absent_clients_are_heard_with_their_last_models() -> None:
    """Another first round of client 0, who is absent from the second, changes what
    client 1 learns in it.
    """
    method = FedAMP(**COMMON)
    actual = [
        play(method, ENGINES["sequential"], cohorts=(first, (1,)))[1] for first in ((0, 1), (1,))
    ]
    own = [state.private[1]["model"]["0.weight"] for state in actual]
    assert (own[0] - own[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (FedAMP, {"sigma": 0.0}),
        (FedAMP, {"step_size": -1.0}),
        (FedAMP, {"strength": -1.0}),
        (FedAMP, {"start": "zero"}),
        (HeurFedAMP, {"own_share": 1.5}),
    ],
)
def test_values_out_of_range_are_refused(made: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        made(mlp_net(), **options)


def test_an_own_share_of_1_is_told_to_be_alone() -> None:
    assert (
        HeurFedAMP(mlp_net(), own_share=1.0).degenerate() and not HeurFedAMP(mlp_net()).degenerate()
    )


def test_the_task_has_others_to_listen_to() -> None:
    assert len(COHORTS[0]) > 2 and SIZES[COHORTS[1][0]] > 0
