"""Words: names that say nothing are banned, and a class name means one thing (docs/glossary.md)."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {"told", "found", "hope", "met", "made", "given"}
FILES = sorted(path for folder in ("src", "examples") for path in (ROOT / folder).rglob("*.py"))


def banned_names(source: str) -> set[str]:
    """The banned names that code gives to variables, parameters, attributes, functions
    or classes.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            names.add(node.arg)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names & BANNED


def test_no_name_says_only_that_something_was_found() -> None:
    assert len(FILES) > 500  # or they were looked for elsewhere
    names = {str(path.relative_to(ROOT)): banned_names(path.read_text()) for path in FILES}
    assert {path: banned for path, banned in names.items() if banned} == {}


def test_a_class_name_exists_once_in_the_package() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def f(told): ...",
        "f(given=1)",
        "def made(): ...",
        "self.met = 1",
        "class hope: ...",
    ],
)
def test_a_banned_name_is_seen(source: str) -> None:
    assert banned_names(source)
