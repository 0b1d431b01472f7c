"""A regression on real signals: how far a person will lean, from how they moved just before."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.task import Task
from fedblocks.data.options import Overlap, Seed, Shares, Stretch, WindowSteps
from fedblocks.data.partition import positive
from fedblocks.data.rows import Floats
from fedblocks.data.sets.divided import TRAIN, DividedPool
from fedblocks.data.sets.files import StoredSet
from fedblocks.data.sets.har import HAPT, STRETCH, hapt_recordings
from fedblocks.data.sets.signals import Signal, parts_by_recording, standardise, windows

ACCELERATION = slice(0, 3)  # channels of HAPT; the others are rotation


def hapt_angle(
    steps: WindowSteps = 128,
    ahead: Annotated[int, AtLeast(1), Help("time steps after the window, whose mean counts")] = 32,
    overlap: Overlap = 0.5,
    stretch: Stretch = STRETCH,
    split: Shares = (0.7, 0.1, 0.2),
    seed: Seed = 0,
) -> DividedPool:
    """Windows of HAPT by person, and the angle in radians between the phone's long side and
    gravity right after each; no recording is on both sides of a split.
    """
    positive(steps=steps, ahead=ahead)
    cut = windows(hapt_recordings().stretches(stretch), steps + ahead, overlap)
    if not len(cut.user):
        raise DataError(
            f"no recording has {steps + ahead} samples", "use shorter windows or longer stretches"
        )
    part = parts_by_recording(cut, split, seed)
    angle = lean(cut.x[:, ACCELERATION, steps:])
    about = {"name": "hapt_angle", "steps": steps, "ahead": ahead, "unit": "radians"}
    choices = {"overlap": overlap, "split": list(split), "split_seed": seed}
    return DividedPool(
        x=torch.from_numpy(standardise(cut.x[:, :, :steps], part == TRAIN)),
        y=torch.from_numpy(angle.astype(np.float32))[:, None],
        classes=1,
        users=np.array([f"user-{user:02d}" for user in cut.user.tolist()]),
        about={**about, **choices, "stretch": stretch if np.isfinite(stretch) else None},
        task=Task("regression"),
        part=part,
    )


def lean(acceleration: Signal) -> Floats:
    """The angle of the mean acceleration with the first axis, 0 to pi, of [windows, 3, steps]."""
    mean = acceleration.mean(-1, dtype=np.float64)  # [windows, 3]
    length = np.linalg.norm(mean, axis=1)
    angle: Floats = np.arccos(np.clip(mean[:, 0] / np.where(length > 0, length, 1), -1, 1))
    return angle


SETS = {
    "hapt_angle": StoredSet(
        "hapt_angle",
        hapt_angle,
        1,
        "signals",
        "30 people with a phone at the waist: how far they lean next, a number",
        HAPT,
    )
}
