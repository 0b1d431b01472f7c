"""Errors that are the machine's and no client's: too little memory, under whatever name, or a GPU
that fails. A client whose own work fails is left out of its round; a machine that fails ends the
run, which goes on later from its last checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

OWN = 2**30  # bytes of a GPU that a process may hold beside torch's: its context, its libraries
# what libraries of a GPU say where they find no memory for themselves, and torch on a CPU
_SHORT = re.compile(
    r"CUDA error: out of memory|STATUS_ALLOC_FAILED|STATUS_NOT_INITIALIZED"
    r"|CUDNN_STATUS_INTERNAL_ERROR|DefaultCPUAllocator"
)
_OF_DEVICE = re.compile(r"CUDA error|cuDNN error|(CUDNN|CUBLAS|CUSOLVER|CUFFT|NVRTC)_|NCCL error")


def is_shortage(error: BaseException) -> bool:
    """Whether memory did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_SHORT.search(str(error)))


def is_of_device(error: BaseException) -> bool:
    """Whether it is the machine that failed, not what it was asked for."""
    of_device = isinstance(error, RuntimeError) and bool(_OF_DEVICE.search(str(error)))
    return of_device or is_shortage(error)


@contextmanager
def shortages_alike() -> Iterator[None]:
    """Raise every shortage of memory as torch's own error."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not is_shortage(error):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise torch.OutOfMemoryError(why) from error


def held_by_others() -> int:
    """Bytes of the GPU in use that other programs hold; 0 where no GPU is used, and where they are
    so few that this process itself may hold them.
    """
    if not torch.cuda.is_initialized():
        return 0
    free, total = torch.cuda.mem_get_info()
    held = total - free - torch.cuda.memory_reserved()
    return held if held > OWN else 0
