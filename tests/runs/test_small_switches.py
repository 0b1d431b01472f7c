"""Switches of a run are as its configuration says inside, and as they were afterwards; a run that
has hardly begun is a result, too.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.precision import wants_half
from fedblocks.runs.result import load_run
from fedblocks.runs.run import hardware
from fedblocks.runs.storage import code_record
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]


def switches() -> tuple[bool, bool, bool, int]:
    """Half precision, TF32 in products and in convolutions, threads."""
    cuda = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return wants_half(), *cuda, torch.get_num_threads()


@pytest.mark.parametrize(
    ("precision", "inside"),
    [
        ("float32", (False, False, False)),
        ("tf32", (False, True, True)),
        ("bf16", (True, False, False)),
    ],
)
@pytest.mark.parametrize("number", [None, 3])
def test_precision_and_threads_are_those_of_a_configuration_inside_a_run_alone(
    precision: str, inside: tuple[bool, ...], number: int | None, small: Table
) -> None:
    more = {} if number is None else {"threads": number}
    config, before = Config.of({**small, "precision": precision, **more}), switches()
    with hardware(config):
        assert switches() == (*inside, number or before[-1])
    assert switches() == before
    with pytest.raises(KeyError), hardware(config):
        raise KeyError
    assert switches() == before


def test_a_run_without_a_round_has_taken_and_sent_nothing(tmp_path: Path, small: Table) -> None:
    config = Config.of(small)
    with RunFolder.create(tmp_path / "run", config.resolved(), {"python": "3"}):
        pass
    result = load_run(tmp_path / "run")
    assert (result.rounds, result.seconds, result.warm_seconds, result.lanes) == (0, 0, 0, 1)
    assert (result.bytes_down, result.bytes_up) == (0, 0)
    assert result.last is None and result.best is None and result.notes == []


def test_the_program_that_is_running_is_known_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a command that is installed, and nothing in a notebook."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("1")
    about = {"defines": code_record.PROGRAM}
    mine = {**about, "file": "mine.py", "sha256": sha256(b"1").hexdigest()}
    for file, entry in [("mine.py", mine), ("gone.py", about), (pytest.__file__, about)]:
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=file))  # type: ignore[arg-type]
        assert code_record._program() == entry
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())  # type: ignore[arg-type]
    assert code_record._program() == about
