"""Recordings of people's movements, cut into windows; no recording is on both sides of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.options import Overlap, WindowSteps, checked
from fedblocks.data.partition import positive
from fedblocks.data.rows import Floats, Ints, Rows
from fedblocks.data.sets.cache import Arrays
from fedblocks.data.sets.divided import TRAIN, DividedPool
from fedblocks.data.splits import Fractions, split_rows_stratified

Signal = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Stretches of a long signal during which one person did one thing."""

    signal: Signal  # [samples, channels]
    begin: Ints  # [recordings]
    end: Ints  # [recordings]: the first sample after it
    label: Ints  # [recordings]
    user: Ints  # [recordings]
    activities: tuple[str, ...]  # the names of the labels
    hz: float  # samples in a second
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def arrays(self) -> Arrays:
        """What a cache keeps."""
        return {name: getattr(self, name) for name in ("signal", "begin", "end", "label", "user")}

    def only(self, activities: Mapping[str, Sequence[str]]) -> Recordings:
        """These activities, each made of one or several of ours: {"stairs":
        ["upstairs", "downstairs"]}.
        """
        number = {part: at for at, parts in enumerate(activities.values()) for part in parts}
        if unknown := number.keys() - set(self.activities):
            raise DataError(
                f"no recording of {sorted(unknown)[0]}", f"there are {', '.join(self.activities)}"
            )
        label = np.array([number.get(name, -1) for name in self.activities])[self.label]
        return replace(self.take(label >= 0), label=label[label >= 0], activities=tuple(activities))

    def take(self, chosen: npt.NDArray[np.bool_]) -> Recordings:
        """Some of the recordings."""
        fields = {name: getattr(self, name)[chosen] for name in ("begin", "end", "label", "user")}
        return replace(self, **fields)

    def stretches(self, seconds: float) -> Recordings:
        """Long recordings cut into equal stretches of at most so many seconds, which
        then count as recordings.
        """
        positive(seconds=seconds)
        length = self.end - self.begin
        pieces = np.maximum(np.ceil(length / (seconds * self.hz)).astype(np.int64), 1)
        which = np.repeat(np.arange(len(length)), pieces)
        place = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin = self.begin[which] + length[which] * place // pieces[which]
        end = self.begin[which] + length[which] * (place + 1) // pieces[which]
        return replace(self, begin=begin, end=end, label=self.label[which], user=self.user[which])


@dataclass(frozen=True, eq=False)
class Windows:
    """Pieces of one length, each inside one recording."""

    x: Signal  # [windows, channels, steps]
    label: Ints  # [windows]
    user: Ints  # [windows]
    recording: Ints  # [windows]


@checked
def windows(recordings: Recordings, steps: WindowSteps, overlap: Overlap = 0.5) -> Windows:
    """All windows of `steps` samples that fit into a recording, each beginning (1 -
    overlap) x steps after the last.
    """
    hop = max(1, int(steps * (1 - overlap) + 0.5))
    length = recordings.end - recordings.begin
    counts = np.where(length >= steps, (length - steps) // hop + 1, 0)
    which = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    # [windows, steps]
    samples = (recordings.begin[which] + hop * place)[:, None] + np.arange(steps)
    x = np.ascontiguousarray(recordings.signal[samples].transpose(0, 2, 1))
    return Windows(x, recordings.label[which], recordings.user[which], which)


def parts_by_recording(cut: Windows, split: Fractions, seed: int) -> Ints:
    """The part of each window: of each person, whole recordings go to train, validation
    and test, activities alike.
    """
    recording, first, inverse = np.unique(cut.recording, return_index=True, return_inverse=True)
    held = Rows.by_owner(cut.user[first], int(cut.user.max(initial=-1)) + 1)
    part = np.empty(len(recording), np.int64)
    for number, rows in enumerate(split_rows_stratified(held, cut.label[first], split, seed)):
        part[rows.index] = number  # TRAIN, VALIDATION, TEST
    return part[inverse]


def standardise(x: Signal, training: npt.NDArray[np.bool_]) -> Signal:
    """Every channel with mean 0 and deviation 1, as measured on the training windows only."""
    if not training.any():
        raise DataError(
            "there are no training windows", "give recordings that are longer than a window"
        )
    mean, deviation = channel_statistics(x[training])
    scaled: Signal = ((x - mean[:, None]) / deviation[:, None]).astype(np.float32)
    return scaled


def channel_statistics(x: Signal) -> tuple[Floats, Floats]:
    """Mean and deviation of each channel of windows [windows, channels, steps]; a
    constant channel keeps its scale.
    """
    mean = x.mean((0, 2), dtype=np.float64)  # [channels]
    deviation = x.std((0, 2), dtype=np.float64)
    return mean, np.where(deviation > 0, deviation, 1.0)


def window_pool(
    recordings: Recordings, steps: int, overlap: float, stretch: float, split: Fractions, seed: int
) -> DividedPool:
    """Standardised windows with their users and parts."""
    cut = windows(recordings.stretches(stretch), steps, overlap)
    if not len(cut.label):
        raise DataError(
            f"no recording has {steps} samples", "use shorter windows or longer stretches"
        )
    part = parts_by_recording(cut, split, seed)
    seconds = stretch if np.isfinite(stretch) else None  # plain JSON has no infinity
    choices = {
        "steps": steps,
        "overlap": overlap,
        "stretch": seconds,
        "split": list(split),
        "split_seed": seed,
    }
    return DividedPool(
        x=torch.from_numpy(standardise(cut.x, part == TRAIN)),
        y=torch.from_numpy(cut.label),
        classes=len(recordings.activities),
        users=np.array([f"user-{user:02d}" for user in cut.user.tolist()]),
        about={
            **recordings.about,
            "activities": list(recordings.activities),
            "hz": recordings.hz,
            **choices,
        },
        part=part,
    )
