"""The page of faults and attacks names tests that exist, and says what became of them."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.runs.test_a" name="test_b[1-[x]]"><properties>
<property name="figure" value="20 of 20 kills"/></properties></testcase>
<testcase classname="tests.runs.test_a" name="test_b[2]"><failure/></testcase>
<testcase classname="tests.runs.test_a" name="test_c"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reliability() -> ModuleType:
    spec = importlib.util.spec_from_file_location("r", ROOT / "docs" / "faults.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_tests_and_they_all_exist(reliability: ModuleType) -> None:
    rows = reliability.rows()
    assert [row["id"] for row in rows] == [
        *(f"F{n}" for n in range(1, 14)),
        *(f"M{n}" for n in range(1, 8)),
        *("A6", "A11"),
    ]
    for test in reliability.all_tests(rows):
        file, name = test.split("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_cases_and_figures_are_read_off_the_results_of_pytest(reliability: ModuleType) -> None:
    assert reliability.read_junit(JUNIT, "abc") == {
        "runs/test_a.py::test_b": {
            "passed": 1,
            "of": 2,
            "figures": ["20 of 20 kills"],
            "commit": "abc",
        },
        "runs/test_a.py::test_c": {"passed": 0, "of": 1, "figures": [], "commit": "abc"},
    }


def test_figures_of_a_row_are_added_up_by_what_they_count(reliability: ModuleType) -> None:
    row = {"tests": ["a::b"], "soak": ["a::c", "a::d"]}
    outcomes = {
        "a::b": {"passed": 2, "of": 2, "figures": ["one: 5 of 5 kills", "two: 4 of 5 kills"]},
        "a::c": {"passed": 1, "of": 3, "figures": ["1,000 of 1,000 kills", "of no form"]},
    }
    assert reliability.summary(row, outcomes) == ["3 of 5 cases", "1,009 of 1,010 kills"]


def test_every_test_has_a_figure_and_all_cases_passed(reliability: ModuleType) -> None:
    outcomes = json.loads(reliability.RESULTS.read_text())
    assert {*reliability.all_tests(reliability.rows())} - {*outcomes} == set(), "not run"
    assert [t for t, one in outcomes.items() if not one["of"] == one["passed"] > 0] == []


def test_the_fuzzers_figures_are_of_a_million_and_nothing_got_through(
    reliability: ModuleType,
) -> None:
    (row,) = [row for row in reliability.rows() if "stored" in row]
    stored = [json.loads((ROOT / "results" / name).read_text()) for name in row["stored"]]
    files, messages, requests = [[*one.values()] for one in stored]
    assert sum(one["inputs"] for one in files + messages) >= 1_000_000
    assert sum(one["requests"] for one in requests) >= 1_000_000
    assert [one for one in files + messages if one["wrong"]] == []
    assert [one for one in requests if one["not allowed"]] == []


def test_the_page_is_that_of_the_stored_results(reliability: ModuleType) -> None:
    assert (ROOT / "docs" / "reliability.md").read_text() == reliability.page()
