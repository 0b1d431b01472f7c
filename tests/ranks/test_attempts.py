"""Whose work fails at a rank, and what the ranks agree on: with work that is none."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.engines.failures import FAILED, ClientFailures
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.ranks.errors import text_of
from fedblocks.runs.ranks.training import RankRounds


class Agreement:
    """What this rank says to the others, and what they say in turn."""

    def __init__(self, *others: list[Any]) -> None:
        self.said: list[Any] = []
        self.others = list(others)

    def agree(self, error: Exception | None, own: Any = None) -> list[Any]:
        self.said.append((error, own))
        if error is not None:
            raise error
        return [own, self.others.pop(0) if self.others else []]


def rounds_with(engine: Engine, ranks: Any = None) -> RankRounds:
    """A rank that has the even clients."""
    experiment: Any = SimpleNamespace(own=lambda ids: [i for i in ids if i % 2 == 0])
    return RankRounds(ranks, experiment, engine)


def job_for(clients: Sequence[int]) -> Any:
    return tuple(clients)


def failing(error: Exception) -> Any:
    def work(job: Any) -> Any:
        raise error

    return work


def test_a_rank_works_on_its_own_clients_if_it_has_some() -> None:
    rounds = rounds_with(Sequential())
    assert rounds._attempt(job_for, [0, 1, 2], str) == ([((0, 1, 2), "(0, 1, 2)")], [], None)
    assert rounds._attempt(job_for, [1, 3], str) == ([], [], None)


ODD = ValueError("odd")


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=lambda engine: engine.name)
def test_clients_that_fail_by_themselves_are_named_by_their_numbers(engine: Engine) -> None:
    work = failing(ClientFailures({1: ODD}))
    done, failed, error = rounds_with(engine)._attempt(job_for, [4, 5, 6], work)
    assert (done, failed, error) == ([], [Refusal(6, FAILED, "ValueError: odd")], None)


@pytest.mark.parametrize(
    ("engine", "error", "whose"),
    [
        (Sequential(), ODD, [4, 6]),
        (Vectorised(), ODD, []),
        (Sequential(), UserError("mend", "me"), []),
        (Sequential(), torch.OutOfMemoryError("full"), []),
        (Sequential(), RuntimeError("CUDA error: unspecified launch failure"), []),
    ],
)
def test_any_other_error_is_of_all_clients_where_they_were_tried_one_by_one(
    engine: Engine, error: Exception, whose: list[int]
) -> None:
    done, failed, raised = rounds_with(engine)._attempt(job_for, [4, 5, 6], failing(error))
    assert done == [] and raised is error
    assert [(own.client, own.reason) for own in failed] == [(i, FAILED) for i in whose]


def test_the_other_ranks_hear_of_a_shortage_of_memory_by_one_name() -> None:
    """So that all of them go on with fewer clients at once."""
    work = failing(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"))
    done, failed, raised = rounds_with(Vectorised())._attempt(job_for, [4, 5], work)
    assert (done, failed) == ([], [])
    kind = {"kind": "memory", "message": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"}
    assert text_of(raised) == kind


def test_all_ranks_begin_anew_without_the_clients_that_failed_at_any() -> None:
    ranks = Agreement([[5, "theirs"]])
    rounds = rounds_with(Sequential(), ranks)
    tried: list[Any] = []

    def work(job: Any) -> str:
        tried.append(job)
        if len(tried) == 1:
            raise ClientFailures({1: ODD})
        return "done"

    assert rounds._carry_out(job_for, [4, 5, 6, 7, 8], work) == [((4, 7, 8), "done")]
    assert tried == [(4, 5, 6, 7, 8), (4, 7, 8)]
    assert ranks.said == [(None, [[6, "ValueError: odd"]]), (None, [])]
    assert rounds._failures() == [Refusal(6, FAILED, "ValueError: odd")]
    assert rounds._failures() == []


def test_where_all_clients_of_a_rank_fail_the_others_may_go_on() -> None:
    """The error of one rank alone is no reason to end; that of everybody is."""
    ranks = Agreement([])
    rounds = rounds_with(Sequential(), ranks)
    assert rounds._carry_out(job_for, [4, 5], failing(ODD)) == []
    assert ranks.said == [(None, [[4, "ValueError: odd"]]), (None, [])]
    ranks = Agreement([[5, "odd"]])
    with pytest.raises(ValueError, match="odd"):
        rounds_with(Sequential(), ranks)._carry_out(job_for, [4, 5], failing(ODD))


def test_an_error_that_is_of_no_client_ends_the_work_at_once() -> None:
    ranks = Agreement([])
    with pytest.raises(UserError, match="mend"):
        rounds_with(Sequential(), ranks)._carry_out(job_for, [4], failing(UserError("mend", "me")))
    assert ranks.said[0][1] == [] and len(ranks.said) == 1


def test_nothing_is_done_and_agreed_on_without_clients() -> None:
    ranks = Agreement()
    assert rounds_with(Sequential(), ranks)._carry_out(job_for, [], str) == []
    assert ranks.said == []
