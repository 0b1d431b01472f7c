"""Options that do not go together: which one is named, why, what to do, and whether another net
may be right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import fedblocks as fb
from fedblocks.core.checks import NetOptionError, OptionError
from fedblocks.testing.adapters import adapted_net

ADAPTED, HEADLESS = adapted_net(), adapted_net(head=None)  # of rank 2
PLAIN = fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
WORDS = fb.lora(
    lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 4)), rank=2, targets="0"
)
RANKS = "a client's rank is 1 to 2, the net's"
OF_ANOTHER_NET: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: fb.FedAvgLoRA(PLAIN), "net", "the method needs a net with adapters",
     "make one: fb.lora(net, rank=8)"),
    (lambda: fb.FedSALoRA(ADAPTED), "head", '"2.weight" trains and has no home',
     'say head="shared" or head="private"'),
    (lambda: fb.DualLoRA(HEADLESS, head="shared"), "head", "the net trains nothing as a whole",
     "leave it out"),
    (lambda: fb.ProductLoRA(HEADLESS, ranks=(1, 3)), "ranks", RANKS,
     "make the net with the largest rank"),
    (lambda: fb.FedAvgLoRA(HEADLESS, ranks=(0, 2)), "ranks", RANKS,
     "make the net with the largest rank"),
    (lambda: fb.FFALoRA(WORDS), "turns",
     '"0.lora_A" starts at zero, as those of embeddings do, and would freeze the adapter',
     'use turns="alternate", or other targets'),
]  # fmt: skip
OF_OTHER_OPTIONS: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: fb.DualLoRA(HEADLESS, other="rest", order="final"), "order",
     "the rest of the clients have adapters only if these train in every round",
     'use order="local-first"'),
    (lambda: fb.FedMN(PLAIN, gate_mode="st_hard", noise_per="step"), "noise_per",
     "hard gates drawn anew would use modules that were not sent",
     'use gate_mode = "soft", or noise_per = "round"'),
    (lambda: fb.FedMN(PLAIN, pretrain_rounds=0), "pretrain_rounds",
     "the moments of the federation are first known after a round with open gates",
     'use at least 1, or router_scale = "none"'),
    (lambda: fb.FedMN(PLAIN, router_scale="none", router_start="updates"), "router_start",
     "the server learns what the router sees of clients from the federation's moments",
     'use router_scale = "federation", or router_start = "drawn"'),
    (lambda: fb.FedMN(PLAIN, train_router="nothing", router_start="updates"), "router_start",
     "a router that is never sent cannot be fitted",
     'use train_router = "head", or router_start = "drawn"'),
    (lambda: fb.FedMN(PLAIN, train_router="nothing", router_start="drawn", router_lr=1.0),
     "router_lr", "a router that does not train has no learning rate",
     'leave it out, or use train_router = "head"'),
]  # fmt: skip


@pytest.mark.parametrize(("make", "option", "why", "fix"), OF_ANOTHER_NET)
def test_what_does_not_fit_the_net_is_named(
    make: Callable[[], Any], option: str, why: str, fix: str
) -> None:
    with pytest.raises(NetOptionError) as refused:
        make()
    assert (refused.value.option, refused.value.why, refused.value.fix) == (option, why, fix)


@pytest.mark.parametrize(("make", "option", "why", "fix"), OF_OTHER_OPTIONS)
def test_what_does_not_go_with_another_option_is_named(
    make: Callable[[], Any], option: str, why: str, fix: str
) -> None:
    with pytest.raises(OptionError) as refused:
        make()
    assert not isinstance(refused.value, NetOptionError)
    assert (refused.value.option, refused.value.why, refused.value.fix) == (option, why, fix)


def test_the_same_options_apart_are_taken() -> None:
    taken = [
        fb.DualLoRA(HEADLESS, other="rest"),
        fb.DualLoRA(HEADLESS, order="final"),
        fb.FFALoRA(WORDS, turns="alternate"),
        fb.ProductLoRA(HEADLESS, ranks=(1, 2)),
        fb.FedMN(PLAIN, gate_mode="st_hard", noise_per="round"),
        fb.FedMN(PLAIN, pretrain_rounds=1),
        fb.FedMN(PLAIN, train_router="nothing", router_start="drawn"),
    ]
    assert all(method.conflicts() == [] for method in taken)
