"""Caches and corpora in small: what is kept, what is left out, what is described."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data.partitions import iid
from fedblocks.data.sets import SETS, cache, cifar, corpora, describe_set, pixels
from fedblocks.data.sets.text import count_words, left_out


def test_a_cache_is_whole_or_not_there(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6).reshape(2, 3), "y": np.array([1, 0])}
    folder = tmp_path / "below" / "set-1"
    assert cache.read(folder) is None
    cache.write(folder, arrays)
    for _ in range(2):  # a second process that was slower changes nothing
        again = cache.read(folder)
        assert again is not None and {k: v.tolist() for k, v in again.items()} == {
            "x": [[0, 1, 2], [3, 4, 5]],
            "y": [1, 0],
        }
        cache.write(folder, {"x": np.zeros(1), "y": np.zeros(1)})
    (folder / "x.npy").write_bytes(b"damaged")
    assert cache.read(folder) is None
    cache.write(folder, {"x": np.zeros(1)})
    mended = cache.read(folder)
    assert mended is not None and list(mended) == ["x"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["set-1"]


def test_users_with_too_few_texts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: Any = {"ann": ["a", "b", "c"], "bob": ["d"], "eve": ["e", "f"]}
    corpus = corpora.corpus_of("some", texts, None, 2, (0.5, 0.25, 0.25), 3)
    about = corpus.about
    assert about["users"] == 2 and about["least"] == 2 and about["name"] == "some"
    with pytest.raises(DataError, match="no user has 4 texts or more"):
        corpora.corpus_of("some", texts, None, 4, (0.5, 0.25, 0.25), 3)


def test_a_set_whose_files_are_missing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path))
    stored: Any = SETS["cifar10"]
    entry = describe_set(stored)
    assert entry["found"] is False and entry["form"] is None and entry["fix"]
    assert entry["where"] == str(tmp_path / stored.files.folder)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_pixels_are_normalised_channel_by_channel(
    is_mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "STRETCH", 2)
    values = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3, 1)
    np.save(tmp_path / "x.npy", values)
    held = np.load(tmp_path / "x.npy", mmap_mode="r" if is_mapped else None)
    mean, std = [0.1, 0.2], [0.5, 0.25]
    wanted = (values[1:] / 255 - np.array(mean).reshape(2, 1, 1)) / np.array(std).reshape(2, 1, 1)
    actual = pixels.normalise(held, mean, std, slice(1, 5)).numpy()
    assert actual == pytest.approx(wanted, abs=1e-6)
    rows = pixels.read_rows(held, 1, 3)
    assert rows.tolist() == values[1:3].tolist() and rows.flags.writeable
    assert not np.shares_memory(rows, held)


def test_images_are_cut_out_of_their_sheets_row_by_row(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install 'fedblocks[images]'")
    sheets = {}
    for number in range(2):
        sheet = image.new("RGB", (64, 64))
        for cell in range(4):
            colour = (40 * cell + 20 * number, 7, 200)
            sheet.paste(colour, (32 * (cell % 2), 32 * (cell // 2), 32 * (cell % 2 + 1), 64))
        data = BytesIO()
        sheet.save(data, "PNG")
        sheets[f"jpg_{number}"] = np.frombuffer(data.getvalue(), np.uint8)
    path = tmp_path / "c.npz"
    labels = np.arange(8)
    np.savez(path, tile=2, y=labels, n_train=6, y_coarse=labels // 2, **sheets)
    local: Any = SimpleNamespace(paths=[path])
    arrays = cifar.decode_mosaics(local)
    reds = [40 * cell + 20 * number for number in range(2) for cell in range(4)]
    assert arrays["x"].shape == (8, 3, 32, 32) and int(arrays["train_rows"]) == 6
    assert arrays["x"][:, 0].min((1, 2)).tolist() == reds == arrays["x"][:, 0, 0, 0].tolist()
    assert (arrays["x"][:, 1] == 7).all() and (arrays["x"][:, 2] == 200).all()
    assert arrays["y"].tolist() == labels.tolist() and arrays["coarse"].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_words_that_do_not_count_are_those_between_the_marks() -> None:
    labels = torch.tensor([-100, 0, 4, 5, 6, 7, 9])
    marks = {"oov": (5, 7), "eos": 9}
    out = lambda score: [int(word) for word in labels[left_out(labels, marks, score)]]
    assert out("all") == [-100]
    assert out("without_oov") == [-100, 5, 6]
    assert out("without_oov_and_eos") == [-100, 5, 6, 9]
    counts = count_words(labels, labels, marks)
    assert counts["all"] == (6, 6) and counts["without_oov_and_eos"] == (3, 3)


def test_what_a_federation_holds_cannot_be_written_to() -> None:
    x, y = np.zeros((4, 1), "float32"), np.arange(4) % 2
    built = Federation.from_arrays(x, y, lambda y: iid(y, 2), tags={"group": np.array([0, 1])})
    for array in (built.tags["group"], built.train.index):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
