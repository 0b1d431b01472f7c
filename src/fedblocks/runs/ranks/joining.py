"""How a process becomes a rank: by what torchrun, or a program of the user's, has set up."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from fedblocks.core.errors import UserError
from fedblocks.runs.ranks.ranks import Peer, Ranks, Result
from fedblocks.runs.storage.environment import start_time

PATIENCE = "FEDBLOCKS_RANK_TIMEOUT"  # environment variable: seconds
DEFAULT_PATIENCE = 1800.0
START_PATIENCE = timedelta(minutes=5)  # at least: some machines take a while to import torch
START = "torchrun --nproc-per-node 2 -m fedblocks run ..."
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_JOINED: list[Ranks] = []  # at most one: a process joins once, and leaves when it ends


def current_ranks() -> Ranks | None:
    """The ranks that this process is one of; None where it works alone."""
    if _JOINED:
        return _JOINED[0].still_together()
    if not is_rank():
        return None
    _JOINED.append(_join())
    atexit.register(_leave)
    return _JOINED[0]


def together(work: Callable[[], Result]) -> Result:
    """Some work of this process; where it is one of several ranks, an error of one ends all."""
    ranks = current_ranks()
    return work() if ranks is None else ranks.together(work)


def refuse_ranks(what: str) -> None:
    """Refuse what one process does alone: several would write the same files."""
    if is_rank():
        refusal = UserError(
            f"{what} is work for one process, and this is one of several ranks",
            "start it without torchrun; ranks share the work of one run: fedblocks run, resume",
        )
        vars(refusal)["silent"] = not is_first()
        raise refusal


def is_rank() -> bool:
    """Whether this process is one of several; asks nobody."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1").strip() != "1"


def is_first() -> bool:
    """Whether this process is the one that writes and speaks: rank 0, or one that works alone."""
    return not is_rank() or _own_number() == 0


def _own_number() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return _number("RANK", 0)


def _join() -> Ranks:
    if not dist.is_available():
        raise UserError("this torch is built without torch.distributed", "install another torch")
    patience = _patience()
    try:
        if not dist.is_initialized():  # else by the user's program, with a backend of its choice
            _check_variables()
            dist.init_process_group(_backend(), timeout=max(patience, START_PATIENCE))
        group = dist.new_group(backend=_backend(), timeout=patience)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"the ranks did not find each other at {_address()}: {reason}"
        raise UserError(message, f"start all of them with: {START}") from error
    number, count = dist.get_rank(), dist.get_world_size()
    own = Peer(socket.gethostname(), os.getpid(), start_time(os.getpid()))
    alone = Ranks(number, count, patience.total_seconds(), group)
    return alone.with_peers([Peer(*row) for row in alone.share(list(own))])


def _backend() -> str:
    """NCCL between GPUs where every rank of this machine has its own, gloo for all else."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "cpu:gloo,cuda:nccl" if 0 < local_ranks() <= gpus else "gloo"


def local_ranks() -> int:
    """Ranks on this machine, as torchrun says."""
    return _number("LOCAL_WORLD_SIZE", _number("WORLD_SIZE", 1))


def local_number() -> int:
    """The number of this rank on its machine."""
    return _number("LOCAL_RANK", _number("RANK", 0))


def _check_variables() -> None:
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        message = f"this process is to be one of several ranks, but {missing[0]} is not set"
        raise UserError(message, f"start it with: {START}")
    number, count = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= number < count:
        raise UserError(f"RANK is {number} of {count} ranks", f"start it with: {START}")


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, str(otherwise))
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{name} is {text!r}, not a number", f"start with: {START}") from error


def _patience() -> timedelta:
    text = os.environ.get(PATIENCE, str(DEFAULT_PATIENCE))
    try:
        seconds = float(text)
        if not 0 < seconds < 1e6:
            raise ValueError(text)
    except ValueError as error:
        raise UserError(f"{PATIENCE} is {text!r}", "give a number of seconds, e.g. 600") from error
    return timedelta(seconds=seconds)


def _address() -> str:
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"


def _leave() -> None:
    with suppress(Exception):  # at the end of the process nobody is left to tell
        dist.destroy_process_group()
