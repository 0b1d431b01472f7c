"""What is said of data that cannot be used, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.core.errors import DataError
from fedblocks.engines.memory import _mib

X, USERS = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3


def test_a_class_that_is_not_known_is_minus_100() -> None:
    y = (np.arange(60) % 2).astype(float)
    y[3] = np.nan
    with pytest.raises(DataError, match="one is nan") as error:
        fb.Federation.from_users(X, y, USERS)
    assert "give -100 for a class that is not known" in error.value.fix
    y[3] = 0.5
    with pytest.raises(DataError, match=r"one is 0\.5") as error:
        fb.Federation.from_users(X, y, USERS)
    assert "-100" not in error.value.fix


@pytest.mark.parametrize(
    ("change", "advice"),
    [(lambda x: x + 1.7e9, "subtract the mean"), (lambda x: x * 1e-45, "scale the column")],
)
def test_a_column_that_loses_its_digits_is_told_with_what_helps(change, advice: str) -> None:  # type: ignore[no-untyped-def]
    x = X.copy()
    x[:, 1] = change(x[:, 1])
    with pytest.warns(UserWarning, match=f"column 1 of x .*: {advice} before"):
        fb.Federation.from_users(x, np.arange(60) % 2, USERS)


@pytest.mark.parametrize("read", [fb.Federation.from_csv, fb.Federation.from_npz])
def test_a_relative_path_is_told_with_the_folder_that_it_is_looked_for_from(  # type: ignore[no-untyped-def]
    read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="data/t does not exist") as error:
        read("data/t")
    assert f"from the current folder, {tmp_path}" in error.value.fix
    with pytest.raises(DataError, match="does not exist") as error:
        read("/nowhere/t")
    assert error.value.fix == "check the path"


def test_little_memory_is_told_in_kibibytes() -> None:
    assert (_mib(1024), _mib(2**20 - 1024), _mib(2**20)) == ("1.0 KiB", "1023.0 KiB", "1.0 MiB")
