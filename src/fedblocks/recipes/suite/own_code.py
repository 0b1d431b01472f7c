"""The files that a method of somebody's own is made of: its own, and those that they import."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
PACKAGE = Path(__file__).resolve().parents[2]
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


def own_files(files: Iterable[Path]) -> set[Path]:
    """Some files, what they import, and so on; of installed packages only the files' own."""
    known: set[Path] = set()
    left = [file.resolve() for file in files]
    while left:
        file = left.pop()
        if file not in known:
            known.add(file)
            left += _imports(file)
    return known


def _imports(file: Path) -> Iterator[Path]:
    with suppress(OSError, SyntaxError, ValueError):
        package = _package_of(file)
        top = package.partition(".")[0]
        for node in ast.walk(ast.parse(file.read_bytes())):
            for name in _names(node, package):
                paths = (_file_of(one, top) for one in _with_parents(name))
                yield from (path for path in paths if path is not None)


def _names(node: ast.AST, package: str) -> list[str]:
    """What a statement imports; what it takes out of a module may be a module, too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    try:
        module = resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # outside of any package
        return []
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


def _with_parents(name: str) -> list[str]:
    """A module and the packages around it, whose __init__.py is run before it."""
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def _file_of(name: str, own: str) -> Path | None:
    """Where a module lies, if it is of the package `own`, or of no installed one."""
    top = name.partition(".")[0]
    with suppress(Exception):  # to look into a package imports it, which may fail in any way
        spec = find_spec(name) if top == own or not _is_installed(find_spec(top)) else None
        if spec is not None and spec.has_location and spec.origin:
            return Path(spec.origin).resolve()
    return None


def _is_installed(spec: ModuleSpec | None) -> bool:
    """Or not there at all; a folder without __init__.py has no file of its own."""
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        return True
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    paths = [Path(place).resolve() for place in places or [] if place]
    roots = (STANDARD, PACKAGE)
    return any(path.is_relative_to(root) for path in paths for root in roots) or any(
        INSTALLED & set(path.parts) for path in paths
    )


def _package_of(file: Path) -> str:
    """The package that a file is a module of; most are of none."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None and Path(path).name == file.name and Path(path).resolve() == file:
            return module.__package__ or ""
    return ""
