"""Operations whose kernels raise an error by the numbers that they are given: a matrix that has no
inverse, an index out of range. A module may catch it and go on in another way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

_LINEAR_ALGEBRA = (
    *("linalg", "cholesky", "inverse", "solve", "lu_", "qr", "svd", "eig", "det", "lstsq"),
    *("multinomial", "_assert", "histc", "bincount"),
)
_INDICES = ("embedding", "index", "gather", "scatter", "take", "nll_loss", "put")


@cache
def checks_matrices(operation: Any) -> bool:
    """Whether an operation may be called for its error alone, as a Cholesky factor is to ask
    whether there is one. Nobody looks a row up for that.
    """
    return any(word in operation.overloadpacket.__name__ for word in _LINEAR_ALGEBRA)


@cache
def errors_of(operation: Any) -> tuple[type[Exception], ...]:
    """The errors that an operation of torch may raise by its numbers; none: it takes all."""
    name = operation.overloadpacket.__name__
    if checks_matrices(operation):
        return (torch.linalg.LinAlgError,)  # type: ignore[attr-defined] # a RuntimeError, too
    return (IndexError, RuntimeError) if any(word in name for word in _INDICES) else ()
