"""Each augmentation by itself, against a loop over examples that has the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedblocks as fb
from fedblocks.core.augmentations import STREAM, augment_batch, try_augmentations
from fedblocks.core.random import fold, generator, uniform

KEY = torch.tensor(12345)
ALL = (fb.Crop(2, fill=-1.0), fb.Flip(), fb.Jitter(0.3, 0.3), fb.Noise(0.2), fb.Scale(0.2))


def draws(rows: int = 8) -> fb.Draws:
    return fb.Draws(KEY, rows)


def images(rows: int = 8) -> Tensor:
    return torch.from_numpy(generator(0, "images").normal(size=(rows, 3, 6, 5)))


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    x, numbers = images(200), draws(200)
    down, right = numbers.integers(5), numbers.integers(5)
    moved = fb.Crop(2, fill=7.0)(x, draws(200))
    for image, top, left, result in zip(x, down, right, moved, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (2, 2), (2, 2)), constant_values=7.0)
        window = padded[:, int(top) : int(top) + 6, int(left) : int(left) + 5]
        assert np.array_equal(window, result.numpy())
    assert {*down.tolist()} == {*right.tolist()} == set(range(5))


def test_a_flip_mirrors_left_to_right_by_chance() -> None:
    x = images(400)
    flipped = fb.Flip(0.25)(x, draws(400))
    is_flipped = draws(400).uniform() < 0.25
    for image, turned, result in zip(x, is_flipped, flipped, strict=True):
        assert torch.equal(result, image[..., range(4, -1, -1)] if turned else image)
    assert abs(float(is_flipped.double().mean()) - 0.25) < 0.07  # three standard deviations


def test_jitter_has_another_brightness_and_contrast() -> None:
    x, numbers = images(50), draws(50)
    bright, contrast = (
        1 + 0.4 * (2 * numbers.uniform() - 1),
        1 + 0.1 * (2 * numbers.uniform() - 1),
    )
    result = fb.Jitter(0.4, 0.1)(x, draws(50))
    for image, b, c, other in zip(x, bright, contrast, result, strict=True):
        lit = image * b
        torch.testing.assert_close(other, lit.mean() + c * (lit - lit.mean()))
    assert 0.6 < float(bright.min()) < 0.7 and 1.3 < float(bright.max()) < 1.4


def test_noise_is_normal() -> None:
    noise = fb.Noise(0.5)(torch.zeros(100, 40), draws(100))
    assert abs(float(noise.mean())) < 0.03 and abs(float(noise.std()) - 0.5) < 0.03
    # of a normal distribution 68.3 percent lie within one spread, of an even one 57.7
    assert abs(float((noise.abs() < 0.5).double().mean()) - 0.683) < 0.03


def test_scale_has_a_factor_for_each_example_and_channel() -> None:
    x = images().flatten(2)  # three channels of 30 steps
    factors = fb.Scale(0.2)(x, draws()) / x
    torch.testing.assert_close(factors, factors[..., :1].expand_as(factors))
    assert len(factors[..., 0].unique()) == 24
    flat = images().flatten(1)
    assert len((fb.Scale(0.2)(flat, draws()) / flat)[:, 0].unique()) == 8


def test_a_row_has_the_same_noise_however_wide_the_batch() -> None:
    x = images()
    torch.testing.assert_close(augment_batch(ALL, x, KEY)[:3], augment_batch(ALL, x[:3], KEY))


def test_every_augmentation_and_step_has_noise_of_its_own() -> None:
    x = torch.zeros(8, 4)
    twice = augment_batch((fb.Noise(), fb.Noise()), x, KEY)
    once = augment_batch((fb.Noise(),), x, KEY)
    assert not torch.allclose(twice, 2 * once)
    assert not torch.equal(once, augment_batch((fb.Noise(),), x, fold(KEY, 1)))


def test_every_call_draws_from_the_next_stream_of_its_key() -> None:
    """Streams are counted from 1; a normal number takes two even ones (Box and Muller)."""
    numbers = draws(4)
    assert torch.equal(numbers.uniform(3), uniform(fold(KEY, 1), (4, 3)))
    radius, angle = uniform(fold(KEY, 2), (4, 2)), uniform(fold(KEY, 3), (4, 2))
    expected = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()
    assert torch.equal(numbers.normal(2), expected)
    whole = numbers.integers(7)
    assert torch.equal(whole, (7 * uniform(fold(KEY, 4), (4,))).long())
    assert whole.dtype == torch.int64


def test_noise_and_scale_are_their_spread_times_normal_numbers() -> None:
    x = images(3).flatten(2)  # three channels of 30 steps
    expected = x + 0.5 * draws(3).normal(3, 30).double()
    torch.testing.assert_close(fb.Noise(0.5)(x, draws(3)), expected, rtol=0, atol=0)
    factors = 1 + 0.5 * draws(3).normal(3).double()
    torch.testing.assert_close(fb.Scale(0.5)(x, draws(3)), x * factors[..., None])
    one = 1 + 0.5 * draws(3).normal(1).double()
    flat = x.flatten(1)
    torch.testing.assert_close(fb.Scale(0.5)(flat, draws(3)), flat * one)


def test_augmentations_have_streams_of_their_own_far_from_those_of_layers() -> None:
    x = torch.zeros(2, 3)
    stream = fold(KEY, STREAM)
    first = fb.Noise(0.1)(x, fb.Draws(fold(stream, 0), 2))
    both = fb.Noise(0.2)(first, fb.Draws(fold(stream, 1), 2))
    assert torch.equal(augment_batch((fb.Noise(0.1), fb.Noise(0.2)), x, KEY), both)
    assert STREAM == 8_388_608


def test_no_image_is_mirrored_at_a_chance_of_0_and_each_at_1() -> None:
    x = images(20)
    assert torch.equal(fb.Flip(0.0)(x, draws(20)), x)
    assert torch.equal(fb.Flip(1.0)(x, draws(20)), x.flip(-1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x, "is no function of two"),
        (lambda x, draws: x[:, :2], r"makes something else of inputs of shape \[6\] \(float64\)"),
        (lambda x, draws: x.float(), "makes something else"),
        (lambda x, draws: x.tolist(), "makes something else"),
        (lambda x, draws: x / 0, "no finite numbers"),
        (lambda x, draws: x + torch.rand_like(x), "noise that no engine could repeat"),
        (lambda x, draws: x.no_such_thing, "cannot take inputs"),
        (lambda x, draws: (_ for _ in ()).throw(ValueError), "cannot take inputs.*: ValueError"),
        (fb.Crop(1), "examples of shape .6. have no height and width"),
        (fb.Flip(), "have no height and width"),
    ],
    ids=range(10),
)
def test_an_augmentation_that_does_not_fit_is_refused(change: Any, message: str) -> None:
    x = torch.ones(3, 6, dtype=torch.float64)
    with pytest.raises(fb.UserError, match=message):
        try_augmentations([fb.Noise(), change], x)


def test_augmentations_are_tried_on_two_examples_and_those_that_fit_are_taken() -> None:
    seen: list[int] = []

    def look(x: Tensor, draws: fb.Draws) -> Tensor:
        seen.append(len(x))
        assert draws.uniform().shape == (2,)
        return x

    try_augmentations([*ALL, look], images(5))
    assert seen == [2, 2]
    broken = torch.full((2, 4), torch.inf)  # not the fault of who leaves it as it is
    try_augmentations([look], broken)
    try_augmentations([lambda x, draws: x + 1], torch.ones(2, 4, dtype=torch.int64))
    try_augmentations([fb.Flip()], torch.ones(2, 3, 4))  # a height and a width suffice
