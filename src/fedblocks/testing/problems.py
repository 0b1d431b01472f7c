"""What a check reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LearningProblem(NamedTuple):
    """One thing that does not hold; `part` names the option or block, so that an
    exception can name it too.
    """

    text: str
    part: str = ""


def problems(sentences: Iterable[str], context: str = "", part: str = "") -> list[LearningProblem]:
    """The same context before every sentence."""
    return [LearningProblem(f"{context}: {text}" if context else text, part) for text in sentences]
