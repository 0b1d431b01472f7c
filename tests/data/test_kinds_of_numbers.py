"""Numbers of any kind that torch and numpy have become those of a federation, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import DataError

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y, USERS = torch.arange(30) % 3, torch.arange(30) % 3
NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_kinds_of_few_bits_are_taken_as_they_are(kind: torch.dtype) -> None:
    data = fb.Federation.from_users(X.to(kind), Y.to(kind), USERS.to(kind))
    assert torch.equal(data.x, X.to(kind).float()) and torch.equal(data.y, Y)
    fields = fb.Federation.from_users({"a": X.to(kind), "b": Y}, Y, USERS)
    assert fields.fields is not None
    numbers = fb.Federation.from_users(X, X[:, 0].to(kind), USERS, task="regression")
    assert torch.equal(numbers.y[:, 0], X[:, 0].to(kind).float())


def test_long_doubles_are_numbers_too() -> None:
    wide = lambda tensor: tensor.numpy().astype(np.longdouble)
    data = fb.Federation.from_users(wide(X), wide(Y), wide(USERS))
    assert torch.equal(data.x, X) and torch.equal(data.y, Y)
    numbers = fb.Federation.from_users(X, wide(X[:, 0]), USERS, task="regression")
    assert torch.equal(numbers.y[:, 0], X[:, 0])


@pytest.mark.parametrize("x", [X + 1j, (X + 1j).numpy()], ids=["tensor", "array"])
def test_complex_numbers_are_refused(x: Any) -> None:
    """Their imaginary parts would be lost."""
    with pytest.raises(DataError, match="complex"):
        fb.Federation.from_users(x, Y, USERS)


def test_an_option_that_a_federation_has_not_is_told_with_the_one_that_was_meant() -> None:
    for make in (
        lambda: fb.Federation.from_users(X, Y, USERS, splits=(0.5, 0.2, 0.3)),
        lambda: fb.Federation.from_arrays(X, Y, [range(30)], splits=(0.5, 0.2, 0.3)),  # type: ignore[call-arg]
    ):
        with pytest.raises(DataError) as error:
            make()
        assert error.value.message == 'there is no option "splits"'
        assert 'did you mean "split"?' in error.value.fix
    with pytest.raises(DataError, match='there is no option "nams"'):
        fb.Federation.from_parts([], nams=["a"])  # type: ignore[call-arg]
