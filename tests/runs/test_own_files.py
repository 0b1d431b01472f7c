"""Files that `--code` reads: what they may do, and where they are wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.config.code.loading import Code
from fedblocks.nets import mlp

REMOVALS = [
    'shutil.rmtree("runs/one")',
    'shutil.rmtree("runs", ignore_errors=True)',
    'os.remove("runs/one/config.toml")',
    'os.rename("runs/one", "runs/old")',
    'shutil.move("runs/one", "runs/old")',
    'try:\n    shutil.rmtree("runs/one")\nexcept Exception:\n    pass',
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round."""
    folder = tmp_path_factory.mktemp("stored") / "one"
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 6)).astype("float32"), np.arange(80) % 3
    data = fb.Federation.from_users(x, y, np.repeat(np.arange(2), 40))
    fb.run(fb.FedAvg(mlp((6,), 3, hidden=(4,)), lr=0.1), data, 1, folder)
    return folder


@pytest.mark.parametrize("removal", REMOVALS)
def test_reading_a_script_cannot_remove_a_run(
    removal: str, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stored, "runs/one")
    files = sorted(Path("runs").rglob("*"))
    Path("script.py").write_text(f"import os, shutil\n{removal}\n")
    with pytest.raises(fb.RunFolderError, match="would remove runs/one, which holds a run"):
        Code.read(["script.py"])
    assert sorted(Path("runs").rglob("*")) == files


def test_a_script_may_remove_what_is_no_run_and_a_program_anything(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cache").mkdir()
    Path("cache/config.toml").touch()
    Path("script.py").write_text('import shutil\nshutil.rmtree("cache")\n')
    Code.read(["script.py"])
    assert not Path("cache").exists()
    shutil.copytree(stored, "runs/one")
    shutil.rmtree("runs")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import dataclasses\n\ndataclasses.replace(3)\n", r"\(own\.py, line 3\)"),
        ("import json\n\n\njson.loads('{')\n", r"JSONDecodeError: .* \(own\.py, line 4\)"),
        ("import other\n", r"ZeroDivisionError: .* \(other\.py, line 2\)"),
        ("x = (\n", r"SyntaxError: .* \(own\.py, line 1\)"),
    ],
)
def test_an_error_in_a_file_is_told_by_the_innermost_line_of_the_users_own(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(text)
    Path("other.py").write_text("one = 1\none / 0\n")
    with pytest.raises(fb.UserError, match=words) as error:
        Code.read(["own.py"])
    assert error.value.fix == "correct the file; nothing was started"


METHOD = """
from dataclasses import dataclass
import fedblocks as fb


@dataclass(frozen=True, eq=False)
class SoftHead(fb.FedPer):
    pass
"""


def test_a_method_that_a_file_defines_and_does_not_list_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("softhead.py").write_text(METHOD)
    Code.read(["softhead.py"])
    words = r"softhead\.py defines SoftHead but does not put it into METHODS; add METHODS\[.soft"
    with pytest.raises(fb.UserError, match=words):
        fb.compare("digits-fedper", ["softhead"])
    with pytest.raises(fb.UserError, match=words):
        fb.read_config("digits-fedper", ["method.name=softhead"])
