"""A bug in a copy of the source, and in the functions of a process that has loaded it already."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import CodeType, FunctionType

from mutants.project import Project
from mutants.sites import Site

NOT_COPIED = {"runs", "carried", "build", "dist"}
TICKS = count(1)  # a mutant's file has a time of its own: no compiled file of another fits it


def copied(project: Project, name: str) -> Path:
    """A fresh copy of the checkout; mutants are planted there and nowhere else."""
    folder = project.cache / name
    shutil.rmtree(folder, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for item in project.root.iterdir():
        if item.name.startswith(".") or item.name in NOT_COPIED:
            continue
        if item.is_dir():
            shutil.copytree(item, folder / item.name, ignore=skip)
        else:
            shutil.copy2(item, folder / item.name)
    return folder


class Planted:
    """While this is entered, the file of a copy has the bug, for every process that imports it."""

    def __init__(self, file: Path, site: Site) -> None:
        self.file, self.site, self.source = file, site, file.read_bytes()
        self.time = file.stat().st_mtime

    def __enter__(self) -> None:
        self.file.write_bytes(self.site.planted(self.source))
        tick = self.time + 60 * next(TICKS)
        os.utime(self.file, (tick, tick))

    def __exit__(self, *_: object) -> None:
        self.file.write_bytes(self.source)
        os.utime(self.file, (self.time, self.time))


def functions_of(folder: Path) -> dict[str, list[FunctionType]]:
    """Every living function whose code comes from a folder, by file."""
    gc.unfreeze()  # what the tests have frozen is not listed
    every: dict[str, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(
            f"{folder}{os.sep}"
        ):
            every.setdefault(thing.__code__.co_filename, []).append(thing)
    return every


def replace_code(functions: list[FunctionType], file: str, old: bytes, new: bytes) -> int:
    """Give living functions the code of the mutant; how many. ValueError: one cannot be changed."""
    compiled = (compile(text, file, "exec", dont_inherit=True) for text in (old, new))
    before, after = map(_codes, compiled)
    other = {
        code: after[key] for key, code in before.items() if key in after and after[key] != code
    }
    changes = [(f, other[f.__code__]) for f in functions if f.__code__ in other]
    for function, code in changes:
        function.__code__ = code
    return len(changes)


def is_loaded(file: str) -> bool:
    return any(getattr(module, "__file__", None) == file for module in list(sys.modules.values()))


def _codes(module: CodeType) -> dict[tuple[str, int, int], CodeType]:
    """Every piece of code in a module, by its name, its line and its turn among equals."""
    seen: Counter[tuple[str, int]] = Counter()
    codes = {}
    for code in _nested(module):
        place = (code.co_qualname, code.co_firstlineno)
        codes[*place, seen[place]] = code
        seen[place] += 1
    return codes


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
