"""The part of a job that a rank does."""

from __future__ import annotations

from .test_rounds_by_hand import experiment


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
