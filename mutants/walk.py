"""A walk through the syntax of a file, past everything that is not worth a bug."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mutants.call_operators import GUARDS

QUIET = {
    "print",
    "warn",
    "Help",
    "Option",
    "Argument",
    "Field",
    "info",
    "debug",
    "warning",
    "cast",
    "TypeVar",
    "sleep",
}
UNSEEN = {"__repr__", "__str__", "__all__", "TYPE_CHECKING", "__name__"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Place:
    """Where the walk through a file stands."""

    function: str = ""
    line: str = ""
    lines: tuple[int, int] = (0, 0)
    at_import: bool = True

    def inside(self, node: ast.AST) -> Place:
        """In the body of a function or class."""
        name = ".".join(filter(None, (self.function, getattr(node, "name", ""))))
        return replace(
            self, function=name, at_import=self.at_import and isinstance(node, ast.ClassDef)
        )


def _header(statement: ast.stmt) -> tuple[str, tuple[int, int]]:
    """A statement without the statements it encloses: its text, its first and last line."""
    bare = copy.copy(statement)
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    if isinstance(body, list):
        last = max(first, body[0].lineno - 1)
        for name in ("body", "orelse", "finalbody", "handlers", "decorator_list"):
            if hasattr(bare, name):
                setattr(bare, name, [ast.Pass()] if name == "body" else [])
    text = ast.unparse(bare)
    return (text.splitlines()[0] if isinstance(body, list) else text), (first, last)


def walk(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Every node that may be changed, parents first."""
    if _exempt(node):
        return
    if isinstance(node, ast.stmt):
        line, lines = _header(node)
        place = replace(place, line=line, lines=lines)
    yield node, place
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "pattern", "bases"):
            continue
        enters = name == "body" and isinstance(node, (*FUNCTIONS, ast.ClassDef))
        below = place.inside(node) if enters else place
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (
                name == "type" and isinstance(node, ast.ExceptHandler)
            ):
                yield from walk(child, below)


def _exempt(node: ast.AST) -> bool:
    """Messages, checks for readers, what only guards, and what never runs."""
    if isinstance(node, ast.keyword):
        return node.arg in GUARDS
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in QUIET or name.endswith(("Error", "Warning"))
    if isinstance(node, ast.Expr):
        return _exempt(node.value) or isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If | ast.Assign):
        named = node.test if isinstance(node, ast.If) else node.targets[0]
        return any(isinstance(n, ast.Name) and n.id in UNSEEN for n in ast.walk(named))
    return isinstance(node, FUNCTIONS) and node.name in UNSEEN
