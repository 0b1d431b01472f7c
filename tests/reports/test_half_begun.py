"""A report of a comparison says how many of its runs have not begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import RunFolderError
from fedblocks.reports.html import gather


@pytest.mark.parametrize(
    ("begun", "problems"), [(3, []), (2, ["1 of 3 runs have not begun"]), (0, None)]
)
def test_runs_that_have_not_begun_are_counted(
    begun: int, problems: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / gather.PLAN).write_text("")
    folders = [tmp_path / name for name in "abc"]
    for folder in folders[:begun]:
        folder.mkdir()
        (folder / gather.CONFIG).write_text("")
    seen: list[Any] = []
    monkeypatch.setattr(gather, "read_cells", lambda _: [(one,) for one in folders])
    monkeypatch.setattr(gather, "cell_folder", lambda _, folder: folder)
    monkeypatch.setattr(gather, "_story", lambda *told, **more: seen.append((*told, more)))
    if problems is None:
        with pytest.raises(RunFolderError, match="no run of the comparison"):
            gather._read_story(tmp_path)
    else:
        gather._read_story(tmp_path)
        assert seen == [(tmp_path, folders[:begun], problems, {"is_comparison": True})]
