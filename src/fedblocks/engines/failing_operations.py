"""Operations whose kernels raise an error by the numbers that they are given: a matrix that has no
inverse, an index out of range. A module may catch it and go on in another way.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

# names of operations of aten, from the beginning
_MATRICES = re.compile(
    r"_?linalg_|_?cholesky|inverse$|_?(triangular_|lu_)?solve|_?lu_|qr$|geqrf|_?svd$|_?eig|"
    r"_?symeig|_?(slog|log)?det$|lstsq|multinomial|_assert|histc|bincount"
)
_TABLES = re.compile(r"_?embedding|_?index(_|$)|take(_|$)|nll_loss")  # an IndexError
_PLACES = re.compile(r"gather|scatter|put_")  # a RuntimeError


@cache
def checks_matrices(operation: Any) -> bool:
    """Whether an operation may be called for its error alone, as a Cholesky factor is to ask
    whether there is one. Nobody looks a row up for that.
    """
    return _MATRICES.match(operation.overloadpacket.__name__) is not None


@cache
def error_of(operation: Any) -> type[Exception] | None:
    """The error that an operation of torch may raise by its numbers; none: it takes all."""
    name = operation.overloadpacket.__name__
    if checks_matrices(operation):
        error: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
        return error  # a RuntimeError, too
    if _TABLES.match(name):
        return IndexError
    return RuntimeError if _PLACES.match(name) else None
