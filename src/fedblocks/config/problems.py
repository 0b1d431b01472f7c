"""What is wrong with a configuration: every problem at once, each with its place and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError

Path = tuple[str, ...]  # of a key: ("method", "lr")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    path: Path
    message: str
    fix: str
    value: str = ""  # what was given, where that is what is wrong

    def describe(self, source: Source) -> tuple[str, str]:
        """Place and message, and the fix."""
        return f"{source.label(self.path, self.value)}: {self.message}", self.fix


class ConfigError(UserError):
    """A configuration with problems."""

    def __init__(self, problems: Sequence[Problem], source: Source) -> None:
        self.problems = sorted(problems, key=lambda p: source.order(p.path))
        shown = [problem.describe(source) for problem in self.problems]
        if len(shown) == 1:
            super().__init__(*shown[0])
        else:
            lines = [f"{message}\n  fix: {fix}" if fix else message for message, fix in shown]
            super().__init__("\n".join([f"{len(shown)} problems in the configuration", *lines]))
