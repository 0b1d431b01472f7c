"""Errors that a user can mend: one message, what to do about it, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class Explained(BaseException):
    """An error that says what to do."""

    exit_code: int

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class UserError(Explained, Exception):
    """Something the user can put right; shown as one block, without a traceback."""

    exit_code = 2  # bad input: configuration, names, values


class NetError(UserError):
    """An option does not fit the net, such as the name of a layer that it does not have."""


class DataError(UserError):
    """The data do not fit: empty clients, labels out of range, non-finite inputs."""

    exit_code = 3


class RunFolderError(UserError):
    """A run folder exists already, cannot be written, or is not a run."""

    exit_code = 4


class CheckpointError(UserError):
    """No checkpoint of a run can be read."""

    exit_code = 5


class Interrupted(Explained, KeyboardInterrupt):
    """Stopped by Ctrl-C after the last whole round was stored. As every Ctrl-C, it ends a program
    that only catches `Exception`.
    """

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean "fedavg"? Known: ...` for a name that does not exist."""
    known = sorted(known)
    same = [one for one in known if one.lower() == name.strip().lower()]
    close = same or get_close_matches(name, known, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(f'"{c}"' for c in close) + "? " if close else ""
    return f"{hint}Known: {', '.join(known)}"
