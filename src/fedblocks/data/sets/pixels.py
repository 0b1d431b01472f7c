"""Images as bytes on disk and as float32 in memory, a stretch at a time so that no
second copy is ever whole.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.data.arrays import as_inputs
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.cache import Arrays

Bytes = npt.NDArray[np.uint8]
Pixels = Bytes | npt.NDArray[np.float32]  # of an image: bytes, or of more bits numbers in 0..1
Part = Literal["all", "train", "test"]  # the official parts; all: train rows first, then test rows
STRETCH = 2048  # rows converted at a time
LARGE = 2**24  # pixels that any image file may have; each takes ten bytes while it is read
MOST_RATIO = 100  # of the pixels of an image to the bytes of its file, where that is more


def pool_of(
    arrays: Arrays,
    part: Part,
    mean: Sequence[float],
    std: Sequence[float],
    classes: int,
    about: dict[str, Any],
) -> DataPool:
    """One official part of decoded images as a pool; `train_rows` in `about` says how
    many rows are for training.
    """
    train, total = int(arrays["train_rows"]), len(arrays["y"])
    rows = rows_of(part, train, total)
    count = rows.stop - rows.start
    about = {**about, "part": part, "train_rows": {"all": train, "train": count, "test": 0}[part]}
    coarse = arrays["coarse"][rows].astype(np.int64) if "coarse" in arrays else None
    users = np.array(arrays["user"][rows]) if "user" in arrays else None
    x = normalise(arrays["x"], mean, std, rows)
    return DataPool(
        x, labels_of(arrays["y"], rows), classes, users=users, coarse=coarse, about=about
    )


def normalise(
    pixels: npt.NDArray[Any], mean: Sequence[float], std: Sequence[float], rows: slice
) -> Tensor:
    """(pixels / 255 - mean) / std for each channel; pixels are [rows, channels, height, width]."""
    first, last, _ = rows.indices(len(pixels))
    images = torch.empty((last - first, *pixels.shape[1:]), dtype=torch.float32)
    # [channels, 1, 1]
    centre, width = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    for start in range(first, last, STRETCH):
        stop = min(start + STRETCH, last)
        chunk = images[start - first : stop - first]
        chunk.copy_(torch.from_numpy(read_rows(pixels, start, stop)))
        chunk.div_(255).sub_(centre).div_(width)
    return images


def read_rows(pixels: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[Any]:
    """Some rows as a copy; those of a mapped file are read from it, so that it does not
    count as memory.
    """
    if not isinstance(pixels, np.memmap) or pixels.filename is None:
        return pixels[start:stop].copy()
    each = int(np.prod(pixels.shape[1:]))
    offset = pixels.offset + start * each * pixels.itemsize
    flat = np.fromfile(pixels.filename, pixels.dtype, (stop - start) * each, offset=offset)
    return flat.reshape(stop - start, *pixels.shape[1:])


def rows_of(part: Part, train: int, rows: int) -> slice:
    """The rows of an official part, where the first `train` rows are the official training rows."""
    stretches = {"all": slice(0, rows), "train": slice(0, train), "test": slice(train, rows)}
    return stretches[part]


def labels_of(values: npt.NDArray[Any], rows: slice) -> Tensor:
    """Labels as int64."""
    return torch.from_numpy(values[rows].astype(np.int64))


def square(raw: bytes, shape: tuple[int, ...], name: str, begin: int = 0) -> Bytes:
    """Bytes as records of one shape, [records, *shape]."""
    each = int(np.prod(shape))
    if not raw[begin:] or (len(raw) - begin) % each:
        message = f"{name} holds {len(raw) - begin} bytes, not a whole number of {each}"
        raise DataError(message, "it is damaged or cut short: get it again")
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(-1, *shape)


def picture(raw: bytes, name: str) -> Pixels:
    """An image file as [height, width, 3], upright: cameras store how they were held beside it."""
    image = pillow()
    from PIL.ImageOps import exif_transpose

    try:
        with image.open(io.BytesIO(raw)) as opened:
            if (pixels := opened.width * opened.height) > max(LARGE, MOST_RATIO * len(raw)):
                raise ValueError(f"{len(raw)} bytes would become {pixels} pixels")
            exif_transpose(opened, in_place=True)  # a copy would not know its format
            return pixels_of(opened, name)
    except DataError:
        raise
    except Exception as error:  # whatever a broken file leads to
        raise DataError(
            f"{name} is not an image that can be read: {error}",
            "get it again, or make it smaller if it is that large",
        ) from error


def pixels_of(opened: Any, name: str) -> Pixels:
    """An image of Pillow as [height, width, 3]."""
    most = _largest_grey(opened, name)
    if most is None:
        return np.asarray(opened.convert("RGB"))
    return _in_three(np.asarray(opened).astype(np.float32) / np.float32(most))


def _largest_grey(opened: Any, name: str) -> int | None:
    """White in an image of one channel with more than 8 bits, which Pillow's `convert` would cut
    off at 255; None: it has 8 bits a channel.
    """
    mode = opened.mode
    if mode.startswith("I;16"):
        bits = getattr(opened, "tag_v2", {}).get(258, (16,))  # BitsPerSample of TIFF: 12 or 16
        return (1 << int(bits[0])) - 1
    if mode == "I" and opened.format in ("PNG", "PPM"):  # 16 bits in a wider type
        return 2**16 - 1
    if mode in ("I", "F"):
        kind = "whole numbers with a sign" if mode == "I" else "fractions"
        raise DataError(
            f'the pixels of {name} are {kind} (Pillow\'s mode "{mode}"), whose range is not known',
            "save it with 8 or 16 bits a pixel; or scale the pixels yourself, for example to 0..1, "
            "and give arrays to Federation.from_arrays or from_users",
        )
    return None


def _in_three(grey: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.repeat(grey[:, :, None], 3, axis=2)


def resize_picture(pixels: Pixels, side: int) -> Pixels:
    """An image as [side, side, 3]."""
    image = pillow()
    if pixels.dtype == np.uint8:
        return np.asarray(image.fromarray(pixels).resize((side, side)))
    # Pillow has no colours of many bits; all three channels are alike
    grey = np.asarray(image.fromarray(pixels[:, :, 0]).resize((side, side)))
    return _in_three(grey.clip(0, 1))


def stack_pictures(pictures: Sequence[Pixels]) -> Pixels:
    """Images of one size as [rows, 3, height, width]: bytes, or in 0..1 if any has more bits."""
    if any(pixels.dtype != np.uint8 for pixels in pictures):
        pictures = [as_inputs(pixels).numpy() for pixels in pictures]
    return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))


def pillow() -> Any:
    """Pillow's image module, which only image files need."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "image files need the package Pillow", 'install "fedblocks[images]"'
        ) from error
    return Image
