"""The doctor: what it finds, what it advises, how it ends; and that it does without torch."""

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import health, packages
from fedblocks.cli.health import HealthFinding, findings

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of torch now fails
from fedblocks.cli import main
main(["doctor", "--json"])
"""
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = {
    "fedblocks": "0.1.0",
    "torch": "2.13.0",
    "flwr": "1.41.0",
    "typer": "0.29.0",
    "rich": "14.0.0",
}


def found(check: str, folder: Path = Path("runs")) -> HealthFinding:
    """One finding by the name of its check."""
    return next(one for one in findings(folder) if one.check == check)


def test_it_works_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"name": "torch"' in done.stdout


def test_a_healthy_installation_ends_with_code_0_and_a_table(fedblocks: Any) -> None:
    shown = fedblocks("doctor")
    assert shown.code == 0, shown.out
    for words in (
        "check",
        "fix",
        "Python",
        "torch",
        "GPU",
        "extra report",
        "data sets",
        "disk",
        "clock",
        "terminal",
    ):
        assert words in shown.out
    states = {one["name"]: one["state"] for one in fedblocks("doctor", "--json").json}
    assert states["Python"] == states["torch"] == states["packages of fedblocks"] == "ok"
    assert set(states.values()) <= {"ok", "missing", "warning"}


def test_a_problem_ends_with_code_7(fedblocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        health,
        "findings",
        lambda folder: [HealthFinding("x", "problem", "it is broken", "mend it")],
    )
    shown = fedblocks("doctor")
    assert shown.code == 7
    assert "it is broken" in shown.out and "mend it" in shown.out and "1 problem" in shown.out


def test_a_missing_or_outdated_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version_of", {"fedblocks": "0.1.0", "numpy": "1.20"}.get)
    assert found("torch") == HealthFinding(
        "torch", "problem", "it is not installed", "pip install torch"
    )
    wrong = packages.unmet("fedblocks")
    assert wrong["numpy 1.20"] == "numpy>=1.26" and "torch nothing" in wrong
    assert found("packages of fedblocks").state == "problem"


def test_packages_that_flower_does_not_bear_are_named_with_the_versions_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = {
        "flwr": [
            "typer<0.21.0,>=0.12.5",
            "rich (<15.0.0,>=13.5.0)",
            'ray==2.55.1 ; extra == "simulation"',
        ]
    }
    monkeypatch.setattr(packages, "version_of", VERSIONS.get)
    monkeypatch.setattr(packages.metadata, "requires", lambda name: needs.get(name, []))
    flower = found("packages of flwr")
    assert (
        flower.state == "problem"
        and flower.detail == "flwr needs typer<0.21.0,>=0.12.5, found typer 0.29.0"
    )
    assert flower.fix == 'pip install "typer<0.21.0,>=0.12.5"'


def test_a_missing_extra_is_no_problem_and_says_what_it_would_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "version_of", {"fedblocks": "0.1.0"}.get)
    tune = found("extra tune")
    assert tune.state == "missing" and tune.detail == "search for options: optuna not installed"
    assert tune.fix == 'pip install "fedblocks[tune]"'


def test_every_extra_for_users_is_known_to_the_doctor() -> None:
    assert set(PROJECT["optional-dependencies"]) - {"dev", "docs"} == set(health.EXTRAS)


@pytest.mark.parametrize("extra", sorted(health.EXTRAS))
def test_every_package_of_an_extra_is_used_by_the_library(extra: str) -> None:
    names = [re.split(r"[\[<>=]", wanted)[0] for wanted in PROJECT["optional-dependencies"][extra]]
    modules = [{"pillow": "PIL"}.get(name, name) for name in names]
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert [
        name for name in modules if not re.search(rf'(import|from) {name}\b|"{name}"', source)
    ] == []


@pytest.mark.parametrize(
    ("cuda", "driver", "state", "said"),
    [
        (None, None, "ok", "no NVIDIA driver"),
        ("12.8", None, "warning", "no NVIDIA driver"),
        (None, "12.8", "warning", "this torch is for CPUs"),
        ("13.0", "12.8", "problem", "torch is for CUDA 13.0, the driver for 12.8"),
        ("12.8", "12.4", "ok", "driver for CUDA 12.4"),
    ],
)
def test_torch_and_the_driver_are_compared(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, driver: str | None, state: str, said: str
) -> None:
    monkeypatch.setattr(packages, "torch_cuda", lambda: cuda)
    monkeypatch.setattr(packages, "driver_cuda", lambda: driver)
    assert found("GPU").state == state and said in found("GPU").detail


def test_the_cuda_version_is_read_from_the_files_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch" / "version.py"
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path / "torch")]})
    monkeypatch.setattr(packages.util, "find_spec", lambda name: spec)
    for text, cuda in (
        ("cuda: Optional[str] = '12.8'\n", "12.8"),
        ("cuda = None\nhip = '6.4'\n", None),
    ):
        version.write_text(f"__version__ = '2.13.0'\n{text}")
        assert packages.torch_cuda() == cuda


def test_folders_of_data_sets_are_found_and_a_wrong_one_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path))
    assert found("data sets").detail == f"{tmp_path}: mnist"
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path / "gone"))
    assert found("data sets").state == "problem"


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert found("runs", tmp_path / "file").state == "problem"
    assert found("runs", tmp_path / "new" / "deep").state == "ok"
    usage = type("Usage", (), {"free": 1e8})
    monkeypatch.setattr(health.shutil, "disk_usage", lambda path: usage)
    assert found("disk") == HealthFinding(
        "disk", "problem", "0.1 GB free", "make room, or use --out on another disk"
    )


def test_threads_clock_and_encoding_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    assert found("cores").state == "warning"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert found("cores").state == "ok"
    monkeypatch.setattr(health.sys, "stdout", type("Stream", (), {"encoding": "ascii"}))
    assert found("terminal").fix == "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    monkeypatch.setattr(time, "time", lambda: os.stat(health.__file__).st_mtime - 10 * 86400)
    assert found("clock").state == "problem"


@pytest.mark.parametrize(
    ("version", "wanted", "verdict"),
    [
        ("2.13.0+cpu", ">=2.10", True),
        ("2.9", ">=2.10", False),
        ("0.21.0", "<0.21.0,>=0.12.5", False),
        ("0.20.4", "<0.21.0,>=0.12.5", True),
        ("15.0.0", "<15", False),
        ("1.38", "==1.38.0", True),
        ("1.5", "!=1.5", False),
        ("1.5", "~=1.4", True),
        ("3", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, verdict: bool) -> None:
    assert packages.fits(version, wanted) is verdict


def test_it_says_how_ranks_are_started_and_what_a_rank_lacks(monkeypatch: Any) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    alone = found("ranks")
    assert alone.state == "ok" and "torchrun --nproc-per-node N" in alone.detail
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    lacking = found("ranks")
    assert (lacking.state, lacking.detail) == (
        "problem",
        "one of several ranks, but MASTER_ADDR is not set",
    )
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert found("ranks").detail == "rank 1 of 4, at 127.0.0.1:29500"
