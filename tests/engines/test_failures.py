"""A client whose own function raises is absent in its round, and says why."""

import sys
from typing import Any

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.engines import sequential
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.kernels.device_errors import shortages_alike
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves

ENGINES = [
    Sequential,
    lambda: Sequential(replay=False),
    pytest.param(
        lambda: Processes(count=2),
        marks=pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux"),
    ),
]


def break_client(
    monkeypatch: pytest.MonkeyPatch, name: str, clients: set[int], error: Exception
) -> None:
    """Let a function of the engine raise for some clients."""
    whole = getattr(sequential, name)

    def work(job: Any, stack: Any, *others: Any) -> Any:
        if int(stack.tensors["id"]) in clients:
            raise error
        return whole(job, stack, *others)

    monkeypatch.setattr(sequential, name, work)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg", "pfedmb"])
def test_a_client_that_raises_is_absent_and_the_round_is_that_of_the_others(
    engine: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[name]()
    experiment, engine = example.experiment(), engine()
    start, everybody = experiment.start(), list(example.everybody)
    expected, _ = run_round(experiment, start, everybody[1:], Sequential(replay=False))
    break_client(monkeypatch, "train_locally", {everybody[0]}, ValueError("no such word"))
    ((after, report),) = Lanes([experiment]).run_round([start], [everybody], engine)
    (refusal,) = report.refusals
    assert (refusal.client, refusal.reason) == (everybody[0], "failed")
    assert "ValueError: no such word" in refusal.detail and "\n" not in refusal.detail
    assert report.clients == everybody[1:]
    ours, theirs = state_leaves(after), state_leaves(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[key], theirs[key], atol=1e-6) for key in ours)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_raises_in_an_evaluation_has_no_score(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment, engine = example.experiment(), engine()
    state, everybody = experiment.start(), list(example.everybody)
    break_client(monkeypatch, "evaluate_locally", {everybody[1]}, KeyError("x"))
    (evaluation,) = Lanes([experiment]).evaluate_parts([state], [everybody], engine, ["test"])
    scores = next(iter(evaluation.scores["test"].values()))
    assert sorted(scores) == [client for client in everybody if client != everybody[1]]
    assert [refusal.client for refusal in evaluation.failures] == [everybody[1]]


def test_an_error_of_every_client_ends_the_round_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment = example.experiment()
    everybody = list(example.everybody)
    break_client(monkeypatch, "train_locally", set(everybody), ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        Lanes([experiment]).run_round([experiment.start()], [everybody], Sequential())


SHORT = RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")


@pytest.mark.parametrize(
    "error",
    [
        SHORT,
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
@pytest.mark.parametrize("name", ["train_locally", "evaluate_locally"])
def test_a_machine_that_fails_is_no_client_that_fails(
    name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the others would be averaged without it, and nobody would know why."""
    example = EXAMPLES["fedavg"]()
    experiment, everybody = example.experiment(), list(example.everybody)
    lanes, state = Lanes([experiment]), experiment.start()
    break_client(monkeypatch, name, {everybody[0]}, error)
    with pytest.raises(type(error)) as caught:
        if name == "train_locally":
            lanes.run_round([state], [everybody], Sequential())
        else:
            lanes.evaluate_parts([state], [everybody], Sequential(), ["test"])
    assert caught.value is error


def test_what_was_half_written_down_for_a_client_that_fails_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment, everybody = example.experiment(), list(example.everybody)
    lanes, state, engine = Lanes([experiment]), experiment.start(), Sequential()
    lanes.run_round([state], [everybody], engine)
    (before,) = engine.known.values()
    lanes.run_round([state], [everybody], engine)
    assert [*engine.known.values()] == [before]
    break_client(monkeypatch, "train_locally", {everybody[-1]}, ValueError("no such word"))
    lanes.run_round([state], [everybody], engine)
    (after,) = engine.known.values()  # of the round without that client
    assert after is not before


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("none left"), "MemoryError: none left"),
        # as torch says it on a CPU
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "RuntimeError: DefaultCPU"),
    ],
    ids=["Python", "torch"],
)
def test_a_worker_without_memory_ends_the_round(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES["fedavg"]()
    experiment, everybody = example.experiment(), list(example.everybody)
    break_client(monkeypatch, "train_locally", {everybody[0]}, error)
    with pytest.raises(UserError, match=f"memory did not suffice: {said}") as caught:
        Lanes([experiment]).run_round([experiment.start()], [everybody], Processes(count=2))
    assert "fewer" in caught.value.fix


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (SHORT, True),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), False),
        (RuntimeError("the words 'out of memory' are mine"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
    ids=str,
)
def test_a_shortage_of_memory_is_one_error_whoever_found_none(
    error: Exception, short: bool
) -> None:
    expected = torch.OutOfMemoryError if short else type(error)
    with pytest.raises(expected) as caught, shortages_alike():
        raise error
    assert (caught.value.__cause__ is error) == short
    assert str(error).strip() in str(caught.value)
    found = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError) as caught, shortages_alike():
        raise found
    assert caught.value is found  # as torch raised it
