"""What is mutated, and with which tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

STRATA: Mapping[str, tuple[str, ...]] = {
    "core": ("core",),
    "methods": ("methods",),
    "engines": ("engines",),
    "data": ("data",),
    "runs": ("runs",),
    "reports": ("reports",),
    "flower": ("flower",),
    "nets, layers": ("nets", "layers"),
    "config, commands": ("config", "recipes", "cli", "export", "watch"),
}

# For GPUs, or tools for tests and timing: tests on a CPU cannot judge them.
LEFT_OUT = (
    "kernels",
    "layers/mapped_convolution.py",
    "layers/mapped_pooling.py",
    "engines/cuda_graphs.py",
    "testing",
    "bench",
    "cli/bench.py",
)

# They read the text of the source, build the site, or need a browser or a GPU.
TESTS_LEFT_OUT = (
    "tests/project",
    "tests/docs/test_examples.py",
    "tests/docs/test_notebooks.py",
    "tests/docs/test_site.py",
    "tests/docs/test_site_examples.py",
    "tests/browser",
    "tests/gpu",
    "tests/mutants",
    "tests/bench",
)


@dataclass(frozen=True)
class Project:
    """A checkout whose package lies in `src`, and whose tests lie in `tests`."""

    root: Path
    package: str = "fedblocks"
    strata: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: STRATA)
    left_out: tuple[str, ...] = LEFT_OUT
    tests_left_out: tuple[str, ...] = TESTS_LEFT_OUT

    @property
    def source(self) -> Path:
        return self.root / "src" / self.package

    @property
    def cache(self) -> Path:
        return self.root / ".mutants"

    @property
    def notes(self) -> Path:
        """Where survivors and equivalent mutants are kept, under version control."""
        return self.root / "tests" / "mutants"

    @property
    def page(self) -> Path:
        return self.root / "docs" / "mutants.md"

    def files(self) -> list[str]:
        """The source files that are mutated, relative to the package."""
        every = (str(f.relative_to(self.source)) for f in sorted(self.source.rglob("*.py")))
        return [f for f in every if self.stratum(f) and not within(f, self.left_out)]

    def stratum(self, file: str) -> str | None:
        """The group of packages that a source file belongs to."""
        return next((name for name, folders in self.strata.items() if within(file, folders)), None)

    def test_files(self) -> list[str]:
        """The files of tests that judge mutants, relative to the root."""
        every = (
            str(f.relative_to(self.root)) for f in sorted((self.root / "tests").rglob("test_*.py"))
        )
        return [f for f in every if not within(f, self.tests_left_out)]

    @cached_property
    def state(self) -> str:
        """A hash of the source and of the tests: a verdict holds for one state."""
        folders = (self.root / "src", self.root / "tests")
        files = [f for folder in folders for f in sorted(folder.rglob("*.py"))]
        return digest(f.read_bytes() for f in files if not f.is_relative_to(self.notes))


def within(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or lies in one of them."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def digest(pieces: Iterable[bytes]) -> str:
    """A short hash of several pieces."""
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(hashlib.sha256(piece).digest())
    return whole.hexdigest()[:16]
