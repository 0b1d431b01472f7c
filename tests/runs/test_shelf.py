"""Data that runs of one process share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.data import Federation, saved
from fedblocks.runs import federations, shelf
from fedblocks.runs.build import prepare
from fedblocks.runs.run import run
from fedblocks.testing import small_federation


def config(seed: int = 0, **data: object) -> Config:
    table = {
        "rounds": 1,
        "device": "cpu",
        "data": {"name": "digits", "clients": 5, "seed": seed, **data},
        "net": {"name": "mlp", "hidden": [4]},
        "method": {"name": "fedavg", "batch_size": 64},
    }
    return Config.of(table)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data sets that were read."""
    calls: list[str] = []
    original = federations.pool_of
    monkeypatch.setattr(shelf, "pool_of", lambda one: calls.append(one.data.name) or original(one))
    return calls


def test_runs_of_the_same_data_read_and_hash_them_once(
    tmp_path: Path, read: list[str], monkeypatch
) -> None:
    hashed = []
    original = Federation.hash
    monkeypatch.setattr(Federation, "hash", lambda self: hashed.append(1) or original(self))
    with shelf.shared_data():
        for number in range(3):
            run(config(), tmp_path / f"{number}")
        assert (len(read), len(hashed)) == (1, 1)
        assert prepare(config()).experiment.data is prepare(config()).experiment.data


def test_other_partitions_of_a_data_set_share_its_rows(read: list[str]) -> None:
    with shelf.shared_data():
        one, other = (prepare(config(seed)).experiment.data for seed in (0, 1))
    assert len(read) == 1 and one.x.data_ptr() == other.x.data_ptr()
    assert one.train[0].tolist() != other.train[0].tolist()


def test_what_was_read_long_ago_is_let_go(read: list[str]) -> None:
    with shelf.shared_data():
        first = prepare(config()).experiment.data
        for seed in range(1, shelf.FEDERATIONS + 1):
            prepare(config(seed))
        again = prepare(config()).experiment.data
    assert (
        again is not first
        and torch.equal(again.x, first.x)
        and shelf.hash_of(again) == shelf.hash_of(first)
    )


def test_without_a_shelf_every_run_reads_its_data_anew() -> None:
    assert prepare(config()).experiment.data is not prepare(config()).experiment.data


def test_rows_that_partitions_share_are_hashed_once_and_other_labels_anew(monkeypatch):
    one = small_federation()
    hashed = []
    monkeypatch.setattr(
        saved, "_pool", lambda own: hashed.append(1) or {"x": own.x.numpy(), "y": own.y.numpy()}
    )
    parts = [one, one.subset([1, 0]), replace(one, y=3 - one.y), replace(one, y=one.y.clone())]
    hashes = [own.hash() for own in parts]
    assert len(hashed) == 3
    assert len(set(hashes)) == 3 and hashes[0] == hashes[3]
    one.x[0] += 1
    assert one.hash() != hashes[0]


def test_runs_of_the_same_data_with_other_tasks_share_no_task() -> None:
    smoothings = (0.0, 0.2)
    tasks = [{"kind": "classification", "label_smoothing": share} for share in smoothings]
    configs = [Config.of({**config().resolved(), "task": task}) for task in tasks]
    with shelf.shared_data():
        shared = [prepare(one).experiment.data.task.label_smoothing for one in configs]
    assert tuple(shared) == smoothings
