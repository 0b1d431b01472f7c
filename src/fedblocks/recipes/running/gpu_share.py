"""Worker processes and GPUs: each worker has one GPU and an equal part of its memory, and keeps
none of it between batches.
"""

from __future__ import annotations

import gc
import os

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = "FEDBLOCKS_GPU_SHARE"


def environment_of(number: int, workers: int) -> dict[str, str]:
    """What tells one of some workers which GPU is its own, and how much of it."""
    gpus = _names()
    if not gpus:
        return {}
    place = number % len(gpus)
    mates = len(range(place, workers, len(gpus)))
    return {VISIBLE: gpus[place], SHARE: str(1 / mates)}


def take_share() -> None:
    """Ask the GPU for no more than this worker's part: it then trains fewer clients at once, where
    its neighbours would find no memory.
    """
    share = float(os.environ.get(SHARE, 1))
    if share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def give_back() -> None:
    """Leave what is not in use to others."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _names() -> list[str]:
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]
