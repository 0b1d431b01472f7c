"""A package of one file, with tests that catch most of what can go wrong in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mutants.contained import contained
from mutants.project import Project

SOURCE = '''"""A toy."""

LIMIT = 3


def over(x):
    return x > LIMIT


def mean(values):
    total = sum(values)
    return total / len(values)


def half(x):
    return x / 2


def unseen(x):
    return x + 1


def weak(x):
    return x * 2
'''
TESTS = """
import os, subprocess, sys
from pathlib import Path
import pytest
from toy.core.sums import half, over, weak

def test_over_is_strict():
    assert over(4) and not over(3)

@pytest.fixture(scope="module")
def result():
    return half(6)

def test_that_asks_for_the_fixture_first(result):
    pass

def test_half(result):
    assert result == 3

def test_files_outside_the_copy_cannot_be_written(outside=Path(__file__).parents[3] / "harm"):
    with pytest.raises(OSError):
        outside.write_text("harm")

def test_processes_outside_cannot_be_signalled():
    with pytest.raises(ProcessLookupError):
        os.kill(OUTSIDE, 0)

def test_weak_is_only_called():
    weak(1)

def test_mean_in_another_process():
    code = "from toy.core.sums import mean; assert mean([1, 1, 4]) == 2"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
"""


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    """A checkout of that package, with the tool in it."""
    apart = contained(["true"], tmp_path)
    if subprocess.run(apart, capture_output=True).returncode != 0:
        pytest.skip("mutants need Linux namespaces, which this machine does not allow")
    package = tmp_path / "src" / "toy"
    for folder in (package / "core", tmp_path / "tests", tmp_path / "docs"):
        folder.mkdir(parents=True)
    for folder in (package, package / "core"):
        (folder / "__init__.py").write_text("")
    (package / "core" / "sums.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS.replace("OUTSIDE", str(os.getpid())))
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    (tmp_path / "mutants").symlink_to(Path(__file__).parents[2] / "mutants")
    return Project(tmp_path, "toy", {"core": ("core",)}, (), ())
