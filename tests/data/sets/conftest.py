"""An empty folder of data sets, and the real compact files where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TEST_DATA = "FEDBLOCKS_TEST_DATA"


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that data sets are looked for in, with its cache inside."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDBLOCKS_DATA", str(folder))
    monkeypatch.delenv("FEDBLOCKS_CACHE", raising=False)
    return folder


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the real files are decoded to, once for all tests."""
    return tmp_path_factory.mktemp("decoded")


@pytest.fixture
def real_data(real_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the real compact files; tests that need it are skipped where it is absent."""
    folder = Path(
        os.environ.get(TEST_DATA) or Path(__file__).parents[4] / "shared" / "data"
    ).resolve()
    if not folder.is_dir():
        pytest.skip(f"the real data files are not in {folder}; set {TEST_DATA} to their folder")
    monkeypatch.setenv("FEDBLOCKS_DATA", str(folder))
    monkeypatch.setenv("FEDBLOCKS_CACHE", str(real_cache))
    return folder
