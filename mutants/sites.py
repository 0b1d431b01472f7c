"""Where small bugs can be planted in a file; what names one outlives moving and formatting."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from mutants.operators import OPERATORS
from mutants.walk import Place, walk

OPEN = (ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Tuple)
PRAGMA = "# no mutant: "  # at the end of a line, with the reason


@dataclass(frozen=True)
class Site:
    """One small bug that can be planted."""

    file: str  # relative to the package
    function: str  # its qualified name, or "" in the body of the module
    line: str  # the statement as Python itself would print it, without what it encloses
    operator: str
    before: str
    after: str
    ordinal: int  # among those that are the same in everything else
    lines: tuple[int, int]  # first and last line of the statement
    span: tuple[int, int]  # of the bytes that are replaced
    text: str  # what they are replaced with
    at_import: bool  # runs when the module is loaded

    @property
    def identity(self) -> dict[str, str | int]:
        """What names this mutant wherever its line goes."""
        return {
            k: v for k, v in asdict(self).items() if k not in ("lines", "span", "text", "at_import")
        }

    @property
    def key(self) -> str:
        return identity_key(self.identity)

    def planted(self, source: bytes) -> bytes:
        """The source with this bug; every line keeps its number."""
        return source[: self.span[0]] + self.text.encode() + source[self.span[1] :]


def identity_key(identity: dict[str, str | int]) -> str:
    return hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:12]


def sites(file: str, source: bytes) -> list[Site]:
    """All mutants of one file, in the order of the file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    exempt = {i + 1 for i, line in enumerate(source.decode().splitlines()) if PRAGMA in line}
    seen: Counter[str] = Counter()
    every = []
    for node, place in walk(ast.parse(source), Place()):
        for site in _changes(file, source, starts, node, place):
            if not exempt.intersection(range(site.lines[0], site.lines[1] + 1)):
                every.append(replace(site, ordinal=seen[site.key]))
                seen[site.key] += 1
    return every


def _changes(
    file: str, source: bytes, starts: list[int], node: ast.AST, place: Place
) -> Iterator[Site]:
    for name, operator in OPERATORS.items():
        for old, new in operator(node):
            first, last = (starts[row - 1] + column for row, column in _corners(old))
            breaks = "\n" * source[first:last].count(b"\n")
            bracketed = isinstance(old, OPEN) or (breaks and isinstance(old, ast.expr))
            text = f"({new}{breaks})" if bracketed else new + breaks
            before = ast.unparse(old)
            if new != before:
                where = (place.lines, (first, last), text, place.at_import)
                yield Site(file, place.function, place.line, name, before, new, 0, *where)


def _corners(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
