"""The page on text by user also runs on the real roles, where their file is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .test_site_examples import DOCS, FENCE, Story

TEST_DATA = "FEDBLOCKS_TEST_DATA"


@pytest.fixture
def real_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the roles; the test is skipped where it is absent."""
    folder = Path(os.environ.get(TEST_DATA) or Path(__file__).parents[3] / "shared" / "data")
    file = folder.resolve() / "shakespeare_roles.json.xz"
    if not file.is_file():
        pytest.skip(f"{file} is not there; set {TEST_DATA} to its folder")
    monkeypatch.setenv("FEDBLOCKS_DATA", str(file.parent))
    monkeypatch.setenv("FEDBLOCKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield file
    torch.set_num_threads(threads)


@pytest.mark.soak
def test_the_page_on_text_by_user_runs_on_real_roles(
    real_roles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "tutorial/text-by-user.md"
    story = Story(page, capsys)
    for kind, block in FENCE.findall((DOCS / page).read_text(encoding="utf-8")):
        story.tell(kind, block)
    assert story.names["is_real"] is True
    assert "Federation(6 clients" in story.printed
