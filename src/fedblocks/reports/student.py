"""Student's interval of the mean of a few values: right for normal values, however few."""

from __future__ import annotations

import math
from collections.abc import Sequence

# the quantile of a 95 % interval, for 1 to 10 degrees of freedom
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; 0 for one value."""
    free = len(values) - 1
    if free < 1:
        return 0.0
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / free)
    # within 1 % from there on
    quantile = QUANTILES[free - 1] if free <= len(QUANTILES) else 1.96 + 2.5 / free
    return quantile * deviation / math.sqrt(len(values))
