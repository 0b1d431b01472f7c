"""The page of faults and attacks names tests that exist, and says what became of them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.runs.test_a" name="test_b[1-[x]]"><properties>
<property name="figure" value="20 kills"/></properties></testcase>
<testcase classname="tests.runs.test_a" name="test_b[2]"><failure/></testcase>
<testcase classname="tests.runs.test_a" name="test_c"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reliability() -> ModuleType:
    spec = importlib.util.spec_from_file_location("r", ROOT / "docs" / "reliability.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_tests_and_they_all_exist(reliability: ModuleType) -> None:
    rows = reliability.rows()
    assert [row["id"] for row in rows] == [
        *(f"F{n}" for n in range(1, 13)),
        *(f"M{n}" for n in range(1, 8)),
        *("A6", "A11"),
    ]
    for test in (test for row in rows for test in row["tests"]):
        file, name = test.split("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_cases_and_figures_are_read_off_the_results_of_pytest(reliability: ModuleType) -> None:
    assert reliability.read_junit(JUNIT) == {
        "runs/test_a.py::test_b": {"passed": 1, "of": 2, "figures": ["20 kills"]},
        "runs/test_a.py::test_c": {"passed": 0, "of": 1, "figures": []},
    }


def test_the_page_is_that_of_the_stored_results(reliability: ModuleType) -> None:
    assert (ROOT / "docs" / "reliability.md").read_text() == reliability.page()
