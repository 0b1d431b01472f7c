"""What an installation costs: packages, megabytes, and the time until the help appears."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CORE = {"torch", "numpy", "safetensors", "pydantic", "typer", "rich", "tomli-w"}
HELP_WITHOUT_TORCH = """
import runpy, sys
sys.argv = ["fedblocks", "--help"]
try:
    runpy.run_module("fedblocks", run_name="__main__")
except SystemExit as stop:
    print("exit", stop.code)
print("torch" in sys.modules)
"""
TO_NOWHERE = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


def plain(name: str) -> str:
    """One spelling per package: tomli_w, Tomli-W and tomli.w are the same."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(
    extra: str = "", besides: frozenset[str] = frozenset({"torch", "numpy"})
) -> dict[str, Distribution]:
    """The installed packages that fedblocks needs, `besides` and what only those need left out."""
    actual: dict[str, Distribution] = {}
    waiting = [Requirement(f"fedblocks[{extra}]" if extra else "fedblocks")]
    while waiting:
        wanted = waiting.pop()
        name = plain(wanted.name)
        if name in besides or name in actual:
            continue
        actual[name] = distribution(name)
        extras = wanted.extras or {""}
        needs = [Requirement(line) for line in actual[name].requires or []]
        waiting += [
            n
            for n in needs
            if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in extras)
        ]
    return actual


def installed_bytes(package: Distribution) -> int:
    """The bytes of a package's files on disk, compiled caches left out."""
    files = [
        Path(str(package.locate_file(f)))
        for f in package.files or []
        if "__pycache__" not in f.parts
    ]
    return sum(f.stat().st_size for f in files if f.is_file())


def own_bytes() -> int:
    """The bytes of fedblocks itself; an editable installation lists only a pointer to them."""
    files = (ROOT / "src" / "fedblocks").rglob("*")
    return sum(f.stat().st_size for f in files if f.is_file() and "__pycache__" not in f.parts)


def test_the_core_needs_seven_packages_and_names_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {plain(Requirement(line).name) for line in project["dependencies"]} == CORE


def test_the_core_has_at_most_15_packages_besides_torch_and_numpy() -> None:
    names = closure().keys()
    assert names >= CORE - {"torch", "numpy"}
    assert len(names) <= 15, sorted(names)


def test_the_core_takes_at_most_25_megabytes_besides_torch_and_numpy() -> None:
    sizes = {name: installed_bytes(package) for name, package in closure().items()} | {
        "fedblocks": own_bytes()
    }
    assert min(sizes.values()) > 0, f"nothing measured for a package: {sizes}"
    assert sum(sizes.values()) <= 25_000_000, sizes


def test_every_package_that_the_tests_run_with_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        plain(line.split("==")[0]): line.split("==")[1]
        for line in lines
        if not line.startswith("#")
    }
    assert pinned["torch"] == "2.13.0"
    pytest.importorskip(
        "mypy", reason="the development tools are not installed: pip install -e '.[dev]'"
    )
    # Torch's own needs are left out: they differ by machine (CUDA or not), and it pins those
    # itself.
    needed = closure("dev", besides=frozenset({"torch"})).keys() - {"fedblocks"}
    assert needed <= pinned.keys(), sorted(needed - pinned.keys())


def test_help_takes_at_most_half_a_second_of_processor_time() -> None:
    """Not of the clock: the other tests share the machine. And of this process alone: `os.times`
    counts all children that end meanwhile.
    """
    help_page = [sys.executable, "-m", "fedblocks", "--help"]
    process = os.posix_spawn(sys.executable, help_page, os.environ, file_actions=TO_NOWHERE)
    _, status, used = os.wait4(process, 0)
    assert status == 0
    assert 0.01 < used.ru_utime + used.ru_stime <= 0.5, used


def test_help_does_not_import_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP_WITHOUT_TORCH], check=True, capture_output=True, text=True
    )
    assert "Usage" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_importing_fedblocks_does_not_import_torch() -> None:
    code = "import sys, fedblocks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
