"""What is said and done where the memory of a GPU did not suffice."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.engines.less_memory import with_less_memory
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.kernels.device_errors import (
    OWN,
    held_by_others,
    is_of_device,
    is_shortage,
    shortages_alike,
)

GIB = 2**30
FULL = torch.OutOfMemoryError("full")


def see_gpu(monkeypatch: pytest.MonkeyPatch, free: int, total: int, reserved: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)


@pytest.mark.parametrize(
    ("free", "reserved", "others"),
    [
        (10 * GIB, 30 * GIB, 40 * GIB),  # of 80: 70 in use, 30 of them by torch in this process
        (50 * GIB, 30 * GIB, 0),
        (51 * GIB, 30 * GIB, 0),  # freed in between
        (50 * GIB - OWN, 30 * GIB, 0),  # the context of this process, not another one
        (50 * GIB - OWN - 1, 30 * GIB, OWN + 1),
    ],
)
def test_others_hold_what_is_in_use_and_not_of_this_process(
    free: int, reserved: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    see_gpu(monkeypatch, free, 80 * GIB, reserved)
    assert held_by_others() == others


def test_a_run_on_a_cpu_does_not_begin_to_use_a_gpu_in_order_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpu(monkeypatch, 0, 80 * GIB, 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert held_by_others() == 0


def test_a_process_that_is_alone_on_its_gpu_is_not_told_to_end_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpu(monkeypatch, 2 * GIB, 80 * GIB, 78 * GIB - 500 * 2**20)  # 500 MiB: its context
    with pytest.raises(UserError, match=r"the memory of the device\n") as caught:
        with_less_memory(Sequential(), 5, FULL)
    assert caught.value.fix.startswith("use a smaller net")


def test_memory_that_larger_stacks_left_is_free_for_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("yes"))
    assert with_less_memory(Vectorised(chunk=8), 6, FULL) == Vectorised(chunk=3)
    assert emptied == ["yes"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"),
            "CUDA error: out of memory",
        ),
        (MemoryError(), "MemoryError"),
    ],
    ids=["CUDA", "Python"],
)
def test_a_shortage_is_told_in_its_first_line(error: Exception, said: str) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught, shortages_alike():
        raise error
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_a_library_says_in_many_ways_that_it_finds_no_memory(text: str) -> None:
    assert is_shortage(RuntimeError(text)) and is_of_device(RuntimeError(text))


@pytest.mark.parametrize(
    ("text", "of_device"),
    [
        ("CUDA error: unspecified launch failure", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUBLAS_STATUS_EXECUTION_FAILED", True),
        ("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED", True),
        ("cuFFT error: CUFFT_EXEC_FAILED", True),
        ("NVRTC_ERROR_INTERNAL_ERROR", True),
        ("NCCL error in: ProcessGroupNCCL.cpp, remote process exited", True),
        ("mat1 and mat2 shapes cannot be multiplied (4x3 and 2x3)", False),
    ],
)
def test_what_a_gpu_fails_at_is_told_from_what_it_was_asked_for(text: str, of_device: bool) -> None:
    assert not is_shortage(RuntimeError(text))
    assert is_of_device(RuntimeError(text)) == of_device
