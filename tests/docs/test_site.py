"""The documentation site builds without a warning, needs no network, and none of its
links is broken.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedblocks.config.model import Config
from fedblocks.methods import METHODS

ROOT = Path(__file__).parents[2]
needs_sphinx = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("sphinx", "myst_parser", "furo", "jupytext")
    ),
    reason="the site needs Sphinx: pip install 'fedblocks[docs]'",
)


@pytest.fixture(scope="module")
def links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_links", ROOT / "docs" / "check_links.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails here."""
    out = tmp_path_factory.mktemp("site")
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(out / "trees"),
    ]
    done = subprocess.run(
        [*words, str(ROOT / "docs"), str(out / "html")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


@needs_sphinx
def test_every_link_of_the_site_leads_somewhere_and_pages_load_nothing_from_elsewhere(
    site: Path, links: ModuleType
) -> None:
    assert len(list(site.rglob("*.html"))) > 60
    assert links.problems(site) == []


@needs_sphinx
def test_the_reference_has_every_field_method_and_command(site: Path) -> None:
    fields, choices, commands = (
        text_of(site / "reference" / f"{name}.html")
        for name in ("configuration", "choices", "commands")
    )
    assert all(name in fields for name in Config.model_fields)
    assert all(name in choices for name in METHODS)
    assert "fedblocks data preview" in commands and "Train as a configuration describes" in commands
    assert "made:" not in fields + choices + commands


@needs_sphinx
def test_the_picture_of_a_round_is_in_its_page_and_takes_the_colours_of_the_theme(
    site: Path,
) -> None:
    page = (site / "concepts.html").read_text(encoding="utf-8")
    assert '<svg class="round"' in page and "var(--color-foreground-primary" in page
    assert re.search(r'role="img" aria-label="One round: ', page)


@needs_sphinx
def test_a_page_that_the_menu_does_not_name_is_in_it_all_the_same(site: Path) -> None:
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in menu or page.stem == "index"


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


PAGE = '<html><head>{head}</head><body><h1 id="top">x</h1>{body}</body></html>'


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        (
            "",
            '<a href="b.html#there">x</a><a href="#top">x</a><a href="https://example.org/a">x</a>',
            [],
        ),
        ("", '<a href="c.html">x</a>', ["a.html: c.html leads to no file"]),
        ("", '<a href="b.html#gone">x</a>', ["a.html: b.html#gone leads to no place on that page"]),
        ("", '<a href="#gone">x</a>', ["a.html: #gone leads to no place on that page"]),
        (
            "",
            '<a href="http://example.org">x</a>',
            ["a.html: http://example.org is not an https address"],
        ),
        ("", '<a href="https:example">x</a>', ["a.html: https:example is not an https address"]),
        (
            '<script src="//example.org/x"></script>',
            "",
            ["a.html: loads //example.org/x from elsewhere"],
        ),
        ("", '<img src="gone.png">', ["a.html: gone.png leads to no file"]),
    ],
)
def test_a_broken_link_is_found(
    links: ModuleType, tmp_path: Path, head: str, body: str, said: list[str]
) -> None:
    (tmp_path / "a.html").write_text(PAGE.format(head=head, body=body))
    (tmp_path / "b.html").write_text(PAGE.format(head="", body='<p id="there">x</p>'))
    assert links.problems(tmp_path) == said


def test_a_folder_without_pages_is_no_site(links: ModuleType, tmp_path: Path) -> None:
    assert links.problems(tmp_path) == [f"{tmp_path} holds no page"]
