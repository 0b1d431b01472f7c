"""Recordings are cut into windows; no recording is on both sides of a split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedblocks.core.errors import DataError
from fedblocks.data.sets.divided import TEST, TRAIN, VALIDATION, pack, unpack
from fedblocks.data.sets.signals import (
    Recordings,
    parts_by_recording,
    standardise,
    window_pool,
    windows,
)


def recordings(lengths: list[int], people: int = 2, labels: int = 2) -> Recordings:
    """One after the other; channel 0 counts the samples, channel 1 is twice as much;
    people and labels take turns.
    """
    end = np.cumsum(lengths)
    number = np.arange(len(lengths))
    signal = np.arange(int(end[-1]), dtype=np.float32)[:, None] * np.array([1, 2], dtype=np.float32)
    label = number // people % labels
    names = tuple(f"activity {k}" for k in range(labels))
    return Recordings(signal, end - np.array(lengths), end, label, number % people, names, hz=10)


def test_windows_of_half_overlap_begin_every_half_window() -> None:
    cut = windows(recordings([12, 7]), steps=4, overlap=0.5)
    assert cut.x.shape == (7, 2, 4)
    # the second recording has samples 12 to 18
    assert cut.x[:, 0, 0].tolist() == [0, 2, 4, 6, 8, 12, 14]
    assert cut.x[1].tolist() == [[2, 3, 4, 5], [4, 6, 8, 10]]  # [channels, steps]
    assert cut.recording.tolist() == [0] * 5 + [1] * 2


def test_a_recording_shorter_than_a_window_has_none() -> None:
    assert windows(recordings([3, 4]), steps=4).recording.tolist() == [1]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.25, 0.5]),
)
def test_no_window_leaves_its_recording(lengths: list[int], steps: int, overlap: float) -> None:
    own = recordings(lengths)
    cut = windows(own, steps, overlap)
    first, last = cut.x[:, 0, 0], cut.x[:, 0, -1]
    assert (first >= own.begin[cut.recording]).all() and (last < own.end[cut.recording]).all()
    assert (cut.label == own.label[cut.recording]).all() and (
        cut.user == own.user[cut.recording]
    ).all()


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.floats(0.5, 5))
def test_stretches_cover_a_recording_without_overlap(lengths: list[int], seconds: float) -> None:
    own = recordings(lengths)
    cut = own.stretches(seconds)
    assert cut.begin[0] == 0 and cut.end[-1] == sum(lengths)
    assert (cut.begin[1:] == cut.end[:-1]).all()
    # no stretch goes over the end of a recording
    assert set(own.end.tolist()) <= set(cut.end.tolist())
    assert (cut.end - cut.begin).max() <= np.ceil(seconds * own.hz)


def test_whole_recordings_go_to_one_part_and_everybody_trains_and_tests() -> None:
    own = recordings([20] * 40)  # ten of each person and activity
    cut = windows(own, 4)
    part = parts_by_recording(cut, (0.7, 0.1, 0.2), seed=1)
    for recording in range(40):
        assert len(set(part[cut.recording == recording].tolist())) == 1
    for person in range(2):
        for label in range(2):
            # windows each
            counts = np.bincount(part[(cut.user == person) & (cut.label == label)], minlength=3) / 9
            assert counts.tolist() == [7, 1, 2]


def test_the_parts_depend_on_the_seed_only() -> None:
    cut = windows(recordings([20] * 40), 4)
    first = parts_by_recording(cut, (0.7, 0.1, 0.2), seed=1)
    assert (first == parts_by_recording(cut, (0.7, 0.1, 0.2), seed=1)).all()
    assert (first != parts_by_recording(cut, (0.7, 0.1, 0.2), seed=2)).any()


def test_scales_are_measured_on_training_windows_only() -> None:
    x = np.stack([np.full((2, 4), 1.0), np.full((2, 4), 3.0), np.full((2, 4), 99.0)]).astype(
        np.float32
    )
    x[:, 1] = 5  # a channel that never changes is only shifted
    scaled = standardise(x, np.array([True, True, False]))
    assert scaled[:, 0, 0].tolist() == [-1, 1, 97]  # mean 2, deviation 1
    assert scaled[:, 1].tolist() == [[0] * 4] * 3
    with pytest.raises(DataError, match="no training windows"):
        standardise(x, np.zeros(3, dtype=bool))


def test_test_windows_do_not_change_what_training_sees() -> None:
    own = recordings([40] * 20)
    before = window_pool(own, 4, 0.5, float("inf"), (0.7, 0.1, 0.2), seed=0)
    tested = np.unique(windows(own, 4).recording[before.part == TEST])
    signal = own.signal.copy()
    for recording in tested:
        signal[own.begin[recording] : own.end[recording]] += 1e4
    other = Recordings(signal, own.begin, own.end, own.label, own.user, own.activities, own.hz)
    after = window_pool(other, 4, 0.5, float("inf"), (0.7, 0.1, 0.2), seed=0)
    assert (before.x[before.part == TRAIN] == after.x[after.part == TRAIN]).all()
    assert (before.x[before.part == TEST] != after.x[after.part == TEST]).all()


def test_a_pool_becomes_a_client_per_person_and_survives_the_cache() -> None:
    pool = window_pool(recordings([40] * 40), 4, 0.5, 2.0, (0.7, 0.1, 0.2), seed=0)
    federation = pool.federation()
    assert tuple(federation.names) == ("user-00", "user-01")
    assert federation.validation.sizes.min() > 0 and VALIDATION in pool.part
    assert unpack(pack(pool)).federation().hash() == federation.hash()
    assert unpack(pack(pool)).about == pool.about


def test_activities_are_chosen_and_merged() -> None:
    own = recordings([5] * 6, people=1, labels=3).only({"moving": ["activity 2", "activity 0"]})
    assert own.activities == ("moving",) and own.label.tolist() == [0, 0, 0, 0]
    assert own.begin.tolist() == [0, 10, 15, 25]  # labels take turns 0, 1, 2, 0, 1, 2
    with pytest.raises(DataError, match="no recording of flying"):
        own.only({"flying": ["flying"]})


def test_impossible_windows_are_refused() -> None:
    with pytest.raises(DataError, match="overlap = 1: must be at least 0 and below 1"):
        windows(recordings([10]), 4, overlap=1)
    with pytest.raises(DataError, match="no recording has 50 samples"):
        window_pool(recordings([10]), 50, 0.5, float("inf"), (0.7, 0.1, 0.2), 0)
