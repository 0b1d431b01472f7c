"""Inputs of another kind than those that a model was trained on are refused, not guessed at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedblocks as fb

Pair = tuple[fb.FedAvg, fb.Federation]


def pair_of(x: Any) -> Pair:
    data = fb.Federation.from_users(x, np.arange(60) // 3 % 2, np.arange(60) % 3)
    return fb.FedAvg(fb.Net.of(lambda: nn.Linear(4, 2)), lr=0.1), data


@pytest.fixture(scope="module")
def numbers() -> Any:
    return np.random.default_rng(0).normal(size=(60, 4)).astype("float32")


@pytest.fixture(scope="module")
def of_numbers(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> fb.Personal:
    pair = pair_of(numbers)
    return fb.personal(fb.run(*pair, 1, tmp_path_factory.mktemp("a") / "run"), 0, *pair)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.astype("int64"), r"x holds whole numbers \(int64\), .* trained on fractions"),
        (lambda x: x.astype("uint8"), r"x holds bytes .* training inputs go from -\d.* to \d"),
        (lambda x: x[:0], "x has no rows"),
        (lambda x: [], "x has no rows"),
        (lambda x: x * np.where(np.arange(60) == 7, np.nan, 1)[:, None], "not finite .* in row 7"),
    ],
)
def test_what_no_training_input_was_is_refused(
    change: Any, said: str, numbers: Any, of_numbers: fb.Personal
) -> None:
    with pytest.raises(fb.DataError, match=said):
        of_numbers.predict(change(numbers))


def test_whole_numbers_in_a_file_are_refused_too(numbers: Any, tmp_path: Path) -> None:
    pair = pair_of(numbers)
    run = fb.run(*pair, 1, tmp_path / "run")
    model = fb.export_model(run, 0, "safetensors", tmp_path / "m.safetensors", *pair)
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), "int32"))
    with pytest.raises(fb.DataError, match=r"x\.npz holds whole numbers \(int32\)"):
        fb.predict(model, tmp_path / "x.npz", pair[0])


def test_bytes_are_taken_as_in_training(tmp_path: Path) -> None:
    """uint8 pixels are trained on as p / 255, so both forms of the same pixels agree."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 4)).astype("uint8")
    pair = pair_of(pixels)
    model = fb.personal(fb.run(*pair, 1, tmp_path / "run"), 0, *pair)
    scaled = (pixels / 255).astype("float32")
    assert np.allclose(model.predict(pixels), model.predict(scaled), atol=1e-6)
    with pytest.raises(fb.DataError, match="whole numbers"):
        model.predict(pixels.astype("int64"))


def test_a_run_of_objects_asks_for_both_of_them(numbers: Any, tmp_path: Path) -> None:
    pair = pair_of(numbers)
    run = fb.run(*pair, 1, tmp_path / "run")
    with pytest.raises(fb.UserError, match="the arguments `method` and `data`"):
        fb.personal(run, 0)
    with pytest.raises(fb.UserError, match="a method without data"):
        fb.personal(run, 0, pair[0])
    with pytest.raises(fb.UserError, match="data without a method"):
        fb.personal(run, 0, data=pair[1])
    other = pair_of(numbers + 1)[1]
    with pytest.raises(fb.DataError) as error:
        fb.personal(run, 0, pair[0], other)
    hashes = f"was SHA-256 {pair[1].hash()[:12]}... and is SHA-256 {other.hash()[:12]}..."
    assert hashes in error.value.message
