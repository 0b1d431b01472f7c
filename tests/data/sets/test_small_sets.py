"""Caches and corpora in small: what is kept, what is left out, what is described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.data.sets import SETS, cache, corpora, describe_set


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
