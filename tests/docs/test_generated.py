"""What the documentation takes from the code is up to date."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from fedblocks.methods import METHODS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_page_with_its_plan_as_it_is(generate: ModuleType, name: str) -> None:
    text = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    assert generate.method_page(name) == text, "run python docs/generate.py"
    assert "## Options" in text and "## Deviations" in text


def test_the_table_of_the_study_is_that_of_its_results(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "methods" / "hidden-groups.md").read_text() == generate.study()


@pytest.mark.parametrize("page", ["architecture.md", "methods/pfedmb.md"])
def test_the_table_of_starts_is_that_of_its_results(generate: ModuleType, page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert generate.starts_table() in text and generate.with_starts(text) == text


def test_the_tables_of_adapters_are_those_of_their_results(generate: ModuleType) -> None:
    page = (generate.PAGES.parent / "adapters.md").read_text()
    assert generate.with_adapter_studies(page) == page
    assert "| 48 tokens, float32 |" in page


def test_the_page_of_nets_is_that_of_the_zoo(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "nets.md").read_text()
    assert page == generate.nets(), "run python docs/generate.py"
    assert "| GRU | right |" in page and "| a frozen layer | refused |" in page


@pytest.mark.parametrize("page", ["python", "commands"])
def test_the_reference_lists_its_names_before_the_site_is_built(
    generate: ModuleType, page: str
) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    assert generate.with_names(page) == text, "run python docs/generate.py"
    assert {"python": "`runs.python`: resume, run", "commands": "`fedblocks compare`"}[page] in text


def test_the_table_of_methods_lists_all_with_their_checks() -> None:
    rows = (ROOT / "docs" / "methods" / "index.md").read_text()
    counts = json.loads((ROOT / "docs" / "methods" / "checks.json").read_text())
    for name in METHODS:
        assert f"| [{name}]({name}.md) |" in rows
        passed, known = map(int, counts[name].split("/"))
        assert passed == known and f"| {counts[name]} |" in rows


@pytest.mark.soak
def test_the_table_of_methods_is_measured_as_it_stands(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "methods" / "index.md").read_text() == generate.index()


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for link in _links(page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


def _links(text: str) -> list[str]:
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    actual = re.findall(r"\]\(([^)#\s]+)", prose)
    return [link for link in actual if "://" not in link]
