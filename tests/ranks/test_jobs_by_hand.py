"""The part of a job that a rank does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.engines.close_round import Admitted
from fedblocks.runs.ranks.ownership import MANY, owners_of
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.uploads import GroupUploads, describe_group
from fedblocks.testing.federations import small_net

from .test_rounds_by_hand import Plain, cohort_of, experiment, upload


def test_a_rank_works_on_its_clients_with_what_all_of_them_are_sent() -> None:
    own = experiment(1)
    state = own.start()
    method = own.methods["all"]
    phases = method.phases()
    job = own.job("all", [4, 0, 1], state, phases, True, "train")
    assert job.cohort.ids.tolist() == [4, 1] and job.cohort.sizes.tolist() == [5.0, 8.0]
    assert job.method is method and job.phases is phases and job.data is own.data
    assert (job.seed, job.training, job.purpose) == (3, True, "train")
    assert job.tables is own.tables  # what was computed for one job serves the next
    assert len(job.sent.reads["model"].slots) == 2
    evaluation = own.job("all", [0], state, [], False, "adapt")
    assert (len(evaluation.cohort), evaluation.training, evaluation.purpose) == (0, False, "adapt")


def test_a_group_whose_clients_are_all_on_one_rank_is_known_everywhere() -> None:
    part = ([4, 0], [1.0, 5.0], [1.0, 3.0])
    admitted = Admitted({"model": upload(*part)}, cohort_of(part[0]), [])
    said = [None, describe_group(admitted), None]
    own = GroupUploads(
        Ranks(0, 3, 1.0), Plain(small_net()), None, said, torch.device("cpu")
    )  # at a rank that has none of them
    whole = own.uploads["model"]
    assert whole.ids.tolist() == [0, 4] and whole.weights.flatten().tolist() == [3.0, 1.0]
    assert own.counts == [0, 2, 0] and own.outline("model").keys() == {"w", "n"}


@pytest.mark.parametrize(("clients", "unit"), [(MANY - 1, 1), (MANY, 64), (MANY + 1, 64)])
def test_neighbours_of_a_large_federation_stay_together(clients: int, unit: int) -> None:
    owners = owners_of(np.full(clients, 3), [], 4)
    assert len(owners) == clients and {*owners.tolist()} == {0, 1, 2, 3}
    changes = np.flatnonzero(np.diff(owners)) + 1
    assert (changes % unit == 0).all() and (unit > 1 or (changes % 64 != 0).any())
