"""Bugs in a toy package, planted by the whole machinery."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.project import Project
from mutants.report import write_page
from mutants.results import Results
from mutants.session import Session
from mutants.sites import sites
from mutants.stored import SURVIVORS, load


def verdicts(toy: Project, **more: int) -> dict[str, str]:
    """By line and change, what became of each mutant."""
    rows = Session(toy, count=100, **more).run().values()
    return {f"{row['line']} | {row['after']}": row["verdict"] for row in rows}


def test_bugs_are_caught_by_the_tests_that_reach_them(
    toy: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (toy.source / "core" / "sums.py").read_bytes()
    actual = verdicts(toy)
    assert actual["return x > LIMIT | x >= LIMIT"] == "failed"
    assert (
        actual["LIMIT = 3 | 4"] == "failed"
    )  # runs at import: planted before the module is loaded
    assert (
        actual["total = sum(values) | max"] == "failed"
    )  # in a fixture, which another test was the first to ask for
    assert actual["return x + 1 | x - 1"] == "unreached"
    assert "passed" in (actual.get("return x * 2 | x / 2"), actual.get("return x * 2 | 3"))
    assert (toy.source / "core" / "sums.py").read_bytes() == before

    assert [entry["function"] for entry in load(toy, SURVIVORS).values()] == ["unseen", "weak"]
    again = Session(toy, seed=1, count=0)
    assert [site.function for site in again.chosen()] == ["unseen", "weak"]

    monkeypatch.setattr(
        "mutants.session.Worker", None
    )  # nothing is left to be planted, so no process is needed
    rows = Session(toy, count=100).run()
    assert len(rows) == len(actual)
    write_page(toy, 0, rows)
    assert "| core | 4 | 6 | 67% | 30% to 90% | 1 | 0 |" in toy.page.read_text()


def test_an_interrupted_call_is_taken_up_where_it_ended(toy: Project) -> None:
    tests = "from toy.core.sums import over\ndef test_it():\n    assert over(4)\n"
    (toy.root / "tests" / "test_sums.py").write_text(tests)
    assert len(verdicts(toy)) == len(Session(toy, count=100).chosen())
    lines = (toy.cache / "results.jsonl").read_text().splitlines()
    (toy.cache / "results.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert len(verdicts(toy)) == len(lines)
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
