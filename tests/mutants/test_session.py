"""Bugs in a toy package, planted by the whole machinery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mutants.project import Project
from mutants.reach import Reach
from mutants.report import write_page
from mutants.results import Results
from mutants.session import Session
from mutants.sites import sites
from mutants.stored import SURVIVORS, load


def verdicts(toy: Project) -> dict[str, tuple[str, bool]]:
    """By function: what became of its mutants, and whether modules were loaded anew."""
    rows = Session(toy, count=100).run().values()
    return {row["function"]: (row["verdict"], row["fresh"]) for row in rows}


def test_bugs_are_caught_by_the_tests_that_reach_them(
    toy: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (toy.source / "core" / "sums.py").read_bytes()
    assert verdicts(toy) == {
        "": ("failed", True),  # a constant of the module
        "over": ("failed", False),
        "half": ("failed", False),  # of a fixture that another test asks for first
        "mean": ("failed", False),  # in a process that a test starts
        "unseen": ("unreached", False),
        "weak": ("passed", False),
    }
    assert (toy.source / "core" / "sums.py").read_bytes() == before
    assert (
        Reach(toy).failed == set()
    )  # two of the tests try to do harm outside, and must not succeed
    assert not (toy.root / "harm").exists()

    assert [entry["function"] for entry in load(toy, SURVIVORS).values()] == ["unseen", "weak"]
    again = Session(toy, seed=1, count=0)
    assert [site.function for site in again.chosen()] == ["unseen", "weak"]

    monkeypatch.setattr("mutants.session.Worker", None)  # all is known: no process is needed
    rows = Session(toy, count=100).run()
    assert len(rows) == 7  # one for each statement
    write_page(toy, {0: list(rows.values()), 1: list(again.verdicts().values())})
    page = toy.page.read_text()
    assert "## Seed 0: 7 bugs" in page and "## Seed 1: 0 bugs" in page
    assert "| core | 5 | 7 | 71% | 36% to 92% | 1 | 0 |" in page
    assert "Survivors of earlier draws: 0 of 0 are caught now." in page  # seed 0 has drawn them
    (toy.notes / "history.md").write_text("It was worse once.\n")
    write_page(toy, {1: list(again.verdicts().values())})
    assert "It was worse once." in toy.page.read_text()
    assert "| **all** | 0 | 0 | - | 0% to 100% | 0 | 0 |" in toy.page.read_text()
    assert "Survivors of earlier draws: 0 of 2 are caught now." in toy.page.read_text()


def test_an_interrupted_call_is_taken_up_where_it_ended(toy: Project) -> None:
    tests = "from toy.core.sums import over\ndef test_it():\n    assert over(4)\n"
    (toy.root / "tests" / "test_sums.py").write_text(tests)
    Session(toy, count=100).run()
    lines = (toy.cache / "results.jsonl").read_text().splitlines()
    (toy.cache / "results.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert len(Session(toy, count=100).run()) == len(lines) == 7
    assert len((toy.cache / "results.jsonl").read_text().splitlines()) == len(lines)


def test_a_survivor_is_planted_again_only_if_more_tests_may_be_asked(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", "now")
    source = b"def f(a):\n    a += 1\n    a += 1\n    a += 1\n    a += 1\n"
    rows = {"passed": [2, 5], "unreached": [0, 0], "failed": [2, 5], "timeout": [1, 5]}
    for site, (verdict, tests) in zip(sites("a.py", source)[::2], rows.items()):
        results.add(site, 20.0, {"verdict": verdict, "tests": tests})
    assert len(results.settled(20.0)) == 4
    assert {results.latest()[key]["verdict"] for key in results.settled(21.0)} == rows.keys() - {
        "passed"
    }
    assert Results(tmp_path / "results.jsonl", "later").latest() == {}


def test_only_the_packages_that_are_named_are_mutated(toy: Project) -> None:
    assert Session(toy, count=100, only=("other",)).chosen() == []
    assert len(Session(toy, count=100, only=("core",)).chosen()) == 7


def test_the_test_that_caught_a_bug_is_asked_first_in_the_next_state(toy: Project) -> None:
    tests = "from toy.core.sums import over\ndef test_a(): over(4)\ndef test_b(): over(4)\n"
    strict = "def test_z():\n    assert over(4) and not over(3)\n"
    file = toy.root / "tests" / "test_sums.py"
    file.write_text(tests + strict)
    before = {row["key"]: row for row in Session(toy, count=100).run().values()}
    file.write_text("# another state\n" + tests + strict)
    after = Session(replace(toy), count=100).run()
    caught = {key for key, row in before.items() if row["verdict"] == "failed"}
    assert caught and all(before[key]["tests"] == [3, 3] for key in caught)
    assert all(after[key]["tests"] == [1, 3] for key in caught)
    assert all(after[key]["test"] == "tests/test_sums.py::test_z" for key in caught)
