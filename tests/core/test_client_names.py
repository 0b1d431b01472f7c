"""Clients are named by number or by name, everywhere alike."""

from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.client_names import client_number, client_numbers

NAMES = ["truck", "2", "north/7", "12", 'Zürich "süd"']


def test_a_whole_number_is_a_number_and_a_text_is_a_name_first() -> None:
    # "2" is the name of client 1, and 2 the number of another
    named = client_numbers([2, "2", "3", "12", np.int64(4), torch.tensor(0), NAMES[4]], NAMES)
    assert named == [2, 1, 3, 3, 4, 0, 4]


@pytest.mark.parametrize(
    ("client", "message", "fix"),
    [
        (5, "there is no client 5 among 5 clients", "a number from 0 to 4"),
        (-1, "there is no client -1", "a number from 0 to 4"),
        ("trukc", 'there is no client "trukc"', 'did you mean "truck"?'),
        ("Zürich", 'there is no client "Zürich"', 'a name such as "truck"'),
        (1.5, "1.5, a float, is neither", "a number from 0"),
        (True, "True, a bool, is neither", "a number from 0"),
        (None, "None, a NoneType, is neither", "a number from 0"),
    ],
)
def test_what_names_no_client_is_refused_with_what_does(
    client: Any, message: str, fix: str
) -> None:
    with pytest.raises(fb.DataError) as error:
        client_number(client, NAMES)
    assert error.value.message.startswith(message)
    assert fix in error.value.fix


def test_a_subset_takes_names() -> None:
    data = fb.small_federation()
    assert list(data.subset(["client-3", 1]).names) == ["client-3", "client-1"]
    with pytest.raises(fb.DataError, match='no client "client-9" among 6'):
        data.subset(["client-9"])


def test_clients_are_in_the_order_of_their_sorted_ids() -> None:
    x, y = np.zeros((6, 2), "float32"), np.arange(6) % 2
    words = fb.Federation.from_users(x, y, ["b", "a", "b", "a", "c", "c"], split=(1, 0, 0))
    assert list(words.names) == ["a", "b", "c"]
    numbers = fb.Federation.from_users(x, y, [10, 9, 10, 9, 2, 2], split=(1, 0, 0))
    assert list(numbers.names) == ["2", "9", "10"]
