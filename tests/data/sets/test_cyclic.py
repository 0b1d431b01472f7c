"""ModFL's clients: groups of neighbouring labels, counts as in the paper's tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.sets.cyclic import cyclic, label_groups, side_by_side
from fedblocks.data.sets.har_groups import har_groups
from fedblocks.data.sets.signals import Recordings, windows

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "jumping")


def pairs(labels: int, train: int, test: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """So many rows of each label; a row's only feature is its number."""
    actual = []
    for rows in (train, test):
        y = torch.arange(labels).repeat_interleave(rows)
        actual.append((torch.arange(len(y), dtype=torch.float32)[:, None], y))
    return actual


@pytest.mark.parametrize(
    ("labels", "rows", "clients", "per_group", "of_client", "tested"),
    [
        (9, (975, 325), 36, 3, (243, 81), 2916),  # images, N = 72: 36 clients of each data set
        (9, (975, 325), 36, 6, (240, 78), 2808),
        (9, (975, 325), 36, 9, (243, 81), 2916),
        (9, (975, 325), 18, 3, (486, 162), 2916),  # N = 36
        (5, (200, 50), 20, 2, (50, 12), 240),  # activities, N = 60: 20 clients of each data set
        (5, (200, 50), 20, 4, (48, 12), 240),
        (5, (200, 50), 20, 5, (50, 10), 200),
    ],
)
def test_counts_are_those_of_the_paper(
    labels: int,
    rows: tuple[int, int],
    clients: int,
    per_group: int,
    of_client: tuple[int, int],
    tested: int,
) -> None:
    federation = cyclic(*pairs(labels, *rows), clients, per_group)
    assert set(federation.train.sizes.tolist()) == {of_client[0]}
    assert set(federation.test.sizes.tolist()) == {of_client[1]}
    assert federation.test.sizes.sum() == tested


def test_every_label_is_held_by_as_many_groups() -> None:
    groups = label_groups(9, 6)
    assert len(groups) == 9 and groups[5] == [5, 6, 7, 8, 0, 1]
    assert np.bincount(np.concatenate(groups)).tolist() == [6] * 9
    assert label_groups(5, 5) == [[0, 1, 2, 3, 4]]


def test_a_client_holds_the_labels_of_its_group_and_no_row_twice() -> None:
    federation = cyclic(*pairs(5, 40, 20), clients=10, per_group=2, seed=3)
    for client, group in enumerate(federation.tags["operation"].tolist()):
        for rows in (federation.train, federation.test):
            assert set(federation.y[rows[client]].tolist()) == {group, (group + 1) % 5}
    held = np.concatenate([federation.train.index, federation.test.index])
    assert len(held) == len(set(held.tolist())) == 5 * 40 + 5 * 20
    assert federation.hash() != cyclic(*pairs(5, 40, 20), clients=10, per_group=2, seed=4).hash()


@pytest.mark.parametrize(
    ("clients", "per_group", "told"),
    [
        (12, 2, "12 clients for 5 groups"),
        (10, 6, "6 labels per group"),
        (200, 2, "40 train rows of label 0 for 80"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(clients: int, per_group: int, told: str) -> None:
    with pytest.raises(DataError, match=told):
        cyclic(*pairs(5, 40, 20), clients=clients, per_group=per_group)


def test_data_sets_stand_side_by_side_in_their_own_shapes() -> None:
    small = cyclic(*[(x[:, :, None].expand(-1, 2, 3) + 1, y) for x, y in pairs(5, 40, 20)], 10, 2)
    large = cyclic(*[(x[:, :, None].expand(-1, 4, 6) + 1, y) for x, y in pairs(5, 40, 20)], 5, 2)
    both = side_by_side({"small": small, "large": large})
    assert both.clients == 15 and tuple(both.names)[9:11] == ("small/client-9", "large/client-0")
    assert both.tags["configuration"].tolist() == [0] * 10 + [1] * 5
    assert both.tags["operation"].tolist() == [*small.tags["operation"], *large.tags["operation"]]
    assert both.about["shapes"] == {"small": [2, 3], "large": [4, 6]}
    own = both.x[both.test[3]]
    assert torch.equal(own[:, :2, :3], small.x[small.test[3]])
    assert own[:, 2:].abs().sum() == 0 and own[:, :, 3:].abs().sum() == 0
    assert torch.equal(both.x[both.train[12]], large.x[large.train[2]])
    assert torch.equal(both.y[both.train[12]], large.y[large.train[2]])


def test_other_tasks_cannot_stand_side_by_side() -> None:
    with pytest.raises(DataError, match="of one kind"):
        side_by_side(
            {"five": cyclic(*pairs(5, 40, 20), 5, 2), "four": cyclic(*pairs(4, 40, 20), 4, 2)}
        )
    with pytest.raises(DataError, match="no federations"):
        side_by_side({})


def recordings(samples: int) -> Recordings:
    """Ten recordings of each activity; the signal is the number of the recording and noise."""
    number = np.arange(60)
    begin = number * samples
    rng = np.random.Generator(np.random.PCG64(0))
    signal = np.repeat(number, samples)[:, None] + rng.uniform(0, 0.1, (60 * samples, 3))
    return Recordings(
        signal.astype(np.float32), begin, begin + samples, number % 6, number // 6, ACTIVITIES, 20
    )


def test_activity_groups_share_no_recording_between_train_and_test() -> None:
    federation = har_groups(recordings(20 * 26 + 26), 52, clients=20, per_group=2, per_label=125)
    assert federation.classes == 5 and federation.x.shape[1:] == (3, 52)
    assert federation.test.sizes.sum() == 20 * 2 * (25 // 8)  # a label has 8 holders
    training = federation.x[: 5 * 100]  # 100 + 25 windows of each label
    assert training.mean((0, 2)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert training.std((0, 2)).tolist() == pytest.approx([1, 1, 1], abs=1e-3)
    # the level of a window tells its recording; noise of 0.1 is far below the distance between
    # recordings
    level = torch.round(federation.x.mean((1, 2)) * 100).long()
    of_train, of_test = (
        set(level[rows.index.copy()].tolist()) for rows in (federation.train, federation.test)
    )
    assert all(abs(a - b) > 1 for a in of_train for b in of_test)


def test_too_few_windows_are_refused() -> None:
    assert len(windows(recordings(52), 52).label) == 60
    with pytest.raises(DataError, match="walking: 0 \\+ 10 windows, where 200 \\+ 50 are needed"):
        har_groups(recordings(52), 52)
