"""Clients whose own work failed: the others of their round go on without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError, count_of
from fedblocks.core.forward_errors import note_of

FAILED = "failed"  # the reason in the record of a round
UNSCORED = "not-scored"  # the reason where an evaluation failed; no update was lost


class ClientFailures(Exception):
    """Some clients of a job raised an error, while others ended well."""

    def __init__(self, by_member: Mapping[int, Exception]) -> None:
        super().__init__(f"{count_of(len(by_member), 'client')} failed")
        self.by_member = by_member  # place in the job -> error

    @property
    def first(self) -> Exception:
        return self.by_member[min(self.by_member)]


def raise_failures(by_member: Mapping[int, Exception], count: int) -> NoReturn:
    """Say who of a job of so many clients failed; where it is everybody, the cause lies
    elsewhere, and the first error is raised as it is.
    """
    failures = ClientFailures(by_member)
    if len(by_member) == count:
        raise failures.first
    raise failures from failures.first


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first client's error as it is, where no client may be missing."""
    try:
        yield
    except ClientFailures as failures:
        raise failures.first from None


def describe(error: BaseException) -> str:
    """An error in one line."""
    if (note := note_of(error)) is not None:
        return note.message
    text = (error.message if isinstance(error, UserError) else str(error)).strip()
    return f"{type(error).__name__}: {text.splitlines()[-1]}" if text else type(error).__name__


def unscored(failures: Sequence[Refusal]) -> list[Refusal]:
    """Failures of an evaluation, told apart from those of local training."""
    return [replace(failure, reason=UNSCORED) for failure in failures]
