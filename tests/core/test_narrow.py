"""Which convolutions the kernels of `narrow.cu` take: what they ask of a device is
always there. Runs without a GPU.
"""

from __future__ import annotations

import random

import pytest

from fedblocks.kernels.cuda import narrow
from fedblocks.kernels.cuda.narrow import Shape

SHARED = 48 << 10  # bytes that every device gives a block without being asked for more


@pytest.fixture(autouse=True)
def with_a_compiler(monkeypatch):
    monkeypatch.setattr(narrow.nvrtc, "available", lambda: True)


def _shapes(count: int) -> list[Shape]:
    draw = random.Random(0)
    actual = []
    for _ in range(count):
        kernel = draw.randint(1, 8)
        sides = [draw.randint(max(1, kernel - 2), 70) for _ in range(2)]
        actual.append(
            Shape(
                draw.randint(1, 70),
                draw.randint(1, 20),
                kernel,
                *sides,
                draw.randint(0, kernel - 1),
            )
        )
    return actual


def _fours(number: int) -> int:
    return (number + 3) // 4 * 4


def _shared_bytes(s: Shape) -> list[int]:
    """Of the three kernels, as `narrow.cu` declares them."""
    rows, (_, wide) = s.strip + s.kernel - 1, s.outputs
    row = (s.width + 2 * s.pad) | 1
    plane = rows * row + (s.kernel + 32 - rows * row % 32) % 32
    slopes = s.strip * wide * s.filters // s.together * _fours(s.together)
    gradient = slopes + s.channels * plane + wide + s.kernel - 1 + s.kernel * s.filters * s.tasks
    taps = s.kernel**2
    back = s.filters * taps * _fours(s.channels) if s.fits_backwards() else 0
    return [4 * number for number in (s.channels * taps * _fours(s.filters), gradient, back)]


def test_whatever_fits_needs_no_more_memory_and_threads_than_there_are():
    fitting = [shape for shape in _shapes(3000) if min(shape.outputs) > 0 and shape.fits()]
    assert len(fitting) > 100
    for shape in fitting:
        assert max(_shared_bytes(shape)) <= SHARED, shape
        assert shape.strip % 2 == 0 and shape.strip % shape.groups == 0, shape
        assert shape.tasks * shape.groups * shape.filters // shape.together <= 320, shape


def test_the_convolutions_of_a_lenet_fit_and_large_ones_do_not():
    assert Shape(3, 6, 5, 32, 32, 0, pooled=True).fits_backwards()
    assert Shape(6, 16, 5, 14, 14, 0, pooled=True).fits_backwards()
    assert not Shape(32, 64, 5, 14, 14, 0).fits()  # many filters
    assert not Shape(64, 16, 7, 14, 14, 0).fits()  # many weights
    assert not Shape(3, 6, 5, 5, 5, 0, pooled=True).fits()  # nothing is left to pool


def test_without_a_compiler_nothing_fits(monkeypatch):
    monkeypatch.setattr(narrow.nvrtc, "available", lambda: False)
    assert not Shape(3, 6, 5, 32, 32, 0).fits()
