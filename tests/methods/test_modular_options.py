"""The options of ModFL and pFedMB keep the invariants that every method keeps, not only
the defaults.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.methods.modfl import ModFL
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing.contract import CHECKS, run_check
from fedblocks.testing.example import Example
from fedblocks.testing.federations import CLASSES, FEATURES
from fedblocks.testing.making import example_for

INVARIANTS = ("engines_agree", "client_order", "planned_bytes", "empty_client")


def other_net() -> Net:
    """Another architecture with the same width before its last layer."""
    layers = [
        nn.Flatten(),
        nn.Linear(FEATURES, 8),
        nn.Tanh(),
        nn.Linear(8, 5),
        nn.Tanh(),
        nn.Linear(5, CLASSES),
    ]
    return Net.of(nn.Sequential(*layers), dtype=torch.float64)


def generations() -> Example:
    groups = {"old": {"configuration": "old"}, "new": {"configuration": "new", "net": other_net()}}
    members = ("old", "new", "new", "old", "old", "new")
    return replace(example_for(ModFL, operations=2), groups=groups, members=members)


EXAMPLES: dict[str, Example] = {
    "ModFL that finds cohorts": example_for(ModFL, operations=2, cohorts="found", warmup=1),
    "ModFL of two architectures": generations(),
    "pFedMB that compresses": example_for(
        PFedMB, branches=2, compressed_upload=True, optimizer=SGD(momentum=0.5, weight_decay=0.01)
    ),
    "pFedMB that projects": example_for(
        PFedMB, branches=2, alpha_param="projection", alpha_scope="model", averaging="plain"
    ),
    "pFedMB of one layer": example_for(PFedMB, branches=2, branched=("2",), finetune="none"),
}


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name in INVARIANTS], ids=lambda c: c.name)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_option_keeps_the_invariants(name: str, check) -> None:
    verdict = run_check(check, replace(EXAMPLES[name], exceptions={}))
    assert verdict.passed, verdict.detail


def test_all_chosen_invariants_exist() -> None:
    assert set(INVARIANTS) <= {check.name for check in CHECKS}
