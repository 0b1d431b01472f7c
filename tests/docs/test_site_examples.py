"""Examples of the tutorial, the how-to pages, the concepts and the FAQ run as they
stand, from top to bottom.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.cli import main
from fedblocks.core.losses import LOSSES
from fedblocks.core.metrics import METRICS
from fedblocks.data import DATASETS
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "index.md",
    "adapters.md",
    "concepts.md",
    "tasks.md",
    "training.md",
    "faq.md",
    "comparison.md",
]
PAGES += sorted(
    str(page.relative_to(DOCS))
    for folder in ("tutorial", "howto")
    for page in DOCS.glob(f"{folder}/*.md")
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN_ONLY = {"text"}  # whatever can be executed must be


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, one thread, and registries that forget what an example adds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registries: list[dict[str, Any]] = [METHODS, NETS, DATASETS, LOSSES, METRICS]
    before, threads = [dict(known) for known in registries], torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for known, old in zip(registries, before, strict=True):
        known.clear()
        known.update(old)


class Story:
    """One page: its blocks in turn, with files and Python names that later blocks may use."""

    def __init__(self, page: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.page, self.capsys, self.printed = page, capsys, ""
        self.names: dict[str, object] = {"__name__": "example"}

    def tell(self, kind: str, text: str) -> None:
        {"python": self.python, "sh": self.shell, "toml": self.file, "output": self.expect}[kind](
            text
        )
        self.printed += self.capsys.readouterr().out

    def python(self, text: str) -> None:
        if text.startswith("# file: "):
            self.file(text)
            return
        exec(compile(text, self.page, "exec"), self.names)

    def file(self, text: str) -> None:
        """Writes the block to the file that its first line names."""
        first, _, rest = text.partition("\n")
        assert first.startswith("# file: "), (
            f"{self.page}: the first line must name the file: {first}"
        )
        Path(first.removeprefix("# file: ")).write_text(rest)

    def shell(self, text: str) -> None:
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedblocks"]:
                self.command(words[1:])
            elif words[:1] == ["python"]:
                runpy.run_path(words[1], run_name="__main__")
            else:
                assert not words, f"{self.page}: the tests cannot run {line}"

    def command(self, words: list[str]) -> None:
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert not stop.value.code, (
            f"{self.page}: {words} ended with {stop.value.code}: {self.capsys.readouterr().err}"
        )

    def expect(self, text: str) -> None:
        """Every line of an output block was printed before, up to spaces; `...` stands
        for anything.
        """
        printed = "\n".join(" ".join(line.split()) for line in self.printed.splitlines())
        for line in text.splitlines():
            pattern = r".*".join(re.escape(part) for part in " ".join(line.split()).split("..."))
            assert re.search(pattern, printed), (
                f"{self.page}: nothing printed {line!r}, but:\n{printed}"
            )


@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for package in re.findall(r"<!-- needs: (\w+) -->", text):
        pytest.importorskip(
            package, reason=f"{page} shows what the package {package} is needed for"
        )
    story = Story(page, capsys)
    for kind, block in FENCE.findall(text):
        if kind not in SHOWN_ONLY:
            story.tell(kind, block)


def test_a_block_without_a_language_would_not_be_executed_so_there_is_none() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert all(fences[::2]), f"{page} has a block without a language"


def test_the_method_of_the_tutorial_has_at_most_30_lines() -> None:
    page = (DOCS / "tutorial" / "own-method.md").read_text(encoding="utf-8")
    (method,) = (
        block for _, block in FENCE.findall(page) if block.startswith("# file: softhead.py")
    )
    assert len([line for line in method.splitlines()[1:] if line.strip()]) <= 30
