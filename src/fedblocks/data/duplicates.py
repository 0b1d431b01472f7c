"""Test rows that equal a training row: the same input and target under another row number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedblocks.core.random import generator
from fedblocks.data.rows import Ints

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation

MOST = 50_000_000  # numbers of the inputs up to which rows are compared, in about half a second
SHARE = 0.1  # of the test rows from which on it is told: a few rows are alike in most data
FEWEST = 4  # numbers of a row: of fewer, rows are alike by chance
_PIECE = 4_000_000  # numbers at a time


def repeated_tests(federation: Federation) -> str:
    """Such as `24 of 24 test rows equal a training row`; nothing where few do. Not looked at are
    tokens, of which short sequences are often alike, rows of few numbers, files and large data.
    """
    x, train, test = federation.x, federation.train.index, federation.test.index
    is_read = x.is_floating_point() and not federation.streamed and x.numel() <= MOST
    if not is_read or not len(train) or not len(test) or x[0].numel() < FEWEST:
        return ""
    inputs = _marks(x.cpu().numpy())
    if (inputs[train] == inputs[train[0]]).all():
        return ""  # inputs that say nothing
    marks = inputs ^ _marks(federation.y.cpu().numpy())
    only_test = test[~np.isin(test, train)]  # rows in both parts are told of by their numbers
    equal = int(np.isin(marks[only_test], marks[train]).sum())
    if equal < SHARE * len(test):
        return ""
    return (
        f"{equal} of {len(test)} test rows equal a training row, of the same client or of another, "
        "in input and target: what is tested may have been learned by heart"
    )


def _marks(values: npt.NDArray[np.generic]) -> Ints:
    """A number for each row, the same for equal rows and hardly ever for others: a sum of its
    bits, each with a random factor, modulo 2**64.
    """
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    words = rows.view(np.int32) if rows.itemsize >= 4 else rows.astype(np.int32)  # [rows, words]
    width = words.shape[1]
    factors = generator(0, "duplicates", width).integers(-(2**63), 2**63 - 1, width)
    step = max(1, _PIECE // max(1, width))
    marks = np.empty(len(words), np.int64)
    for first in range(0, len(words), step):
        piece = words[first : first + step].astype(np.int64)
        marks[first : first + step] = (piece * factors).sum(1)
    return marks
