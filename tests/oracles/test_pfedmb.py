"""pFedMB's options against the algorithm box, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.optimizers import SGD
from fedblocks.methods.pfedmb.branches import project
from fedblocks.methods.pfedmb.method import PFedMB

from . import pfedmb
from .definition import Course
from .harness import BATCH, ENGINES, agrees, mlp_net, task_of
from .plain import Descent

# Options of the library, and the same for the oracle.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alpha is projected": (
        {"alpha_param": "projection", "alpha_lr": 0.2},
        {"simplex": True, "alpha_lr": 0.2},
    ),
    "one alpha for all layers": ({"alpha_scope": "model"}, {"one_alpha": True}),
    "one projected alpha": (
        {"alpha_param": "projection", "alpha_lr": 0.2, "alpha_scope": "model"},
        {"simplex": True, "one_alpha": True, "alpha_lr": 0.2},
    ),
    "branches are averaged by n alone": ({"averaging": "plain"}, {"plain": True}),
    "only weights are fine-tuned": ({"finetune": "W"}, {}),
    "nothing is fine-tuned": ({"finetune": "none"}, {}),
    "small branches are dropped": ({"drop_below": 0.3, "finetune": "none"}, {"dropped": 0.3}),
    "branches start independently": ({"start": "independent"}, {"literal": True}),
    "the mixture moves as one net": ({"lr_scale": "mixture"}, {"as_one_net": True}),
    "the mixture moves as one net, and one alpha for all layers": (
        {"lr_scale": "mixture", "alpha_scope": "model"},
        {"as_one_net": True, "one_alpha": True},
    ),
    "the mixture moves as one net, and its change is uploaded": (
        {"lr_scale": "mixture", "compressed_upload": True},
        {"as_one_net": True},
    ),
    "the upload is compressed": ({"compressed_upload": True}, {}),
    "the upload is compressed and averaged by n alone": (
        {"compressed_upload": True, "averaging": "plain"},
        {"plain": True},
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_are_those_of_the_paper(case: str, engine: str) -> None:
    own, message = CASES[case]
    usual = {"branches": 3, "alpha_lr": 0.9}
    printed = {"lr_scale": "printed"}
    options = {
        "lr": 0.1,
        "epochs": 2,
        "batch_size": BATCH,
        "optimizer": SGD(momentum=0.9),
        "alpha_epochs": 3,
    }
    method = PFedMB(net=mlp_net(), **options, **{**usual, **printed, **own})
    alpha, weights = Course(epochs=3), Course(epochs=2)
    tuning = {"alpha+W": [alpha, weights], "W": [weights], "none": []}[method.finetune]
    joining = [alpha, weights] if tuning else [alpha]
    task = task_of(method, courses=[alpha, weights], adapting=tuning, joining=joining)
    expected = pfedmb.run(task, Descent(0.1, momentum=0.9), **{**usual, **message})
    agrees(method, expected, ENGINES[engine])


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    rows = np.concatenate([draw.normal(size=(50, 4)) * scale for scale in (0.1, 1, 10)])
    expected = np.array([pfedmb.nearest_on_simplex(row) for row in rows])
    np.testing.assert_allclose(project(torch.from_numpy(rows)).numpy(), expected, atol=1e-12)
    # inside, and on the border
    assert ((expected > 0).sum(1) > 1).any() and ((expected == 0).any(1)).any()
