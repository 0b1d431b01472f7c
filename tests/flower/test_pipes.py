"""A pipe in a file's place is refused: nobody waits for what may never come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedblocks.config.texts import read_text


@pytest.mark.timeout(10)
def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.toml")
    with pytest.raises(ValueError, match="not a plain file"):
        read_text(tmp_path / "c.toml")
