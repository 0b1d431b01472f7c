"""Labels and user ids as tables write them: fields of text, in which one number may be spelled in
several ways.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError
from fedblocks.core.losses import IGNORE

EMPTY = ("", "nan")  # say nothing among words, too
UNKNOWN = (*EMPTY, "na", "n/a", "null", "none", "?")  # how tables say that a value is not known
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
    refuse_nul(fields, "the label")
    refuse_two_spellings(fields, "label")
    texts, places = np.unique(np.array(fields), return_inverse=True)
    numbers = _whole_numbers(texts.tolist())
    if numbers is None:
        return number_words(texts[places])
    return np.array(numbers, np.int64)[places], []


def number_words(labels: npt.NDArray[np.str_]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The place of each word in the order of the alphabet, and the words; IGNORE stays itself."""
    known = labels != str(IGNORE)
    words, places = np.unique(labels[known], return_inverse=True)
    refuse_two_spellings(words.tolist(), "label")
    _doubt(words.tolist())
    numbers = np.full(labels.shape, IGNORE, np.int64)
    numbers[known] = places
    return numbers, words.tolist()


def _doubt(words: Sequence[str]) -> None:
    """Refuse "NA" among numbers, which nobody means as a class; among words say that it is one."""
    unsure = [word for word in words if word.strip().lower() in UNKNOWN]
    others = [word for word in words if word not in unsure]
    if unsure and others and all(map(_WHOLE.fullmatch, others)):
        raise DataError(
            f'the label "{unsure[0]}" stands among numbers',
            f"write {IGNORE} for a class that is not known, or remove the row",
        )
    if unsure := [word for word in unsure if word.strip().lower() != "none"]:
        warnings.warn(
            f'the label "{unsure[0]}" is taken as a class like the others; '
            f"write {IGNORE} for a class that is not known",
            stacklevel=2,
        )


def refuse_nul(texts: Iterable[Any], what: str) -> None:
    """Refuse words with NUL characters: numpy drops those at the end, so that two become one."""
    odd = next((text for text in texts if isinstance(text, str) and "\0" in text), None)
    if odd is not None:
        raise DataError(f"{what} {odd[:40]!r} has a NUL character", "write it without NULs")


def words_in(array: npt.NDArray[Any]) -> Iterable[Any]:
    """What of an array may be words."""
    return array.flat if array.dtype.kind in "OU" else ()


def says_nothing(label: str) -> bool:
    """Whether a word stands for no label."""
    return label.strip().lower() in EMPTY


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


def _whole_numbers(texts: Sequence[str]) -> list[int] | None:
    """The numbers of classes, or None where some are words."""
    try:
        numbers = [as_number(text) for text in texts]
    except ValueError:
        return None
    size, largest = max((abs(value), text) for value, text in zip(numbers, texts))
    fraction = next((text for text, value in zip(texts, numbers) if value % 1), None)
    if fraction is not None:
        raise DataError(
            f'the label "{fraction}" is a number with a fraction, and no class',
            'for numbers say Task("regression"); write classes as words or as 0, 1, 2, ...',
        )
    if size >= 10**MOST_DIGITS:
        raise DataError(
            f'the label "{largest[:40]}" is too large for the number of a class',
            "number the classes 0, 1, 2, ..., or write them as words",
        )
    return [int(value) for value in numbers]
