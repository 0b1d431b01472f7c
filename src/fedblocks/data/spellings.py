"""Labels and user ids as tables write them: fields of text, in which one number may be spelled in
several ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError

MOST_DIGITS = 6  # of the number of a class
Ids = Literal["numbers", "words"]  # what user ids are that are all whole numbers
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # the usual spelling of a number of at most 63 bits


def as_number(field: str) -> float:
    """A field as a number, or ValueError; 1_000, which Python would read, is none."""
    if "_" in field:
        raise ValueError(field)
    return float(field)


def number_labels(fields: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Labels as they are if they are whole numbers, else their place among the words,
    and the words. Blanks around a field are no part of it.
    """
    fields = [field.strip() for field in fields]
    refuse_two_spellings(fields, "label")
    if all(field.isdecimal() for field in fields):
        longest = max(fields, key=lambda field: len(field.lstrip("0")))
        if len(longest.lstrip("0")) > MOST_DIGITS:
            raise DataError(
                f'the label "{longest[:40]}" is too large for the number of a class',
                "number the classes 0, 1, 2, ..., or write them as words",
            )
        return np.array([int(field) for field in fields], np.int64), []
    if fraction := _first_fraction(fields):
        raise DataError(
            f'the label "{fraction}" is a number with a fraction, and no class',
            'for numbers say Task("regression"); write classes as words or as 0, 1, 2, ...',
        )
    words, places = np.unique(np.array(fields), return_inverse=True)
    return places.astype(np.int64), words.tolist()


def user_fields(fields: Sequence[str], ids: Ids = "numbers") -> npt.NDArray[Any]:
    """User ids without the blanks around them: as numbers where all of them are whole."""
    fields = [field.strip() for field in fields]
    refuse_two_spellings(fields, "user id")
    if ids == "numbers" and all(map(_WHOLE.fullmatch, fields)):
        return np.array([int(field) for field in fields], np.int64)
    return np.array(fields)


def refuse_two_spellings(fields: Iterable[str], what: str) -> None:
    """Refuse "1" and "1.0", "01" or "+1" where all fields are numbers: one becomes two."""
    texts = dict.fromkeys(fields)
    if any("_" in text for text in texts):
        return
    try:
        numbers = {text: Decimal(text) for text in texts}  # exact: ids may have many digits
    except InvalidOperation:  # words, among which "1e5" and "100000" may be two
        return
    spellings: dict[Decimal, str] = {}
    for text, value in numbers.items():
        other = spellings.setdefault(value, text)
        if other != text:
            message = f'the {what}s "{other}" and "{text}" are one number, written in two ways'
            raise DataError(message, "write it in one way; write those that differ as words")


def _first_fraction(fields: Sequence[str]) -> str | None:
    """The first label that is no whole number, where all are numbers."""
    try:
        numbers = [as_number(field) for field in fields]
    except ValueError:
        return None
    return next((text for text, value in zip(fields, numbers) if value % 1), None)
