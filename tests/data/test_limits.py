"""Limits of what data may be, on both sides of each; and files that are whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data import partitions, shifts, storage
from fedblocks.data.dirichlets import even_size
from fedblocks.data.federation import Federation, Parts, Rows
from fedblocks.data.pachinko import parents
from fedblocks.data.partition import Partition, positive
from fedblocks.data.synthetic import next_token_windows

Y = np.array([0, 1, 2, 0, 1, 2])


def federation(**changes: Any) -> Federation:
    rows = Rows.of([[0, 1], [2]])
    whole = {
        "x": torch.arange(6.0).view(6, 1), "y": torch.from_numpy(Y), "train": rows,
        "validation": Rows.of([[3], []]), "test": Rows.of([[4], [5]]), "classes": 3,
    }  # fmt: skip
    return Federation(**{**whole, **changes})


LIMITS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {  # just allowed, just refused
    "as many clients as rows": (
        lambda: partitions.iid(Y, 6), lambda: partitions.iid(Y, 7)),
    "as many shards as rows": (
        lambda: partitions.shards(Y, 3, 2), lambda: partitions.shards(Y, 2, 4)),
    "as many rows as the smallest clients need": (
        lambda: partitions.quantity_power(Y, 3, min_size=2),
        lambda: partitions.quantity_power(Y, 3, min_size=3)),
    "rows for every client of a Dirichlet draw of sizes": (
        lambda: partitions.quantity(Y, 6, alpha=1e6, min_size=1),
        lambda: partitions.quantity(Y, 7, alpha=1e6, min_size=0)),
    "all classes for each client": (
        lambda: partitions.classes(Y, 2, 3), lambda: partitions.classes(Y, 2, 4)),
    "all classes for each client, unequally": (
        lambda: partitions.classes_unequal(Y, 2, 3), lambda: partitions.classes_unequal(Y, 2, 4)),
    "the smallest weight is the largest": (
        lambda: partitions.classes_unequal(Y, 2, 1, 0.5, 0.5),
        lambda: partitions.classes_unequal(Y, 2, 1, 0.6, 0.5)),
    "clients that take all rows": (lambda: even_size(6, 2, 3), lambda: even_size(6, 2, 4)),
    "a row for each client": (lambda: even_size(2, 2, None), lambda: even_size(2, 3, None)),
    "a cluster for each class": (
        lambda: partitions.label_clusters(Y, 2, 3), lambda: partitions.label_clusters(Y, 2, 4)),
    "a group for each client": (
        lambda: shifts.hidden_groups(3, 3), lambda: shifts.hidden_groups(3, 4)),
    "one group": (lambda: shifts.hidden_groups(3, 1), lambda: shifts.hidden_groups(3, 0)),
    "group 0": (
        lambda: shifts.hidden_groups(2, [0, 1]), lambda: shifts.hidden_groups(2, [0, -1])),
    "an order for each group": (
        lambda: shifts.permutations(6, 3), lambda: shifts.permutations(7, 3)),
    "an angle for each group": (
        lambda: shifts.rotate(images(), [0, 1], (0, 90)),
        lambda: shifts.rotate(images(), [0, 1], (0,))),
    "shares of rows from 0 to 1": (
        lambda: shifts.skew_labels(federation(), [0, 0], weights=[[1, 1, 1]]),
        lambda: shifts.skew_labels(federation(), [0, 0], weights=[[1, 1, 1.01]])),
    "shares of rows from 0": (
        lambda: shifts.skew_labels(federation(), [0, 0], weights=[[1, 0, 1]]),
        lambda: shifts.skew_labels(federation(), [0, 0], weights=[[1, -0.01, 1]])),
    "the last client": (lambda: federation().subset([1]), lambda: federation().subset([2])),
    "the first client": (lambda: federation().subset([0]), lambda: federation().subset([-1])),
    "somebody held out": (
        lambda: federation().hold_out(0.5), lambda: federation().hold_out(0.2)),
    "somebody taking part": (
        lambda: federation().hold_out(0.5), lambda: federation().hold_out(0.8)),
    "the last row of a pool": (
        lambda: Federation.from_arrays(Y, Y, [[0, 1], [5, 2]]),
        lambda: Federation.from_arrays(Y, Y, [[0, 1], [6, 2]])),
    "the first row of a pool": (
        lambda: Federation.from_arrays(Y, Y, [[0, 1], [5, 2]]),
        lambda: Federation.from_arrays(Y, Y, [[0, 1], [-1, 2]])),
    "one class": (
        lambda: federation(y=torch.zeros(6, dtype=torch.int64), classes=1).check(),
        lambda: federation(classes=0)),
    "the last class": (
        lambda: federation(classes=3).check(), lambda: federation(classes=2).check()),
    "a label that is not scored": (
        lambda: federation(y=torch.tensor([0, -100, 2, 0, 1, 2])).check(),
        lambda: federation(y=torch.tensor([0, -99, 2, 0, 1, 2])).check()),
    "rows that are there": (
        lambda: federation(test=Rows.of([[4], [5]])).check(),
        lambda: federation(test=Rows.of([[4], [6]])).check()),
    "two tokens of a stream": (
        lambda: next_token_windows([1, 2], 4), lambda: next_token_windows([1], 4)),
    "a step": (lambda: next_token_windows([1, 2], 1), lambda: next_token_windows([1, 2], 0)),
    "anything above 0": (lambda: positive(a=1e-9), lambda: positive(a=0)),
    "one parent of a label": (
        lambda: parents(np.array([0, 1, 0]), np.array([1, 0, 1])),
        lambda: parents(np.array([0, 1, 0]), np.array([1, 0, 0]))),
}  # fmt: skip


def images() -> Federation:
    return federation(x=torch.rand(6, 1, 2, 2))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_itself_is_allowed_and_what_is_beyond_it_is_refused(limit: str) -> None:
    allowed, refused = LIMITS[limit]
    allowed()
    with pytest.raises(DataError) as caught:
        refused()
    assert caught.value.fix


def test_an_archive_may_be_as_large_as_the_limit_and_no_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(10_000))
    total = 10_000 * 8 + 128  # with the header of an npy file
    monkeypatch.setattr(storage, "MOST_RATIO", 1)
    monkeypatch.setattr(storage, "LARGE", total)
    assert storage.read_arrays(path)["a"].sum() == 0
    monkeypatch.setattr(storage, "LARGE", total - 1)
    with pytest.raises(DataError, match="of memory"):
        storage.read_arrays(path)
    monkeypatch.setattr(storage, "MOST_RATIO", 1 + total // path.stat().st_size)
    assert storage.read_arrays(path)["a"].sum() == 0


def test_a_file_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="cannot write"):
        partitions.iid(Y, 2).save(tmp_path / "nowhere" / "p.npz")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "replace", full)
    with pytest.raises(DataError, match="No space left"):
        partitions.iid(Y, 2).save(tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = storage.os.fsync, storage.os.replace
    monkeypatch.setattr(storage.os, "fsync", lambda file: (events.append("sync"), sync(file)))
    monkeypatch.setattr(
        storage.os, "replace", lambda a, b: (events.append(f"name {Path(a).stat().st_size > 0}"),
                                             rename(a, b)),
    )  # fmt: skip
    partitions.iid(Y, 2).save(tmp_path / "p.npz")
    assert events == ["sync", "name True"] and [p.name for p in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((np.zeros((2, 3)), [0, 1]), r"client-1 \(train\): rows are \[3\]"),
        ((np.zeros((2, 2), np.int64), [0, 1]), r"client-1 \(train\): rows are \[2\] torch.int64"),
        ((np.zeros((2, 2)), [0]), r"client-1 \(train\): 2 inputs, 1 labels"),
        ((np.zeros((2, 2)), [[0], [1]]), r"client-1 \(train\): rows are"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused_by_name(second: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Federation.from_parts([Parts((np.zeros((2, 2)), [0, 1])), Parts(second)])


def test_a_partition_needs_a_name_for_each_client() -> None:
    with pytest.raises(DataError, match="1 names for 2 clients"):
        Partition(Rows.of([[0], [1]]), {}, ("a",))


def test_what_a_federation_is_made_of_does_not_change_with_what_was_given() -> None:
    names, tags = ["a", "b"], {"t": np.array([0, 1])}
    one = federation(names=names, tags=tags)
    names[0] = "z"
    assert list(one.names) == ["a", "b"]
    with pytest.raises(ValueError, match="read-only"):
        one.tags["t"][0] = 5
    own = one.train[0]
    own[:] = 9
    assert one.train[0].tolist() == [0, 1]


def test_a_hash_is_of_the_content_now(tmp_path: Path) -> None:
    one = federation()
    before = one.hash()
    assert one.hash() == before == federation().hash()
    one.x[0] = 7
    assert one.hash() != before
    assert replace(one, y=one.y.clone()).hash() == one.hash()
    other = replace(one, y=one.y.flip(0))
    assert other.hash() != one.hash()


@pytest.mark.parametrize("name", sorted(shifts.SHIFTS))
def test_a_shift_leaves_inputs_labels_and_rows_as_they_were(name: str) -> None:
    labels = torch.from_numpy(np.tile(Y, 4))
    whole = Rows.of([range(12), range(12, 24)])
    before = Federation(torch.rand(24, 1, 4, 4), labels, whole, whole, whole, 3)
    x, y, index = before.x.clone(), before.y.clone(), before.train.index.copy()
    shifts.SHIFTS[name](before, [0, 1])
    assert torch.equal(before.x, x) and torch.equal(before.y, y)
    assert (before.train.index == index).all() and not before.tags and "shifts" not in before.about
