"""The wheel in an environment of its own: nothing of ours is missing, and nothing but
the core is needed.
"""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak  # builds a wheel and installs torch anew

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that a release would publish."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    return next(folder.glob("fedblocks-*.whl"))


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "fedblocks"
    files = {str(f.relative_to(package.parent)) for f in package.rglob("*") if f.is_file()}
    files = {f for f in files if "__pycache__" not in f}
    assert "fedblocks/py.typed" in files
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_command_starts_with_the_core_alone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "-c", constraints, wheel], check=True, cwd=tmp_path
    )
    shown = subprocess.check_output([python, "-m", "fedblocks", "--help"], text=True, cwd=tmp_path)
    assert "quickstart" in shown
