"""How near a test is to a source file: the tests of a thing are asked about it first."""

from __future__ import annotations

import re
from functools import cache

from mutants.order import file_of
from mutants.project import Project

# how many times its seconds a test is worth
IMPORTS, NAMED, NEIGHBOUR, STRANGER = 6.0, 5.0, 2.0, 1.0


class Nearness:
    """By what the file of a test imports, by its name and cases, and by its folder."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.text = cache(lambda file: (project.root / file).read_text())
        self.of_file = cache(self._of_file)

    def of(self, test: str, source: str) -> float:
        """`source` is relative to the package."""
        near = self.of_file(file_of(test), source)
        return max(near, NAMED) if bears_name(test, source) else near

    def _of_file(self, file: str, source: str) -> float:
        path = source.removesuffix(".py").removesuffix("/__init__")
        module = ".".join((self.project.package, *path.split("/")))
        package, _, name = module.rpartition(".")
        whole = rf"from {re.escape(package)} import (\([^)]*|[^\n(]*)\b{name}\b"
        if f"{module} import " in self.text(file) or re.search(whole, self.text(file)):
            return IMPORTS
        return NEIGHBOUR if file.startswith(f"tests/{source.partition('/')[0]}/") else STRANGER


def bears_name(test: str, source: str) -> bool:
    """Whether the file or the case of a test is called after a source file, or after its folder:
    `test_as_ever.py::test_two_rounds[fedamp]` is a test of `methods/fedamp.py`.
    """
    file, _, function = test.lower().partition("::")
    called = f"{file.rpartition('/')[2]} {function.partition('[')[2]}"
    names = (name for name in source.removesuffix(".py").split("/")[1:] if name != "__init__")
    return any(re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", called) for name in names)
