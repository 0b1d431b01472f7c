"""How matrix products of stacked convolutions are cut into blocks: by timing on an H200."""

from __future__ import annotations


def product_tiles(filters: int, inner: int, precision: str) -> tuple[int, int, int, int, int]:
    """Outputs, filters and depth of a block, warps and stages.

    Triton 3.6 loses a piece of the sum in some blocks whose loads are made ahead: of depth 16 in
    three stages where rows of the images are multiples of 16, single products of depth 32 in two.
    """
    if filters >= 128:
        return 128, 128, *{"tf32x3": (32, 8, 3), "tf32": (16, 8, 1)}.get(precision, (16, 8, 3))
    if filters > 32 and inner > 64:
        return (64, 64, 32, 4, 3) if precision == "tf32x3" else (128, 64, 16, 4, 3)
    block = min(_power(filters, 16), 64)
    if filters <= 16 or inner <= 64:
        return 64, block, 32, 2, 2
    return 64, block, 32 if precision == "tf32x3" else 16, 4, 2


def gradient_tiles(filters: int, inner: int, precision: str) -> tuple[int, int, int, int, int, int]:
    """Rows, filters and depth of a block, warps, stages, rows of a partial sum."""
    if filters <= 16 or inner <= 32:
        return 16, 16, 32, 1, 3, 512
    if filters <= 32:
        return 32, 32, 32, 2, 3, 1024
    if precision == "tf32x3":
        return 32, 32, 64, 4, 3, 1024
    return (32, 64, 64, 4, 3, 4096) if filters <= 64 else (32, 128, 64, 8, 2, 4096)


def _power(number: int, least: int) -> int:
    """The next power of two."""
    return max(least, 1 << (number - 1).bit_length())
