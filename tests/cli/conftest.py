"""Commands run in this process, in an empty folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main


class Done:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def fedblocks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def running(*words: str) -> Done:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    return running
