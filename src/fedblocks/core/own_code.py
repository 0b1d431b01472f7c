"""Functions that people write themselves: whatever they raise is told with their name, what went
wrong, where, and what is expected of them.
"""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedblocks.core.errors import Explained, UserError

LOCAL = "<locals>."  # in the name of a function inside another
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]


def own_name(function: Any) -> str:
    """What a function, or an object that is called like one, is called in messages."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).split(LOCAL)[-1]


def last_name(function: Any) -> str:
    """The same without its class."""
    return own_name(function).rpartition(".")[2]


def takes(function: Any, count: int) -> bool:
    """Whether a function can be called with so many arguments; one that does not say it may be."""
    # an object's own signature may be that of making it
    is_plain = isinstance(function, type | partial) or inspect.isroutine(function)
    try:
        signature = inspect.signature(function if is_plain else function.__call__)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


@contextmanager
def own_code(what: str, fix: str) -> Iterator[None]:
    """Inside, somebody's own function is called: its errors become a UserError."""
    try:
        yield
    except Explained:
        raise
    except Exception as error:  # whatever other people's code does
        reason = (str(error).splitlines() or [""])[0]
        said = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise UserError(f"{what} failed: {said}{line_of(error)}", fix) from error


def line_of(error: BaseException) -> str:
    """` (file.py, line 3)`: the innermost line of people's own files that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(Path(frame.filename))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def is_library(file: Path) -> bool:
    path = file.resolve()
    return any(path.is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED))
