"""Whose each row is, as people bring it: numbers or strings, none of them missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedblocks.core.errors import DataError, a_kind
from fedblocks.data.array_kinds import as_numpy
from fedblocks.data.masked import refuse_masked
from fedblocks.data.spellings import refuse_nul, words_in


def user_ids(users: npt.ArrayLike) -> npt.NDArray[Any]:
    """Numbers or strings, one for each row; strings may come as objects, as in pandas."""
    fix = "give one number or string per row"
    refuse_masked(users, "users")
    _refuse_mixture(users, fix)
    ids = as_numpy(users) if isinstance(users, Tensor) else np.asarray(users)
    refuse_nul(users if isinstance(users, list | tuple) else words_in(ids), "the user id")
    if not ids.size:
        raise DataError("there are no rows", "give at least one row, and a user id for each")
    if ids.ndim != 1:
        raise DataError(f"users have shape {list(ids.shape)}, not one id for each row", fix)
    if ids.dtype.kind == "S" or (ids.dtype == object and all(isinstance(u, bytes) for u in ids)):
        fix = 'give words: np.char.decode(users, "utf-8"), or [user.decode() for user in users]'
        raise DataError(f"user ids are bytes, such as {bytes(ids[0])!r}", fix)
    missing = np.flatnonzero(_is_missing(ids))
    if len(missing):
        message = f"the user id of row {missing[0]} is {ids[missing[0]]}"
        more = f", and so are {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(message + more, "fill in the user ids, or remove these rows")
    if ids.dtype == object and all(isinstance(one, str) for one in ids):
        return ids.astype(str)
    if ids.dtype == object:
        odd = next(one for one in ids if not isinstance(one, str))
        raise DataError(f"users are of mixed types: {odd!r} is {a_kind(odd)}", fix)
    return ids


def _refuse_mixture(users: npt.ArrayLike, fix: str) -> None:
    """Refuse a list of numbers and words, of which numpy would make words: 1 and "1" become one."""
    if not isinstance(users, list | tuple) or not any(isinstance(one, str) for one in users):
        return
    kinds = (bool, int, float, np.number, bytes)
    odd = next((one for one in users if isinstance(one, kinds)), None)
    if odd is not None:
        raise DataError(f"users are of mixed types: {odd!r} is {a_kind(odd)}", fix)


def _is_missing(ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if ids.dtype == object:
        return np.array([one is None or one != one for one in ids])
    return np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(len(ids), dtype=bool)
