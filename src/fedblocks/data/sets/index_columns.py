"""Columns that number the rows of a table, as pandas writes its index: what order rows came in is
nothing to learn from, so they are no inputs unless they are named as such.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence

from fedblocks.core.errors import DataError

# what pandas calls an index without a name in parquet, and a column without one in CSV
_NAMELESS = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)*")
_PANDAS = b"pandas"  # in the metadata of a parquet file


def index_in(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """The columns that pandas says were the index of a table; a plain count of rows is none."""
    try:
        columns = json.loads((metadata or {})[_PANDAS])["index_columns"]
    except (KeyError, ValueError, TypeError):
        return []
    return [str(name) for name in columns if isinstance(name, str)]


def without_index(where: str, names: Sequence[str], known: Collection[str] = ()) -> tuple[str, ...]:
    """The columns of inputs without those that are the index of a table: `known` to be such, or
    without a name of their own. A warning says which are left out.
    """
    index = [name for name in names if name in known or _NAMELESS.fullmatch(name)]
    if not index:
        return tuple(names)
    shown = ", ".join(f'"{name}"' for name in index)
    several = len(index) > 1
    what = f"the column{'s' * several} {shown} of {where}"
    kind = "index columns of pandas" if several else "the index column of pandas"
    meant = f'columns=["{index[0]}", ...]'
    if len(index) == len(names):
        message = f"{where} has no column of inputs but {shown}, the index of pandas"
        raise DataError(message, f"add columns, or say {meant} if a net is to read it")
    warnings.warn(
        f"{what} {'are' if several else 'is'} read as {kind}, and left out of the inputs: "
        f"write tables with index=False, or say {meant} if a net is to read "
        f"{'them' if several else 'it'}",
        stacklevel=2,
    )
    return tuple(name for name in names if name not in index)
