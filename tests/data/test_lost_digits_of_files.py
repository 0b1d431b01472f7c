"""Columns whose differences float32 loses are told wherever data come from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.data import Parts
from fedblocks.data.partitions import iid

TIMES = 1.7e9 + np.arange(60.0)
Y, USERS = np.arange(60) % 2, np.arange(60) % 3
Table = np.ndarray[Any, Any]


def table(times: Table) -> Table:
    return np.stack([np.linspace(0, 1, 60), times], 1)


def from_csv(x: Table, folder: Path) -> Federation:
    lines = [f"{a!r},{b!r},{y},{u}" for (a, b), y, u in zip(x.tolist(), Y, USERS)]
    (folder / "t.csv").write_text("\n".join(["load,time,label,user", *lines]))
    return Federation.from_csv(folder / "t.csv")


def from_parquet(x: Table, folder: Path) -> Federation:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet

    columns = {"load": x[:, 0], "time": x[:, 1], "label": Y, "user": USERS}
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return Federation.from_parquet(folder / "t.parquet")


def from_npz(x: Table, folder: Path) -> Federation:
    np.savez(folder / "t.npz", x=x, y=Y, user=USERS)
    return Federation.from_npz(folder / "t.npz")


def from_file(x: Table, folder: Path) -> Federation:
    np.save(folder / "x.npy", x)
    return Federation.from_users(np.load(folder / "x.npy", mmap_mode="r"), Y, USERS)


def from_torch(x: Table, folder: Path) -> Federation:
    items = [(torch.from_numpy(row), int(y)) for row, y in zip(x, Y)]
    return Federation.from_torch(items, lambda y: iid(y, 3))  # type: ignore[arg-type]


WAYS: dict[str, Callable[[Table, Path], Federation]] = {
    "csv": from_csv,
    "parquet": from_parquet,
    "npz": from_npz,
    "a mapped file": from_file,
    "torch": from_torch,
    "arrays": lambda x, _: Federation.from_users(x, Y, USERS),
    "lists": lambda x, _: Federation.from_users(x.tolist(), Y, USERS),
    "clients": lambda x, _: Federation.from_parts([Parts(train=(x, Y))]),
    "pools": lambda x, _: Federation.from_pools((x, Y), (x, Y), iid(Y, 3)),
    "fields": lambda x, _: Federation.from_users({"both": x, "one": Y}, Y, USERS),
}


def told(make: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in said]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times", [TIMES, 1e17 + 16 * np.arange(60.0)], ids=["some", "all"])
def test_a_column_of_lost_differences_is_told(way: str, times: Table, tmp_path: Path) -> None:
    """Float64 has steps of 16 at 1e17, and float32 none that 60 of them reach."""
    said = told(lambda: WAYS[way](table(times), tmp_path))
    column = {"csv": 'column "time"', "parquet": 'column "time"', "fields": "column 1 of both"}
    assert said[0].startswith(f"{column.get(way, 'column 1 of x')} has values around 1")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "times",
    [TIMES - TIMES.mean(), np.full(60, 1e17 + 16), 0.1 + 1e-16 * (np.arange(60) % 9)],
    ids=["centred", "constant", "rounding of float64"],
)
def test_of_other_columns_nothing_is_said(way: str, times: Table, tmp_path: Path) -> None:
    assert told(lambda: WAYS[way](table(times), tmp_path)) == []
