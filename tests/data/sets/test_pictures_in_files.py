"""Images in files: those of more than 8 bits are scaled by the range of their numbers, or refused
where they have none, and photos stand upright.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data.sets.own import image, image_folder
from fedblocks.data.sets.pixels import picture, stack_pictures

Image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install 'fedblocks[images]'")
VALUES = np.array([0, 100, 300, 20000, 65535], np.uint16)


def save(path: Path, pixels: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("end", ["png", "tiff"])
def test_sixteen_bits_are_scaled_by_their_range_as_bytes_are(end: str, tmp_path: Path) -> None:
    save(tmp_path / "a" / f"0.{end}", VALUES[None])
    save(tmp_path / "b" / f"0.{end}", VALUES[None])
    x = image_folder(str(tmp_path)).x  # [2, 3, 1, 5]
    wanted = VALUES.astype(np.float32) / np.float32(65535)
    for channel in range(3):
        np.testing.assert_array_equal(x[0, channel, 0].numpy(), wanted)


@pytest.mark.parametrize("most", [65535, 4095])
def test_a_pgm_of_two_bytes_a_pixel_is_scaled_by_the_range_it_states(most: int) -> None:
    raw = f"P5 3 1 {most}\n".encode() + np.array([0, most // 3, most], ">u2").tobytes()
    np.testing.assert_allclose(picture(raw, "x.pgm")[0, :, 0], [0, 1 / 3, 1], atol=1e-5)


def tiff(bits: int, body: bytes, kind: int = 1) -> bytes:
    """A grey TIFF of two pixels; Pillow reads more kinds than it writes."""
    tags = {256: 2, 257: 1, 258: bits, 259: 1, 262: 1, 273: 200, 277: 1, 278: 1, 279: len(body)}
    entries = b"".join(
        tag.to_bytes(2, "little") + b"\x03\x00\x01\x00\x00\x00" + value.to_bytes(4, "little")
        for tag, value in {**tags, 339: kind}.items()
    )
    head = b"II*\x00\x08\x00\x00\x00" + (len(tags) + 1).to_bytes(2, "little") + entries + bytes(4)
    return head.ljust(200, b"\x00") + body


def test_a_tiff_of_twelve_bits_is_scaled_by_4095() -> None:
    raw = tiff(12, b"\xff\xf0\x00")  # two pixels in three bytes, 0xFFF and 0x000
    assert picture(raw, "x.tiff")[0, :, 0].tolist() == [1, 0]


def test_images_of_8_and_16_bits_in_one_folder_are_each_scaled_by_their_own_range(
    tmp_path: Path,
) -> None:
    save(tmp_path / "a" / "0.png", np.full((2, 2), 51, np.uint8))
    save(tmp_path / "b" / "0.png", np.full((2, 2), 13107, np.uint16))  # 65535 / 5
    x = image_folder(str(tmp_path)).x
    assert x[0].unique().tolist() == x[1].unique().tolist() == [pytest.approx(0.2)]


@pytest.mark.parametrize(("kind", "mode"), [("int32", "I"), ("float32", "F")])
def test_numbers_without_a_known_range_are_refused(kind: str, mode: str, tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.tiff", np.full((2, 2), 300).astype(kind))
    with pytest.raises(DataError, match=rf'0\.tiff .*mode "{mode}".* range is not') as caught:
        Federation.from_folder(tmp_path, partition=[[0]])
    assert "from_arrays" in caught.value.fix


def test_sixteen_bits_with_a_sign_are_refused() -> None:
    with pytest.raises(DataError, match=r"of x\.tiff are whole numbers with a sign"):
        picture(tiff(16, np.array([-300, 300], "<i2").tobytes(), kind=2), "x.tiff")


def test_sixteen_bits_are_resized_with_all_their_digits_and_stay_between_0_and_1(
    tmp_path: Path,
) -> None:
    path = save(tmp_path / "0.png", np.full((4, 4), 300, np.uint16))
    np.testing.assert_allclose(image(path, 2), np.full((2, 2, 3), 300 / 65535), rtol=1e-6)
    edge = np.zeros((8, 8), np.uint16)
    edge[:, 4:] = 65535  # where bicubic interpolation goes beyond both ends
    pixels = image(save(tmp_path / "1.png", edge), 11)
    assert pixels.shape == (11, 11, 3) and pixels.min() == 0 and pixels.max() == 1


def test_pictures_of_bytes_stay_bytes_with_their_colours_first() -> None:
    raw = io.BytesIO()
    Image.new("RGB", (4, 2), (255, 51, 0)).save(raw, "png")
    stacked = stack_pictures([picture(raw.getvalue(), "x")] * 3)
    assert stacked.dtype == np.uint8 and stacked.shape == (3, 3, 2, 4)
    assert stacked[0, :, 0, 0].tolist() == [255, 51, 0]


UPRIGHT = {  # by EXIF's number: the rows and columns that are stored, as a viewer shows them
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: stored[::-1, ::-1],
    4: np.flipud,
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_photos_are_turned_as_their_cameras_say(
    orientation: int, kind: type, tmp_path: Path
) -> None:
    stored = np.arange(6).reshape(2, 3).astype(kind)
    exif = Image.Exif()
    exif[0x112] = orientation
    path = tmp_path / "a" / "0.png"
    path.parent.mkdir()
    Image.fromarray(stored).save(path, exif=exif)
    x = image_folder(str(tmp_path)).x[0, 0] * np.iinfo(kind).max
    np.testing.assert_allclose(x.numpy(), UPRIGHT[orientation](stored), atol=1e-4)


def test_photos_that_lie_on_their_side_have_the_size_that_a_viewer_shows(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    for name in "ab":
        (tmp_path / name).mkdir()
    Image.new("RGB", (6, 4)).save(tmp_path / "a" / "0.jpg", exif=exif)
    Image.new("RGB", (4, 6)).save(tmp_path / "b" / "0.jpg")
    assert image_folder(str(tmp_path)).x.shape == (2, 3, 6, 4)
