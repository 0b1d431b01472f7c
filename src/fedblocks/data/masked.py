"""Arrays of which a part is masked: what lies under a mask is no number to train on."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedblocks.core.errors import DataError


def refuse_masked(values: Any, name: str) -> None:
    """Refuse masked arrays, also in a list of arrays: torch has no masks, and would take the
    numbers under them.
    """
    several = enumerate(values) if isinstance(values, list | tuple) else [(None, values)]
    for place, one in several:
        if isinstance(one, np.ma.MaskedArray) and np.ma.is_masked(one):
            mask = np.atleast_1d(np.ma.getmaskarray(one))
            row = np.argwhere(mask)[0][0] if place is None else place
            fix = f"fill the values ({name}.filled(...)) or remove such rows"
            if name == "y":
                fix += "; a label that is not known is -100, and a number NaN"
            raise DataError(f"{name} is a masked array, and row {row} of it is masked", fix)
