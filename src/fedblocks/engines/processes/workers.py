"""Worker processes: forked once, given messages over a socket, gone as soon as their parent is."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedblocks.core.errors import UserError
from fedblocks.core.forward_errors import ForwardNote, note_of, put_note
from fedblocks.engines.failures import describe
from fedblocks.kernels.device_errors import is_shortage

Message = dict[str, Any]
_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_MMAP_THRESHOLD = -3
FEWER = "set `processes` to fewer, use a smaller batch, or a machine with more memory"
_LENGTH = struct.Struct("<Q?")  # bytes that follow, and whether a file comes along


class WorkerError(UserError):
    """A worker process failed or was killed."""

    exit_code = 1


def failure_message(error: BaseException) -> Message:
    """What a worker says of an error, for `worker_error`; a lack of memory is the machine's."""
    if is_shortage(error):
        return {"error": f"memory did not suffice: {describe(error)}", "fix": FEWER}
    return {"error": traceback.format_exc(), "fix": None, "forward": note_of(error)}


def worker_error(said: str, message: Message) -> WorkerError:
    """An error of a worker, with the note of a net's forward pass if it comes from there."""
    error = WorkerError(f"{said}:\n{message['error']}")
    if note := message["forward"]:
        put_note(error, ForwardNote(*note))
    return error


@dataclass(frozen=True, eq=False)
class Channel:
    """Messages as JSON, a file now and then; no object of ours is ever rebuilt from bytes."""

    socket: socket.socket

    def send(self, message: Message, descriptor: int | None = None) -> None:
        content = json.dumps(message).encode()
        files = [] if descriptor is None else [descriptor]
        socket.send_fds(self.socket, [_LENGTH.pack(len(content), bool(files))], files)
        self.socket.sendall(content)

    def receive(self) -> tuple[Message, int | None]:
        """The next message; EOFError once the other side is gone."""
        head, files, _, _ = socket.recv_fds(self.socket, _LENGTH.size, 1)
        if not head:
            raise EOFError
        length, _ = _LENGTH.unpack(head)
        content = bytearray()
        while len(content) < length:
            piece = self.socket.recv(length - len(content))
            if not piece:
                raise EOFError
            content += piece
        return json.loads(content), files[0] if files else None


@dataclass(frozen=True, eq=False)
class Worker:
    """One process and the way to talk to it."""

    number: int
    process: BaseProcess
    channel: Channel

    def gone(self, doing: str) -> WorkerError:
        """What to say of a worker that ended by itself."""
        self.process.join(5)
        code = self.process.exitcode
        how = f"ended with code {code}"
        if code and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        return WorkerError(
            f"worker {self.number} (process {self.process.pid}) {how} while it {doing}",
            'look for "out of memory" in the system log; fewer processes need less',
        )


class Workers:
    """Several worker processes. They are forked, so they know all that the parent knew
    at that time.
    """

    def __init__(self, count: int, serve: Callable[[Channel], None]) -> None:
        if not available():
            message = 'engine = "processes" works on Linux, without a GPU'
            raise UserError(message, 'use engine = "auto" or "sequential"')
        self.workers: list[Worker] = []
        self._end = weakref.finalize(self, _end, self.workers)
        self._serve = serve
        for number in range(count):
            self.workers.append(self._fork(number))

    def close(self) -> None:
        """End all of them now."""
        self._end()

    def replace(self, dead: Worker) -> Worker:
        """Start another worker in the place of one that is gone."""
        dead.channel.socket.close()
        self.workers[dead.number] = self._fork(dead.number)
        return self.workers[dead.number]

    def incoming(self, among: Collection[int]) -> list[Worker]:
        """Those of the workers with these numbers that have something to say, once there are
        some.
        """
        with selectors.DefaultSelector() as selector:
            for number in among:
                worker = self.workers[number]
                selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
            return [key.data for key, _ in selector.select()]

    def _fork(self, number: int) -> Worker:
        ours, theirs = socket.socketpair()
        # or their EOF would never come
        others = [own.channel.socket for own in self.workers if own.number != number]
        process = multiprocessing.get_context("fork").Process(
            target=_live,
            args=(theirs, [ours, *others], self._serve),
            name=f"worker-{number}",
            daemon=True,
        )
        with warnings.catch_warnings():
            # threads of torch, idle and not used again
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(number, process, Channel(ours))


def available() -> bool:
    """Whether workers can be forked here: a process that has begun to use a GPU cannot be."""
    return sys.platform == "linux" and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _live(
    own: socket.socket, others: Sequence[socket.socket], serve: Callable[[Channel], None]
) -> None:
    """The life of a worker: one thread, no Ctrl-C of its own, and the end with the parent's."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    gc.freeze()  # or the first collection would copy every page that holds an object
    torch.set_num_threads(1)
    _keep_memory()
    channel = Channel(own)
    with suppress(EOFError, ConnectionError):
        try:
            serve(channel)
        except (EOFError, ConnectionError):
            raise
        except UserError as error:
            channel.send({"error": error.message, "fix": error.fix})
        except BaseException as error:
            channel.send(failure_message(error))


def _keep_memory() -> None:
    """What is freed is used again, not handed back: activations come and go in every
    step, each time by page faults.
    """
    with suppress(AttributeError, OSError):  # only glibc knows these switches
        adjust = ctypes.CDLL(None).mallopt
        for switch in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            adjust(switch, 1 << 30)


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.channel.socket.close()
    for worker in workers:
        worker.process.join(0.2)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()
