"""Queue the end of a round on a GPU before it is known who is admitted.

Whether an upload is admitted is known only when the GPU has finished training, and a device that
waits for the host to queue the rest is idle. So the rest is queued as if everybody were admitted,
and used if that turns out to be so. If not, it is thrown away and the round is closed as on a CPU,
where nothing is queued and nobody speculates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedblocks.core.admission import Examination, cap_groups, examine, fitting
from fedblocks.core.aggregate import reduce_groups
from fedblocks.core.conclusions import conclude
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.private_state import merge_private
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report, Results, close_round, private_by_client, report_of

Methods = Mapping[str, Method]


def pays_on(device: torch.device) -> bool:
    """Whether to speculate: only where work is queued."""
    return device.type == "cuda"


@dataclass(frozen=True, eq=False)
class Speculation:
    """What a round leads to if everybody is admitted."""

    state: State
    # with which a method's `conclude` failed, on numbers that nobody had looked at
    error: Exception | None
    examinations: dict[str, Examination]  # of each group
    private: Mapping[int, Blocks]

    def settle(
        self, methods: Methods, state: State, results: Results, share: float
    ) -> tuple[State, Report]:
        """End the round: as speculated if everybody is admitted, else anew with those who are.

        After an error of `conclude`, too: on admitted numbers it comes again and is raised, or was
        due to the others.
        """
        if self.error is not None or not all(own.is_clean() for own in self.examinations.values()):
            return close_round(methods, state, results, share)
        after = replace(self.state, private=merge_private(state.private, self.private))
        return after, report_of(results, [])


def speculate(methods: Methods, state: State, results: Results, share: float) -> Speculation | None:
    """Queue the end of a round; nothing if uploads are not even of the right shape."""
    if not all(fitting(own.uploads, state.server) for own in results.values()):
        return None
    uploads = cap_groups({group: own.uploads for group, own in results.items()}, share)
    reduced = reduce_groups(state, uploads)
    examinations = {
        group: examine(own.uploads, own.private, own.job.cohort.ids, own.limits)
        for group, own in results.items()
    }
    return conclude_early(methods, state, results, share, reduced, examinations)


def conclude_early(
    methods: Methods,
    state: State,
    results: Results,
    share: float,
    reduced: State,
    examinations: dict[str, Examination],
) -> Speculation:
    """Let methods conclude on what was reduced; an error counts only if it comes again
    on admitted numbers.
    """
    uploads = cap_groups({group: own.uploads for group, own in results.items()}, share)
    cohorts = {group: own.job.cohort for group, own in results.items()}
    failure = None
    try:
        end = conclude(methods, state, reduced, uploads, cohorts)
    except Exception as error:  # `settle` runs it again
        end = reduced
        failure = error
    return Speculation(end, failure, examinations, private_by_client(results, set()))
