"""Several runs: comparisons, lanes, searches for values."""
