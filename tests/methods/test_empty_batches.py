"""A batch of padding alone: whatever a method divides by, its losses are numbers and move nothing
to where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedblocks.core.client import Step
from fedblocks.core.local_round import PhaseRun, loss_gradients, step_by_step, step_key, train
from fedblocks.core.training_batch import batch_of
from fedblocks.engines.sequential import one_client
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS

EVERY = {**EXAMPLES, **ADAPTERS}
# batch normalisation divides by the deviation of nobody, in which no engine trains
NORMALISES = {"fedbn"}


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NORMALISES))
def test_losses_of_no_example_are_numbers_and_so_are_their_gradients(name: str) -> None:
    experiment = EVERY[name]().experiment()
    state = experiment.start()
    group, ids = next(iter(experiment.members(range(4)).items()))
    job = experiment.training_job(group, ids, state)
    local, sent, orders = one_client(job, 0)
    wanted = local.call(job.method.wants, sent)
    start = local.call(job.method.prepare, {**sent, **job.requested(wanted, local)})
    seen = 0

    def look(stretch: PhaseRun, order: Sequence[Step]) -> None:
        nonlocal seen
        for step in order:
            empty = replace(step, index=torch.full_like(step.index, -1), full=False)
            batch = batch_of(stretch.local, empty, step_key(stretch, torch.tensor(1)))
            assert batch["mask"].sum() == 0
            for place, update in enumerate(stretch.phase.updates):
                if update.loss is not None:
                    for gradient in loss_gradients(place, stretch, batch, empty):
                        seen += 1
                        assert gradient is None or gradient.isfinite().all(), update.train
        step_by_step(stretch, order)

    train(job.phases, start, local, [order[:1] for order in orders], look)
    assert seen
