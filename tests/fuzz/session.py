"""Show a decoder many changed files, in a process of its own, and note what it makes of them."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedblocks.core.errors import UserError

from .decoders import Decoder

SECONDS = 1.0  # of the processor, that a file of a few kilobytes may take
GROWTH = 200 * 2**20  # bytes that reading it may take
MEMORY = 6 * 2**30  # bytes of addresses; an allocation beyond is an error of its own


@dataclass
class Outcome:
    """What became of the files."""

    inputs: int = 0
    read: int = 0  # taken for a good file, which some changes leave it
    refused: int = 0  # with a message
    slowest: float = 0.0  # seconds of the processor
    grown: int = 0  # bytes of memory at the peak, above what there was before
    wrong: list[str] = field(default_factory=list)  # other errors, with the file that led to them


def fuzz(
    decoder: Decoder, inputs: int, seed: int, expected: tuple[type[Exception], ...] = (UserError,)
) -> Outcome:
    """In this process."""
    rng = random.Random(seed)
    outcome = Outcome()
    peak = _reset_peak()
    for _ in range(inputs):
        content = decoder.changed(rng)
        start = time.process_time()
        try:
            decoder.read(content)
            outcome.read += 1
        except expected:
            outcome.refused += 1
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error}"[:160]
            outcome.wrong.append(f"{what} at {place.name}, {content[:80]!r}")
        outcome.slowest = max(outcome.slowest, time.process_time() - start)
        outcome.inputs += 1
    outcome.grown = _peak() - peak
    return outcome


def apart(work: Callable[[], Outcome], report: Path) -> Outcome:
    """In a child, which has memory of its own and may die."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            report.write_text(json.dumps(asdict(work())))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the decoder took its process with it"
    return Outcome(**json.loads(report.read_text()))


def check(outcome: Outcome) -> None:
    assert outcome.wrong == []
    assert outcome.refused > 0  # the changes are such that it has something to refuse
    assert outcome.slowest < SECONDS
    assert outcome.grown < GROWTH


def keep(results: Path, name: str, outcome: Outcome) -> None:
    """Beside those of the other decoders, so that a long session can be taken up again."""
    known = json.loads(results.read_text()) if results.is_file() else {}
    known[name] = {
        **asdict(outcome),
        "wrong": len(outcome.wrong),
        "slowest": round(outcome.slowest, 3),
    }
    results.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Bytes of memory that the process had at most."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])
