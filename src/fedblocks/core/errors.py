"""Errors that a user can correct: a message, what to do about it, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

_ALIKE = 0.65  # share of letters that a name has in common with what was meant
_ALMOST = 0.1  # names that are less alike than the best by more are not mentioned
_SHORT, _MOST = 2, 3  # letters that begin many names; names that are mentioned


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


def error_of(exit_code: int, message: str, fix: str = "") -> UserError:
    """Return the kind of error that has an exit code: what failed in another process fails here."""
    kinds = {
        kind.exit_code: kind for kind in (UserError, DataError, RunFolderError, CheckpointError)
    }
    return kinds.get(exit_code, UserError)(message, fix)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean "fedavg"? Or choose one of ...` for a name that does not
    exist.
    """
    known = sorted(filter(None, known))
    if not known:
        return "leave it out: there is nothing to choose from"
    choice = (
        f"choose one of {', '.join(known)}" if len(known) > 1 else f"the only one is {known[0]}"
    )
    close = " or ".join(f'"{one}"' for one in alike(name, known))
    return f"did you mean {close}? Or {choice}" if close else choice


def alike(name: str, known: Sequence[str]) -> list[str]:
    """The same name in other letters, or the beginning of names, or at most three that are almost
    as alike as the one that is most.
    """
    name = name.strip().lower()
    same = [one for one in known if one.lower() == name]
    longer = [one for one in known if one.lower().startswith(name) and len(name) > _SHORT]
    likeness = {one: SequenceMatcher(None, one.lower(), name).ratio() for one in known}
    least = max(_ALIKE, max(likeness.values(), default=0.0) - _ALMOST)
    alike = sorted((one for one in known if likeness[one] >= least), key=lambda one: -likeness[one])
    return (same or (longer if 0 < len(longer) <= _MOST else alike))[:_MOST]


def printable(text: object, keep: str = "") -> str:
    """Text without control characters, with which foreign names could command a terminal."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in str(text))


def a_kind(value: object) -> str:
    """What a value is, for messages: `a list`, `an ndarray`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' or name.startswith('nd') else 'a'} {name}"


def count_of(count: int, noun: str) -> str:
    """`1 client`, `2 clients`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
