"""Samplers that a federation on a network cannot follow."""

from __future__ import annotations

from fedblocks.config.registry import REMOTE
from fedblocks.core.errors import UserError, count_of
from fedblocks.core.samplers import UniformSampler
from fedblocks.runs.build import Prepared
from fedblocks.runs.federations import placed


def check_sampling(prepared: Prepared) -> None:
    """Refuse a sampler that asks for what the server does not know, or for rounds with fewer
    clients than a round needs.
    """
    sampling, config = prepared.sampling, prepared.config
    if isinstance(sampling.sampler, UniformSampler):
        return
    with placed(config, ("cohort", "sampler")):
        if getattr(sampling.sampler, "needs_sizes", False) and config.data.name == REMOTE:
            raise UserError(
                "the server does not know how many examples its clients have",
                "use the uniform sampler: who has more examples weighs more in the averages anyway",
            )
        for round in range(config.rounds):
            size = len(sampling.cohort(round))
            if size < sampling.count:
                raise UserError(
                    f"round {round + 1} has {count_of(size, 'client')} of {sampling.count}, and a "
                    f"round of a federation waits for its whole cohort",
                    "use a smaller cohort, or simulate with: fedblocks run",
                )
