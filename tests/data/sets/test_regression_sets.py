"""Real sets with numbers to predict: read from tiny files of the official formats, and the real
signals where they are.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.data.sets.angles import hapt_angle, lean
from fedblocks.data.sets.divided import TEST, TRAIN, VALIDATION
from fedblocks.data.sets.parkinsons import (
    ARCHIVE,
    FEATURES,
    NAME,
    PERSON,
    TARGETS,
    TIME,
    parkinsons,
)

PEOPLE, VISITS, STILL = 3, 10, 400


def table() -> str:
    """Ten recordings of each of three people, not in the order of time; the motor score is ten
    times the person, the total score the time.
    """
    names = [PERSON, *FEATURES[:3], *TARGETS, *FEATURES[3:]]
    rng = np.random.default_rng(0)
    lines = [",".join(names)]
    for person in range(1, PEOPLE + 1):
        for time in rng.permutation(VISITS):
            voice = [f"{value:.5f}" for value in rng.normal(size=len(FEATURES) - 3)]
            lines.append(",".join(map(str, [person, 60, 0, time, 10 * person, time, *voice])))
    return "\n".join(lines) + "\n"


def write(folder: Path, text: str) -> None:
    (folder / "parkinsons").mkdir(exist_ok=True)
    (folder / "parkinsons" / NAME).write_text(text)


def test_recordings_of_the_voice_are_divided_by_person_in_the_order_of_time(
    data_folder: Path,
) -> None:
    write(data_folder, table())
    pool = parkinsons(split=(0.6, 0.2, 0.2))
    assert pool.users is not None and sorted({*pool.users}) == [
        "person-01",
        "person-02",
        "person-03",
    ]
    assert pool.x.shape == (30, 19) and pool.y.shape == (30, 2) and pool.task.kind == "regression"
    assert {*pool.y[:, 0].tolist()} == {1.0, 2.0, 3.0}  # tens of points
    time = (10 * pool.y[:, 1]).round().long()  # the total score says it
    parts = {
        part: sorted({*time[pool.part == part].tolist()}) for part in (TRAIN, VALIDATION, TEST)
    }
    assert parts == {TRAIN: [0, 1, 2, 3, 4, 5], VALIDATION: [6, 7], TEST: [8, 9]}
    scaled = pool.x[torch.from_numpy(pool.part == TRAIN), FEATURES.index(TIME)]
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_the_official_zip_holds_the_same_table(data_folder: Path) -> None:
    write(data_folder, table())
    expected = parkinsons()
    (data_folder / "parkinsons" / NAME).unlink()
    with zipfile.ZipFile(data_folder / "parkinsons" / ARCHIVE, "w") as archive:
        archive.writestr(NAME, table())
    assert torch.equal(parkinsons().x, expected.x) and torch.equal(parkinsons().y, expected.y)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (TARGETS[0], "UPDRS", 'no column "motor_UPDRS"'),
        ("\n1,60,0,", "\n1,60,", "line 2 of"),
        ("\n1,60,0,", "\n1,sixty,0,", "cannot be read"),
        ("\n1,60,0,", "\n1,nan,0,", "no numbers"),
    ],
)
def test_another_table_is_refused(data_folder: Path, old: str, new: str, words: str) -> None:
    write(data_folder, table().replace(old, new, 1))
    with pytest.raises(fb.DataError, match=words):
        parkinsons()


def test_the_command_trains_on_the_table(data_folder: Path, tmp_path: Path) -> None:
    write(data_folder, table())
    run = fb.run(fb.read_config("parkinsons-fedper", ["rounds=2"]), tmp_path / "run")
    assert run.metric.name == "mae" and len(run.scores()) == PEOPLE


def test_an_angle_is_that_of_gravity_with_the_first_axis() -> None:
    gravity = np.array([[1.0, 0, 0], [0, 1.0, 0], [-2.0, 0, 0], [1.0, 0, 1.0]], dtype=np.float32)
    angles = lean(np.repeat(gravity[:, :, None], 5, 2))
    assert angles == pytest.approx([0, math.pi / 2, math.pi, math.pi / 4])


def write_leaning_people(folder: Path) -> None:
    """Two people with a recording each, at rest: the first stands, the second lies; in both, the
    last 8 samples of every 24 are upright.
    """
    raw = folder / "hapt" / "RawData"
    raw.mkdir(parents=True)
    (raw / "labels.txt").write_text(f"1 1 5 1 {STILL}\n2 2 6 1 {STILL}\n")
    for person, gravity in ((1, (0.0, 0.0, 1.0)), (2, (0.0, 1.0, 0.0))):
        acceleration = np.tile(gravity, (STILL, 1))
        acceleration[np.arange(STILL) % 24 >= 16] = (1.0, 0.0, 0.0)
        np.savetxt(raw / f"acc_exp{person:02d}_user{person:02d}.txt", acceleration)
        np.savetxt(raw / f"gyro_exp{person:02d}_user{person:02d}.txt", np.zeros((STILL, 3)))


def test_the_angle_is_that_after_the_window_and_not_in_it(data_folder: Path) -> None:
    write_leaning_people(data_folder)
    pool = hapt_angle(steps=16, ahead=8, overlap=0.0, stretch=math.inf, split=(1.0, 0.0, 0.0))
    assert pool.x.shape == (2 * (STILL // 24), 6, 16)
    assert pool.y.numpy() == pytest.approx(0, abs=1e-6)
    late = hapt_angle(steps=8, ahead=16, overlap=0.0, stretch=math.inf, split=(1.0, 0.0, 0.0))
    mean = math.atan2(8, 8)  # eight samples lean, eight are upright
    assert late.y.numpy() == pytest.approx(mean, abs=1e-6)


def test_real_angles_are_learned_by_person(real_data: Path, tmp_path: Path) -> None:
    changes = ["rounds=2", "data.options.stretch=5.12", "data.options.overlap=0.0"]
    run = fb.run(fb.read_config("hapt_angle-fedper", changes), tmp_path / "run")
    data = hapt_angle(stretch=5.12, overlap=0.0).federation()
    assert data.clients == 30 and 0 <= float(data.y.min()) < float(data.y.max()) <= math.pi
    middle = float(data.y[data.train.index.copy()].median())
    constant = np.mean([float((data.y[rows] - middle).abs().mean()) for rows in data.test])
    assert run.summary()["mean"] < 0.7 * constant
