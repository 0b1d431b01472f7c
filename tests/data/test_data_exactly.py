"""Small parts of the data, each against what is written down of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.losses import IGNORE
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.dirichlets import until_large_enough
from fedblocks.data.federation import Federation
from fedblocks.data.partition import cut
from fedblocks.data.rows import Rows
from fedblocks.data.sets import realworld, stl10, tff
from fedblocks.data.sets.columns import Roles
from fedblocks.data.sets.cyclic import label_groups
from fedblocks.data.sets.idx import read_idx
from fedblocks.data.sets.signals import Recordings
from fedblocks.data.sets.wisdm import good_records
from fedblocks.data.spellings import number_labels
from fedblocks.data.targets import (
    is_one_hot,
    odd_targets,
    remarks_on_targets,
    spread_of_targets,
)
from fedblocks.data.testbeds.fedem import shuffled_split
from fedblocks.testing.federations import small_federation, without_training_rows


def test_activities_of_realworld_are_numbered_in_the_words_of_the_other_sets() -> None:
    assert realworld.ACTIVITIES == (
        "walking", "upstairs", "downstairs", "sitting", "standing", "laying", "jumping", "running",
    )  # fmt: skip
    assert list(realworld.NAMES).index("climbingup") == realworld.ACTIVITIES.index("upstairs")


def labels(y: list[list[float]] | list[int], **more: Any) -> Any:
    """A federation's labels alone."""
    values = torch.tensor(y)
    task = more.pop("task", CLASSIFICATION)
    return SimpleNamespace(y=values, task=task, classes=2, **more)


def test_one_hot_labels_are_zeros_and_a_single_one() -> None:
    assert is_one_hot(labels([[0, 1], [1, 0]]))
    assert not is_one_hot(labels([[2, -1], [1, 0]]))  # rows add up to 1, too
    assert not is_one_hot(labels([[1, 1], [1, 0]]))
    assert not is_one_hot(labels([[1], [1]]))
    assert not is_one_hot(labels([0, 1]))
    assert not is_one_hot(labels([[0.0, 1.0]], task=Task("regression")))


def test_targets_that_no_model_can_learn_are_told_apart() -> None:
    inf, nan = float("inf"), float("nan")
    odd, what, _ = odd_targets(labels([[1.0, inf], [nan, -inf]], task=Task("regression")))
    assert odd.tolist() == [[False, True], [False, True]] and what == "targets are infinite"
    odd, what, _ = odd_targets(labels([[1.0, 0.5], [nan, 0.0]], task=Task("multi-label")))
    assert odd.tolist() == [[False, True], [False, False]] and "neither 0 nor 1" in what


def test_targets_that_are_missing_are_counted_once_and_not_in_sequences() -> None:
    assert remarks_on_targets(labels([0, IGNORE, 1])) == [
        f"1 target is missing ({IGNORE}) and is not scored"
    ]
    nan = float("nan")
    assert remarks_on_targets(labels([[nan, nan]], task=Task("regression"))) == [
        "2 targets are missing (NaN) and are not scored"
    ]
    assert remarks_on_targets(labels([[0, IGNORE]])) == []
    assert remarks_on_targets(labels([0, 1])) == []


def test_means_and_deviations_of_targets_are_those_that_are_known() -> None:
    nan = float("nan")
    federation = labels([[1.0], [4.0], [nan], [nan]], task=Task("regression"))
    spread = spread_of_targets(federation, Rows.of([np.array([0, 1, 2]), np.array([3])]))
    assert spread == {"target_mean": [2.5, None], "target_std": [1.5, None]}


def test_cuts_end_where_shares_end() -> None:
    assert cut(np.array([0.25, 0.5, 0.25]), 8).tolist() == [2, 4, 2]
    assert cut(np.array([1 / 3] * 3), 10).tolist() == [3, 3, 4]
    assert cut(np.array([0.5, 0.25]), 8).tolist() == [4, 2]  # shares may leave something over


def test_counts_are_drawn_until_everybody_has_enough() -> None:
    """Two classes, two clients: the second client has 1, then 2, then 3 rows."""
    draws = [np.array([[9, 1], [9, 0]]), np.array([[9, 1], [9, 1]]), np.array([[1, 1], [5, 2]])]
    waiting = iter(draws)
    assert until_large_enough(lambda: next(waiting), 2, 3) is draws[1]
    assert until_large_enough(lambda: draws[0], 1, 1) is draws[0]
    waiting = iter(draws)
    with pytest.raises(DataError, match=r"no draw of 2 gave every client 3 rows \(best: 2\)"):
        until_large_enough(lambda: next(waiting), 3, 2)


def test_rows_of_a_client_can_be_written_to_and_leave_the_others_alone() -> None:
    rows = Rows.of([np.array([4, 5]), np.array([6])])
    rows[0][0] = 99
    assert [own.tolist() for own in rows] == [[4, 5], [6]]
    for client in (-1, 2):
        with pytest.raises(IndexError, match=f"client {client} of 2"):
            rows[client]


@pytest.mark.parametrize(
    ("rows", "share", "kept"), [(10, 0.79, 7), (3, 0.3, 1), (1, 0.5, 1), (0, 0.5, 0), (4, 1.0, 4)]
)
def test_a_share_of_the_rows_is_kept_and_of_few_a_lone_one(
    rows: int, share: float, kept: int
) -> None:
    own, left = shuffled_split(np.arange(rows), share, 0)
    assert len(own) == kept and sorted([*own, *left]) == list(range(rows))


def test_labels_of_a_group_go_round_and_one_is_enough() -> None:
    assert label_groups(3, 1) == [[0], [1], [2]]
    assert label_groups(3, 2) == [[0, 1], [1, 2], [2, 0]]
    assert label_groups(3, 3) == [[0, 1, 2]]
    for wrong in (0, 4):
        with pytest.raises(DataError, match=f"{wrong} labels per group"):
            label_groups(3, wrong)


@pytest.mark.parametrize(("labels", "fit"), [((1, 10), True), ((1, 0), False), ((0, 1), False)])
def test_labels_of_stl10_count_from_one_in_both_parts(
    labels: tuple[int, int], fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.zeros(3 * 96 * 96, np.uint8)
    raw = {f"{part}_X.bin": image.tobytes() for part in ("train", "test")}
    raw |= {f"{part}_y.bin": bytes([own]) for part, own in zip(("train", "test"), labels)}
    monkeypatch.setattr(stl10, "contents", lambda local, *names: raw)
    if fit:
        assert stl10.decode(None)["y"].tolist() == [0, 9]  # type: ignore[arg-type]
    else:
        with pytest.raises(DataError, match="do not belong together"):
            stl10.decode(None)  # type: ignore[arg-type]


def test_a_federation_with_an_empty_client_may_have_another_task() -> None:
    federation = without_training_rows(small_federation(), 1)
    other = federation.with_task(Task("classification", metrics=("f1_macro",)))
    assert other.task.metrics == ("f1_macro",) and other.x is federation.x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.zeros(3, dtype=torch.long)}, "y"),
        ({"names": ("a", "b")}, "names has 2 entries"),
        ({"validation": Rows.none(2)}, "validation has 2 entries"),
        ({"test": Rows.none(2)}, "test has 2 entries"),
        ({"tags": {"kind": np.zeros(2, np.int64)}}, "tag kind has 2 entries"),
        ({"classes": 0}, "classes is 0"),
    ],
)
def test_parts_of_a_federation_are_of_one_size(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(small_federation(), **changes)


def test_a_federation_of_one_class_can_be_made() -> None:
    federation = small_federation()
    assert replace(federation, y=torch.zeros_like(federation.y), classes=1).classes == 1


def recordings(ends: list[int]) -> Recordings:
    """Recordings from 0 on, ten samples a second."""
    begin, end = np.zeros(len(ends), np.int64), np.array(ends)
    signal = np.zeros((max(ends), 1), np.float32)
    return Recordings(
        signal, begin, end, np.arange(len(ends)), np.arange(len(ends)), ("a", "b"), 10
    )


def test_long_recordings_are_cut_into_equal_stretches() -> None:
    """3.5 seconds in pieces of at most 2 are two of 17 and 18 samples; 2 seconds are one."""
    cut_up = recordings([35, 20]).stretches(2.0)
    assert list(zip(cut_up.begin.tolist(), cut_up.end.tolist())) == [(0, 17), (17, 35), (0, 20)]
    assert cut_up.user.tolist() == [0, 0, 1] and cut_up.label.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match="seconds"):
        recordings([35]).stretches(0.0)


def test_blanks_around_the_number_of_a_class_are_no_digits() -> None:
    numbers, words = number_labels(["  123456  ", "0000000012", " 1"])
    assert numbers.tolist() == [123456, 12, 1] and words == []
    with pytest.raises(DataError, match='the label "1234567" is too large'):
        number_labels([" 1234567 ", "1"])


def test_a_list_of_several_inputs_is_refused_for_users_too() -> None:
    x, users = np.zeros((4, 2), np.float32), [0, 0, 1, 1]
    with pytest.raises(DataError, match="x is a list of 2 arrays of 4 rows"):
        Federation.from_users([x, x], np.zeros(4, np.int64), users)


def test_an_idx_file_may_hold_nothing_but_not_less() -> None:
    head = b"\0\0\x08\x01"
    assert read_idx(head + bytes(4), "a").shape == (0,)
    assert read_idx(head + b"\0\0\0\2ab", "a").tolist() == [97, 98]
    for wrong in (b"\0\0\0\2a", b"\0\0\0\2abc"):
        with pytest.raises(DataError, match=r"a should hold \[2\] bytes"):
            read_idx(head + wrong, "a")
    for missing in range(4):
        with pytest.raises(DataError, match="a ends before it says how much it holds"):
            read_idx(head + bytes(missing), "a")


def test_the_official_words_are_the_first_of_each_line_whatever_bytes_they_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / tff.COUNTS.name
    path.write_bytes(b"the 9\n \nna\xefve 5\nof 4\nlate 1\n")
    local: Any = SimpleNamespace(paths=[path])
    vocabulary = tff.vocabulary_for(local, None, 4, 2)  # type: ignore[arg-type]
    assert vocabulary.words == ("the", "na\N{REPLACEMENT CHARACTER}ve", "of")


def test_columns_that_a_table_does_not_have_are_refused() -> None:
    names = ["a", "b", "label", "user"]
    Roles("label", "user").check("the table", names)
    assert Roles("label", "user").others(names) == ("a", "b")
    with pytest.raises(DataError, match='the table has no column "c"'):
        Roles("label", "user", inputs=("a", "c")).check("the table", names)
    with pytest.raises(DataError, match="the table has no column of inputs"):
        Roles("label", "user").check("the table", ["label", "user"])


def test_records_of_wisdm_are_read_between_blanks_and_what_is_spoilt_is_counted() -> None:
    spoilt = count()
    text = "\n 33,Walking,5,1,2,3 ;33,Walking,6,1,2,3, ; \n;33,Walking,7,1,2\n"
    records = list(good_records(text, spoilt))
    assert [record[2] for record in records] == [5, 6] and next(spoilt) == 1
