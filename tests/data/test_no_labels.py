"""Labels that are missing or negative are told as such."""

from typing import Any

import numpy as np
import pytest

import fedblocks as fb

X = np.zeros((6, 2), "float32")
USERS = np.arange(6) % 2


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (None, "x, y or users are None"),
        ([0, 1, None, 0, 1, 0], "a label is None"),
        (np.arange(6) % 2 - 3, "labels go from -3 to -2"),
        (np.arange(6) % 2 - 1, "row 0 has label -1 .*; all go from -1 to 0"),
    ],
)
def test_labels_that_are_none_are_refused_in_words(y: Any, said: str) -> None:
    with pytest.raises(fb.DataError, match=said):
        fb.Federation.from_users(X, y, USERS)


def test_a_partition_of_no_labels_is_refused_in_words() -> None:
    with pytest.raises(fb.DataError, match="there are no labels: y is None"):
        fb.partitions.iid(None, clients=2)  # type: ignore[arg-type]
