"""Which lanes are worked on together, and what becomes of those that cannot be, or whose clients
fail: with jobs that are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.optimizers import Adam
from fedblocks.engines.failures import FAILED, ClientFailures
from fedblocks.engines.lanes import lanes as module
from fedblocks.engines.lanes.lanes import DECIDES, Lanes
from fedblocks.engines.lanes.numbers import differing_numbers

Work = Callable[[Any], str]


class Own:
    """The method of all jobs."""


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A joined job is the lanes and clients that are in it."""
    join = lambda ground, jobs: {lane: job.ids for lane, job in jobs.items()}
    monkeypatch.setattr(module, "join_jobs", join)
    monkeypatch.setattr(module, "why_not", lambda experiments: None)
    yield


def lanes_of(count: int) -> Lanes:
    lanes = Lanes([SimpleNamespace()] * count)  # type: ignore[list-item]
    vars(lanes)["ground"] = None
    return lanes


def jobs_for(shapes: Sequence[int]) -> Callable[[Sequence[Sequence[int]]], dict[int, Any]]:
    """Jobs of lanes, each of which sends so many numbers to its clients."""

    def jobs(clients: Sequence[Sequence[int]]) -> dict[int, Any]:
        return {
            lane: SimpleNamespace(
                ids=list(ids),
                method=Own(),
                sent=SimpleNamespace(blocks={"w": {"v": torch.zeros(len(ids), shapes[lane])}}),
            )
            for lane, ids in enumerate(clients)
            if ids
        }

    return jobs


def carry_out(
    lanes: Lanes, shapes: Sequence[int], work: Work, stacks: bool = True
) -> tuple[list[Any], list[list[Refusal]]]:
    """Lanes of clients 0 and 1, 2 and 3, and so on."""
    clients = [[2 * lane, 2 * lane + 1] for lane in range(len(shapes))]
    absent: list[list[Refusal]] = [[] for _ in shapes]
    ends = lanes._carry_out(jobs_for(shapes), clients, work, absent, stacks)
    return [(list(jobs), end) for jobs, end in ends], absent


def test_lanes_of_one_shape_are_together_where_clients_are_stacked() -> None:
    shapes = (3, 5, 3)
    ends, absent = carry_out(lanes_of(3), shapes, str)
    assert ends == [([0, 2], "{0: [0, 1], 2: [4, 5]}"), ([1], "{1: [2, 3]}")]
    assert absent == [[], [], []]
    ends, _ = carry_out(lanes_of(3), shapes, str, stacks=False)
    assert ends == [([0], "{0: [0, 1]}"), ([1], "{1: [2, 3]}"), ([2], "{2: [4, 5]}")]


def test_lanes_that_decide_by_numbers_are_apart_from_then_on() -> None:
    lanes, tried = lanes_of(3), []

    def decide(job: Any) -> str:
        tried.append([*job])
        if len(job) > 1:
            raise RuntimeError(f"{DECIDES} of a tensor")
        return "done"

    for _ in range(2):
        ends, _ = carry_out(lanes, (3, 3, 5), decide)
        assert ends == [([0], "done"), ([1], "done"), ([2], "done")]
    assert tried == [[0, 1], [0], [1], [2], [0], [1], [2]] and lanes.apart == ["Own"]


@pytest.mark.parametrize(("text", "count"), [("odd", 2), (DECIDES, 1)])
def test_other_errors_and_those_of_a_lane_alone_are_raised(text: str, count: int) -> None:
    def fail(job: Any) -> str:
        raise RuntimeError(text)

    lanes = lanes_of(count)
    with pytest.raises(RuntimeError, match=text):
        carry_out(lanes, (3,) * count, fail)
    assert lanes.apart == []


def test_clients_that_fail_are_absent_from_their_lane_and_the_others_begin_anew() -> None:
    """Of lanes 0 and 2 the third client, 4, fails at first, and then 1; lane 1 is by itself."""
    tried: list[str] = []

    def work(job: Any) -> str:
        tried.append(str(job))
        if len(tried) == 1:
            raise ClientFailures({2: ValueError("odd")})
        if len(tried) == 2:
            raise ClientFailures({1: ValueError("worse")})
        return "done"

    ends, absent = carry_out(lanes_of(3), (3, 5, 3), work)
    assert tried == [
        "{0: [0, 1], 2: [4, 5]}",
        "{0: [0, 1], 2: [5]}",
        "{0: [0], 2: [5]}",
        "{1: [2, 3]}",
    ]
    assert ends == [([0, 2], "done"), ([1], "done")]
    assert absent == [
        [Refusal(1, FAILED, "ValueError: worse")],
        [],
        [Refusal(4, FAILED, "ValueError: odd")],
    ]


def test_lanes_whose_clients_all_fail_have_no_end() -> None:
    def work(job: Any) -> str:
        if 0 in job:
            raise ClientFailures(dict.fromkeys(range(2), ValueError("odd")))
        return "done"

    ends, absent = carry_out(lanes_of(2), (3, 5), work)
    assert ends == [([1], "done")] and [len(own) for own in absent] == [2, 0]


def test_numbers_are_compared_of_records_and_one_alone_differs_in_nothing() -> None:
    slow, fast = Adam(eps=0.5), Adam(eps=0.75)
    assert differing_numbers([slow, fast, slow]) == {"eps": [0.5, 0.75, 0.5]}
    assert differing_numbers([slow]) == differing_numbers([slow, slow]) == {}
    assert differing_numbers([0.5, 0.75]) == {}
