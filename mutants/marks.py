"""Code that notes which of its statements run, in memory that all processes of a copy share.

Tracing doubles the time of the tests; setting a byte before each statement hardly costs any. The
marked code is put where Python keeps compiled files: the source stays as it is, and its lines too.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
from pathlib import Path
from types import CodeType

from mutants.walk import FUNCTIONS

NAME = "__marks__"
MODULE = "mutants_marks"
LOADED = """import mmap
with open({path!r}, "r+b") as file:
    marks = mmap.mmap(file.fileno(), 0)
"""
Place = tuple[str, int]  # a file, relative to the package, and the line where a statement begins


def mark_copy(copy: Path, package: str, files: list[str]) -> list[Place]:
    """Mark files of a copy; the place that each mark stands for."""
    places: list[Place] = []
    for name in files:
        file = copy / "src" / package / name
        marked = _Marker(name, places).visit(ast.parse(file.read_bytes()))
        _store(file, compile(marked, str(file), "exec", dont_inherit=True))
    (copy / "marks").write_bytes(bytes(len(places) + 1))
    (copy / "src" / f"{MODULE}.py").write_text(LOADED.format(path=str(copy / "marks")))
    return places


def _store(file: Path, code: CodeType) -> None:
    """As the compiled form of a file: a header with its time and size, then the code (PEP 552)."""
    compiled, status = Path(importlib.util.cache_from_source(str(file))), file.stat()
    numbers = (0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    header = importlib.util.MAGIC_NUMBER + b"".join(n.to_bytes(4, "little") for n in numbers)
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(header + marshal.dumps(code))


class _Marker(ast.NodeTransformer):
    """Puts a mark before every statement of every function."""

    def __init__(self, file: str, places: list[Place]) -> None:
        self.file, self.places, self.inside = file, places, False

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        start = _prologue(node.body)
        loaded = ast.parse(f"from {MODULE} import marks as {NAME}").body
        node.body[start:start] = loaded
        return ast.fix_missing_locations(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        outer, self.inside = self.inside, self.inside or isinstance(node, FUNCTIONS)
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if self.inside and isinstance(block, list) and not isinstance(node, ast.ClassDef):
                setattr(node, name, self._marked(block))
        self.inside = outer
        return node

    def _marked(self, block: list[ast.stmt]) -> list[ast.stmt]:
        start = _prologue(block)
        return [
            *block[:start],
            *(s for statement in block[start:] for s in (self._mark(statement), statement)),
        ]

    def _mark(self, statement: ast.stmt) -> ast.stmt:
        self.places.append((self.file, statement.lineno))
        mark = ast.parse(f"{NAME}[{len(self.places) - 1}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        return mark


def _prologue(block: list[ast.stmt]) -> int:
    """How many statements have to stay first: a docstring, imports from the future, `global`."""
    for i, statement in enumerate(block):
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (text or future or isinstance(statement, ast.Global | ast.Nonlocal)):
            return i
    return len(block)
