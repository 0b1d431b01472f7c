"""What is missing is said before torch is imported, which takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

BARE = """
import sys
for name in ("torch", "plotly", "starlette", "optuna"):
    sys.modules[name] = None  # as if it were not installed
from fedblocks.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (
            ["report", "."],
            'a report needs the package plotly\n  fix: pip install "fedblocks[report]"',
        ),
        (["report", "nothing"], "nothing does not exist"),
        (["report", "nothing", "--figures", "f"], "nothing does not exist"),
        (["export", "nothing", "--client", "0"], "nothing does not exist"),
        (["watch", "nothing"], "watching in a browser needs the package starlette"),
        (["tune", "digits-fedavg"], 'fix: pip install "fedblocks[tune]"'),
    ],
)
def test_a_missing_package_or_folder_is_told_without_torch(
    tmp_path: Path, words: list[str], wrong: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode in (2, 4) and wrong in done.stderr


def test_presets_are_listed_without_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, "presets"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "digits-pfedmb" in done.stdout.splitlines()
