"""Options that do not go together, or not with the net: what is said, of which option, and that
their neighbours are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.checks import NetOptionError, OptionError
from fedblocks.core.errors import DataError, NetError
from fedblocks.core.method import Method
from fedblocks.core.server import Cohort
from fedblocks.methods.modfl import tagged_cohorts
from fedblocks.testing.extras import normed_net

NET, NORMED = fb.small_net(), normed_net()


def normed_head() -> fb.Net:
    """Statistics in the head alone."""
    head = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    return fb.Net.of(nn.Sequential(nn.Linear(6, 5), head), head="1", dtype=torch.float64)


def without_layers() -> fb.Net:
    return fb.Net.of(nn.Sequential(nn.Flatten(), nn.LayerNorm(4)), dtype=torch.float64)


LOCAL = {"statistics": "local"}
WITH_NET: list[tuple[Callable[[], Method], str, str, str]] = [
    (lambda: fb.Clustered(NORMED, **LOCAL), "statistics", "cannot stay on", 'use statistics = "av'),
    (lambda: fb.FedFomo(NORMED, **LOCAL), "statistics", "cannot be left out", 'use statistics = "'),
    (lambda: fb.FedAMP(NORMED, **LOCAL), "statistics", "cannot be left out", 'use statistics = "a'),
    (lambda: fb.IFCA(NORMED, start="updates", **LOCAL), "statistics", "of a cluster cannot", "use"),
    (lambda: fb.ModFL(normed_head(), **LOCAL), "statistics", "an operation module cannot", "use"),
    (lambda: fb.FedALA(NET, top=3), "top", "the net uses 2 linear layers", "choose from 1 to 2"),
    (lambda: fb.FedALA(without_layers()), "top", "uses 0 linear", "use a net with a linear layer"),
    (
        lambda: fb.LGFedAvg(NET, top_layers=3),
        "top_layers",
        "the net has 2 layers",
        "use 1 to 2, or",
    ),
    (lambda: fb.FedRecon(NET, local="3"), "local", "the net has no such module", "0, 1, 2"),
    (lambda: fb.FedRecon(NET, local="0."), "local", "the net has no such module", "0, 1, 2"),
    (lambda: fb.PFedMB(without_layers()), "branched", "the net has no linear layer, and", "use a"),
    (lambda: fb.PFedMB(NET, branched=("0", "1")), "branched", 'no linear layer "1"', "0, 2"),
]


@pytest.mark.parametrize(("make", "option", "why", "fix"), WITH_NET, ids=range(len(WITH_NET)))
def test_an_option_that_does_not_fit_the_net_is_a_matter_of_the_net(
    make: Callable[[], Method], option: str, why: str, fix: str
) -> None:
    with pytest.raises(NetOptionError) as refused:
        make()
    assert isinstance(refused.value, NetError) and refused.value.option == option
    assert why in refused.value.why and fix in refused.value.fix


TOGETHER: list[tuple[Callable[[], Method], str, str]] = [
    (lambda: fb.IFCA(NET, clusters="auto"), "clusters", "is that of the first updates"),
    (lambda: fb.ModFL(NET, operations="auto"), "operations", "it is for cohorts that are found"),
    (lambda: fb.ModFL(NET, start="updates"), "start", "it is for cohorts that are found"),
    (lambda: fb.Scaffold(NET, optimizer=fb.SGD(momentum=0.5)), "optimizer", "only plain SGD"),
    (
        lambda: fb.PFedMB(NET, compressed_upload=True, keep_optimizer=True),
        "compressed_upload", "is not exact with keep_optimizer",
    ),
    (
        lambda: fb.PFedMB(NET, compressed_upload=True, optimizer=fb.Adam()),
        "compressed_upload", "is not exact with Adam",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "option", "why"), TOGETHER, ids=range(len(TOGETHER)))
def test_options_that_do_not_go_together_are_no_matter_of_the_net(
    make: Callable[[], Method], option: str, why: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make()
    assert not isinstance(refused.value, NetError)
    assert refused.value.option == option and why in refused.value.why


def test_what_lies_beside_these_is_taken() -> None:
    for make in (fb.Clustered, fb.FedFomo, fb.FedAMP, fb.IFCA):
        assert make(NET, **LOCAL).conflicts() == make(NORMED).conflicts() == []
    assert fb.IFCA(NORMED, **LOCAL).conflicts() == []
    assert fb.ModFL(NORMED, **LOCAL).conflicts() == []  # statistics are in the body
    assert fb.ModFL(normed_head()).conflicts() == []
    found = fb.ModFL(NET, cohorts="found", operations="auto", start="updates")
    assert found.conflicts() == [] and found.slots > 1
    assert fb.FedALA(NET, top=2).conflicts() == fb.LGFedAvg(NET, top_layers=2).conflicts() == []
    assert fb.FedRecon(NET, local="0").personal.names == ("0.weight", "0.bias")
    assert fb.FedRecon(NET, local="0.bias").personal.names == ("0.bias",)
    plain = fb.PFedMB(NET, compressed_upload=True, optimizer=fb.SGD(momentum=0.5))
    assert plain.conflicts() == []


def test_a_part_that_is_the_whole_net_leaves_nothing_to_share() -> None:
    one = fb.Net.of(nn.Sequential(nn.Linear(6, 4)), head="", dtype=torch.float64)
    with pytest.raises(NetOptionError) as refused:
        fb.FedRecon(one, local="0")
    assert refused.value.why == "leaves nothing to share"


def cohort(**tags: list[int]) -> Cohort:
    tensors = {name: torch.tensor(values) for name, values in tags.items()}
    return Cohort(torch.tensor([4, 6, 7]), torch.ones(3).double(), tensors, 9, 0, 0)


def test_operation_cohorts_are_those_of_the_tags_from_0_on() -> None:
    assert tagged_cohorts(cohort(operation=[0, 2, 1]), 3).tolist() == [0, 2, 1]
    for numbers, said, fix in (
        ([0, 3, 4], "client 6 is of operation cohort 3, but operations = 3", "from 0 to 2"),
        ([1, 2, -1], "client 7 is of operation cohort -1, but", "from 0 to 2"),
    ):
        with pytest.raises(DataError) as refused:
            tagged_cohorts(cohort(operation=numbers), 3)
        assert said in refused.value.message and fix in refused.value.fix
    with pytest.raises(DataError, match='clients have no tag "operation"'):
        tagged_cohorts(cohort(), 3)


SENTENCES: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (fb.Ditto, {"strength": 0.0}, {"strength": 1e-9}, "Local"),
    (fb.FedProx, {"strength": 0.0}, {"strength": 1e-9}, "FedAvg"),
    (fb.Moon, {"strength": 0.0}, {"strength": 1e-9}, "FedAvg"),
    (fb.MeanRegMTL, {"strength": 0.0}, {"strength": 1e-9}, "Local"),
    (fb.PFedMe, {"strength": 0.0}, {"strength": 1e-9}, "never moves"),
    (fb.FedBABU, {"tune_epochs": 0}, {"tune_epochs": 1}, "without a personal model"),
    (fb.FedAvgFT, {"tune_epochs": 0}, {"tune_epochs": 1}, "FedAvg"),
    (fb.FedRep, {"head_epochs": 0}, {"head_epochs": 1}, "as they started"),
    (fb.Flow, {"local_epochs": 0}, {"local_epochs": 1}, "nothing to route"),
    (fb.FedEM, {"components": 1}, {"components": 2}, "FedAvg"),
    (fb.IFCA, {"clusters": 1}, {"clusters": 2}, "FedAvg"),
    (fb.PFedMB, {"branches": 1}, {"branches": 2}, "FedAvg"),
    (fb.ModFL, {"operations": 1}, {"operations": 2}, "FedAvg among clients"),
    (fb.FedYogi, {"server_lr": 0.0}, {"server_lr": 1e-9}, "as it started"),
    (fb.HeurFedAMP, {"own_share": 1.0}, {"own_share": 0.99}, "alone"),
    (fb.APFL, {"alpha": 0.0}, {"alpha": 0.01}, "APFL FedAvg"),
    (fb.APFL, {"alpha": 1.0}, {"alpha": 0.99}, "APFL Local"),
    (fb.APFL, {"alpha": 1.0}, {"alpha": 1.0, "adapt_alpha": "round"}, "alpha = 1 that"),
    (fb.FedALA, {"mixing_epochs": 0}, {"mixing_epochs": 1}, "FedAvg"),
    (fb.FedALA, {"mixing_lr": 0.0}, {"mixing_lr": 1e-9}, "FedAvg"),
    (fb.PerFedAvg, {"inner_lr": 0.0}, {"inner_lr": 1e-9}, "on a part of each batch"),
    (fb.PerFedAvg, {"adapt_steps": 0}, {"adapt_steps": 1}, "as it is"),
    (fb.Clustered, {"max_clusters": 1}, {"max_clusters": 2}, "FedAvg"),
    (fb.Clustered, {"epsilon1": 0.0}, {"epsilon1": 1e-9}, "FedAvg"),
    (fb.Clustered, {"never_split": True}, {"never_split": True, "start": "updates"}, "FedAvg"),
    (fb.LGFedAvg, {"top_layers": 2}, {"top_layers": 1}, "LG-FedAvg FedAvg"),
    (
        fb.LGFedAvg, {"top_layers": 2, "lg_global": "bottom"},
        {"top_layers": 1, "lg_global": "bottom"}, "LG-FedAvg Local",
    ),
    (fb.FedRecon, {"local": ""}, {"local": "0"}, "FedRecon is FedOpt"),
    (fb.FedBN, {}, {"net": NORMED}, "FedBN FedAvg"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "edge", "beside", "said"),
    SENTENCES,
    ids=[f"{case[0].__name__}-{i}" for i, case in enumerate(SENTENCES)],
)
def test_a_method_says_when_it_is_another_one_and_only_then(
    kind: type[Method], edge: dict[str, Any], beside: dict[str, Any], said: str
) -> None:
    (sentence,) = kind(**{"net": NET, **edge}).degenerate()
    assert said in sentence
    assert kind(**{"net": NET, **beside}).degenerate() == []
