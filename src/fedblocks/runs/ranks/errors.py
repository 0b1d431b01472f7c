"""Errors of one rank that end all of them: said once, with the same exit code everywhere."""

from __future__ import annotations

from typing import Any

import torch

from fedblocks.core.errors import Explained, UserError

MEMORY, INTERRUPT, USER, OTHER = "memory", "interrupt", "user", "other"


class RankError(UserError):
    """What went wrong at another rank."""

    def __init__(self, message: str, fix: str = "", code: int = 2) -> None:
        super().__init__(message, fix)
        self.exit_code = code


class RankLost(UserError):
    """Another rank ended, or does not answer."""

    exit_code = 1


def text_of(error: BaseException | None) -> dict[str, Any] | None:
    """An error as plain values, for the others."""
    if error is None:
        return None
    if isinstance(error, Explained):
        return {
            "kind": USER,
            "message": error.message,
            "fix": error.fix,
            "code": error.exit_code,
        }
    kind = OTHER
    if isinstance(error, torch.OutOfMemoryError):
        kind = MEMORY
    elif isinstance(error, KeyboardInterrupt):
        kind = INTERRUPT
    return {"kind": kind, "message": str(error).strip() or type(error).__name__}


def error_of(text: dict[str, Any], of: int, here: int, own: BaseException | None) -> BaseException:
    """The error to raise at a rank for one of another, or of its own; only the first rank shows
    it, since all have it.
    """
    error: BaseException
    if own is not None and of == here:
        error = own
    elif text["kind"] == MEMORY:
        error = torch.OutOfMemoryError(f"rank {of}: {text['message']}")
    elif text["kind"] == INTERRUPT:
        error = KeyboardInterrupt()
    elif text["kind"] == USER:
        start = "" if of == 0 else f"rank {of}: "
        error = RankError(f"{start}{text['message']}", text["fix"], text["code"])
    else:
        error = RuntimeError(f"rank {of}: {text['message']}")
    if here != 0:
        vars(error)["silent"] = True
    return error


def is_silent(error: BaseException) -> bool:
    """Whether another rank shows this error, so that it is seen once."""
    return bool(vars(error).get("silent", False))
