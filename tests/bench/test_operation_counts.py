"""A step of ours launches about as many operations as one written by hand: counted, never timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from fedblocks.bench.jobs import JOBS, BenchJob
from fedblocks.bench.materials import materials
from fedblocks.bench.measure import our_round
from fedblocks.bench.plain import PlainLoop
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

HEAVY = (
    "addmm",
    "mm",
    "bmm",
    "convolution",
    "convolution_backward",
    "mkldnn_rnn_layer",
    "native_batch_norm",
)


class Calls(TorchDispatchMode):
    """Counts the operations that reach a kernel; views and the profiler's marks cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func.namespace == "aten":
            self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def calls(round: Callable[[], int]) -> Counter[str]:
    with Calls() as counter:
        round()
    return counter.found


def per_step(job: BenchJob, side: Callable, clients: int = 1) -> dict[str, float]:
    """Operations of one more step: those of a round of eight less those of a round of
    four, by four.
    """
    size = {"clients": clients, "cohort": clients, "cpu_cohort": clients}
    few, many = (
        calls(side(materials(replace(job, **size, examples=n * 4, batch=4, tests=0), "cpu")))
        for n in (4, 8)
    )
    return {name: (many[name] - few[name]) / 4 for name in many if many[name] != few[name]}


def ours(given) -> Callable[[], int]:
    return our_round(given, Sequential(replay=False))


def replayed(given) -> Callable[[], int]:
    return our_round(given, Sequential(worth=0))


def stacked(given) -> Callable[[], int]:
    return our_round(given, Vectorised())


def plain(given) -> Callable[[], int]:
    return PlainLoop(given).round


@pytest.mark.parametrize("name", ["J1", "J3", "J6", "J7"])
def test_a_step_has_the_heavy_operations_of_a_hand_written_one_and_no_other(name) -> None:
    found, wanted = (per_step(JOBS[name], side) for side in (ours, plain))
    assert {k: v for k, v in found.items() if k in HEAVY} == {
        k: v for k, v in wanted.items() if k in HEAVY
    }


@pytest.mark.parametrize("name", ["J1", "J6", "J7"])
def test_a_step_has_at_most_a_dozen_small_operations_more_than_a_hand_written_one(name) -> None:
    found, wanted = (sum(per_step(JOBS[name], side).values()) for side in (ours, plain))
    assert found <= wanted + 12


def test_noise_is_paid_for_by_the_layers_that_draw_it_and_by_no_other() -> None:
    assert "bitwise_xor_" not in per_step(JOBS["J7"], ours)
    assert "bitwise_xor_" in per_step(JOBS["J5"], ours)


@pytest.mark.parametrize("name", ["J1", "J5", "J7"])
def test_a_repeated_step_has_the_heavy_operations_of_a_plain_one_and_fewer_small_ones(name) -> None:
    again, plainly = (per_step(JOBS[name], side) for side in (replayed, ours))
    assert {k: v for k, v in again.items() if k in HEAVY} == {
        k: v for k, v in plainly.items() if k in HEAVY
    }
    assert sum(again.values()) <= sum(plainly.values()) - 10


def test_a_repeated_step_of_a_dense_net_has_fewer_operations_than_a_hand_written_one() -> None:
    assert sum(per_step(JOBS["J7"], replayed).values()) < sum(per_step(JOBS["J7"], plain).values())


@pytest.mark.parametrize("name", ["J1", "J7"])
def test_a_step_of_a_stack_has_as_many_operations_for_seven_clients_as_for_three(name) -> None:
    three, seven = (per_step(JOBS[name], stacked, clients) for clients in (3, 7))
    assert three == seven
    assert sum(seven.values()) <= 2.5 * sum(per_step(JOBS[name], plain).values())
