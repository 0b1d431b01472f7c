"""Values that JSON knows: NaN and infinities are not among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def with_finite_numbers(value: Any) -> Any:
    """Plain values, with None for every number that is none, or endless."""
    if isinstance(value, Mapping):
        return {str(k): with_finite_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_finite_numbers(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
