"""Limits of what data may be, on both sides of each; and small functions against numbers worked out
by hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data import partitions, shifts, storage
from fedblocks.data.arrays import as_rows, has_fields, name_targets
from fedblocks.data.dirichlets import draw_counts, even_size, label_groups, normalise
from fedblocks.data.dividing import count_classes, rows_of
from fedblocks.data.federation import Federation, Parts, Rows
from fedblocks.data.overview import tag_counts
from fedblocks.data.pachinko import parents
from fedblocks.data.partition import Partition, cut, deal, positive, share_out
from fedblocks.data.rows import some_names
from fedblocks.data.streaming import is_in_file, pieces
from fedblocks.data.synthetic import next_token_windows
from fedblocks.data.user_ids import user_ids

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


def test_cuts_are_where_shares_add_up_to_whole_rows() -> None:
    assert cut(np.array([0.25, 0.25, 0.5]), 10).tolist() == [2, 3, 5]  # ends 2.5, 5, 10
    assert cut(np.array([0.3, 0.3]), 10).tolist() == [3, 3]  # 4 rows are left out
    assert cut(np.array([1 / 3] * 3), 3).tolist() == [1, 1, 1]


def test_what_rounding_owes_goes_to_those_it_took_most_from() -> None:
    counts, owed = share_out(np.array([0.5, 0.5, 0.0]), 3, np.zeros(3))
    assert counts.tolist() == [2, 1, 0] and owed.tolist() == [-0.5, 0.5, 0.0]
    counts, owed = share_out(np.array([0.5, 0.5, 0.0]), 3, owed)
    assert counts.tolist() == [1, 2, 0] and owed.tolist() == [0.0, 0.0, 0.0]


def test_rows_of_each_class_are_dealt_in_their_order() -> None:
    dealt = deal([np.array([7, 8, 9]), np.array([1, 2])], np.array([[1, 2], [0, 1]]))
    assert [own.tolist() for own in dealt] == [[7], [8, 9, 1]]


def test_weights_that_have_all_become_nothing_are_even() -> None:
    allowed = np.array([True, False, True])
    assert normalise(np.array([1.0, 5.0, 3.0]), allowed).tolist() == [0.25, 0.0, 0.75]
    assert normalise(np.zeros(3), allowed).tolist() == [0.5, 0.0, 0.5]


def test_no_more_is_drawn_than_there_is() -> None:
    rng = np.random.default_rng(0)
    assert (
        draw_counts(rng, np.array([0.98, 0.01, 0.01]), np.array([2, 2, 2]), 6).tolist() == [2] * 3
    )
    assert draw_counts(rng, np.array([1.0, 0.0]), np.array([5, 5]), 4).tolist() == [4, 0]


def test_groups_of_classes_are_as_even_as_can_be_and_the_larger_ones_last() -> None:
    groups = label_groups(8, 3, random.Random(0))
    assert [len(group) for group in groups] == [2, 3, 3]
    together = [one for group in groups for one in group]
    assert sorted(together) == list(range(8)) != together


def test_a_group_keeps_a_window_of_the_classes_and_the_windows_lie_around_a_circle() -> None:
    weights = shifts.class_weights(4, 8, keep=0.5)
    assert weights.sum(1).tolist() == [4.0] * 4 and weights.sum(0).tolist() == [2.0] * 8
    assert (weights[0] + weights[2]).tolist() == [1.0] * 8  # half a circle apart
    assert shifts.class_weights(2, 3, keep=0.01).sum(1).tolist() == [1.0, 1.0]


def test_streams_are_cut_and_padded_at_their_end() -> None:
    x, y = next_token_windows([1, 2, 3, 4], 2, padding=9)
    assert x.tolist() == [[1, 2], [3, 9]] and y.tolist() == [[2, 3], [4, -100]]
    assert next_token_windows([1, 2, 3], 2)[0].tolist() == [[1, 2]]


def test_names_are_listed_up_to_a_number_of_them() -> None:
    names = ["a", "b", "c"]
    assert some_names(names, [0, 1, 2], most=3) == "a, b, c"
    assert some_names(names, [0, 1, 2], most=2) == "a, b and 1 more"


def test_several_fields_are_a_dictionary_or_a_tuple_of_arrays_with_all_rows() -> None:
    a, b = np.zeros((3, 2)), np.zeros((3, 4))
    assert has_fields({"a": a}, 3) and has_fields((a, b), 3)
    assert not has_fields((a, b[:2]), 3) and not has_fields([a, b], 3)
    assert not has_fields((a[0], a[1], a[2]), 3)  # three rows
    packed, fields = as_rows((a, b), 3)
    assert packed.shape == (3, 6) and fields is not None and as_rows(a, 3)[1] is None


def test_bytes_are_a_picture_in_0_to_1_and_a_mask_stays_whole() -> None:
    picture = np.full((2, 1, 2, 2), 255, np.uint8)
    mask = np.array([[0, 1], [1, 200]], np.uint8)
    packed, fields = as_rows({"picture": picture, "mask": mask}, 2)
    assert fields is not None
    back = dict(zip(fields.labels, fields.unpack(packed), strict=True))
    assert back["picture"].max() == 1.0 and back["mask"].tolist() == mask.tolist()


def test_words_become_numbers_of_classes_and_nothing_else_does() -> None:
    assert name_targets(["b", "a", "b"], Task())[1] == ["a", "b"]
    assert np.asarray(name_targets(["b", "a", "b"], Task())[0]).tolist() == [1, 0, 1]
    words = np.array(["b", "a"], dtype=object)
    assert name_targets(words, Task())[1] == ["a", "b"]
    assert name_targets(words, Task("regression")) == (words, [])
    mixed = np.array(["b", 1], dtype=object)
    assert name_targets(mixed, Task())[1] == [] and name_targets([], Task())[1] == []


def test_classes_are_counted_from_the_largest_label_unless_somebody_says() -> None:
    y = torch.tensor([0, 4, 1])
    assert count_classes(y, None) == 5 and count_classes(y, 7) == 7
    assert count_classes(y[:0], None) == 1
    assert count_classes(torch.zeros(3, 2), None, Task("regression")) == 2


def test_rows_are_those_of_the_first_field_and_a_number_has_none() -> None:
    assert (
        rows_of({"a": [1, 2], "b": [1]}) == 2
        and rows_of([1]) == 1
        and rows_of(7) == 0 == rows_of({})
    )


def test_only_an_array_whose_rows_lie_in_a_file_stays_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert is_in_file(mapped) and is_in_file(mapped[1:])
    assert not is_in_file(mapped.T) and not is_in_file(np.asarray(mapped))
    assert not is_in_file(mapped[:, 0]) and not is_in_file(mapped.astype(">f8"))


def test_a_file_is_looked_at_in_pieces_that_cover_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedblocks.data.streaming.PIECE", 20)
    x = torch.arange(10.0).view(5, 2)  # 8 bytes a row
    assert [(first, piece.tolist()) for first, piece in pieces(x)] == [
        (0, [[0, 1], [2, 3]]), (2, [[4, 5], [6, 7]]), (4, [[8, 9]]),
    ]  # fmt: skip
    monkeypatch.setattr("fedblocks.data.streaming.PIECE", 1)
    assert [len(piece) for _, piece in pieces(x)] == [1] * 5


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], "there are no rows"), ([[1, 2]], "not one id for each row"),
        ([1.0, np.nan, np.nan], "the user id of row 1 is nan, and so are 1 more"),
        (np.array(["a", None], dtype=object), "the user id of row 1 is None\n"),
        (np.array(["a", 3], dtype=object), "mixed types: 3 is an? "),
    ],
)  # fmt: skip
def test_a_user_id_that_is_missing_or_odd_is_told(users: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        user_ids(users)


def test_user_ids_are_numbers_or_words() -> None:
    assert user_ids([2, 1]).tolist() == [2, 1] and user_ids([0.5]).tolist() == [0.5]
    words = user_ids(np.array(["b", "a"], dtype=object))
    assert words.tolist() == ["b", "a"] and words.dtype.kind == "U"


def test_tags_are_counted() -> None:
    assert tag_counts(np.array([1, 0, 1])) == {"0": 1, "1": 2}


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
