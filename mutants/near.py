"""How near a test is to a source file: the tests of a thing are asked about it first."""

from __future__ import annotations

import ast
import re
from functools import cache

from mutants.order import file_of
from mutants.project import Project
from mutants.sites import Site

# how many times its seconds a test is worth
MENTIONS, IMPORTS, NAMED, NEIGHBOUR, STRANGER = 30.0, 6.0, 5.0, 2.0, 1.0
NOTHING: frozenset[str] = frozenset()
SHORTEST = 3  # letters of a name that is looked for in tests


class Nearness:
    """By what a test mentions and its file imports, by its name and cases, and by its folder."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.text = cache(lambda file: (project.root / file).read_text())
        self.words = cache(lambda file: words_of_functions(self.text(file)))
        self.of_file = cache(self._of_file)

    def of(self, test: str, source: str, names: frozenset[str] = NOTHING) -> float:
        """`source` is relative to the package; `names` are those of what is changed in it."""
        near = self.of_file(file_of(test), source)
        if near == IMPORTS and names & self.words(file_of(test)).get(function_of(test), NOTHING):
            return MENTIONS
        return max(near, NAMED) if bears_name(test, source) else near

    def _of_file(self, file: str, source: str) -> float:
        path = source.removesuffix(".py").removesuffix("/__init__")
        module = ".".join((self.project.package, *path.split("/")))
        package, _, name = module.rpartition(".")
        whole = rf"from {re.escape(package)} import (\([^)]*|[^\n(]*)\b{name}\b"
        if f"{module} import " in self.text(file) or re.search(whole, self.text(file)):
            return IMPORTS
        return NEIGHBOUR if file.startswith(f"tests/{source.partition('/')[0]}/") else STRANGER


def names_of(site: Site) -> frozenset[str]:
    """What a test of a changed statement would mention: its function, or what it assigns."""
    parts = [part for part in site.function.split(".") if part and not part.startswith("__")]
    assigned = re.match(r"(\w+)(:.*)? = ", site.line) if site.at_import else None
    names = [*parts[-1:], *([assigned[1]] if assigned else [])]
    return frozenset(name for name in names if len(name) >= SHORTEST)


def words_of_functions(text: str) -> dict[str, frozenset[str]]:
    """By function of a file of tests: the words in it, decorators included."""
    lines = text.splitlines()
    every = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(place.lineno for place in node.decorator_list)])
            own = "\n".join(lines[first - 1 : node.end_lineno])
            every[node.name] = frozenset(re.findall(r"\w+", own))
    return every


def function_of(test: str) -> str:
    return test.partition("[")[0].rpartition("::")[2]


def bears_name(test: str, source: str) -> bool:
    """Whether the file or the case of a test is called after a source file, or after its folder:
    `test_as_ever.py::test_two_rounds[fedamp]` is a test of `methods/fedamp.py`.
    """
    file, _, function = test.lower().partition("::")
    called = f"{file.rpartition('/')[2]} {function.partition('[')[2]}"
    names = (name for name in source.removesuffix(".py").split("/")[1:] if name != "__init__")
    return any(re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", called) for name in names)
