"""Bugs in a toy package, planted by the whole machinery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mutants.draws import add_draw
from mutants.project import Project
from mutants.reach import Reach
from mutants.report import excerpts, write_page
from mutants.results import Results
from mutants.session import Session
from mutants.sites import sites
from mutants.stored import SURVIVORS, add_survivors, load


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
    assert Session(toy, count=100).is_complete()


def row(verdict: str, **more: Any) -> dict[str, Any]:
    return {"file": "core/sums.py", "verdict": verdict, "drawn": True, **more}


def test_the_page_has_every_draw_as_it_first_came_out(tmp_path: Path) -> None:
    project = Project(tmp_path, "toy", {"core": ("core",), "other": ("other",)}, (), ())
    project.page.parent.mkdir()
    seven = [row("failed")] * 4 + [row("died"), row("passed"), row("unreached")]
    add_draw(project, 3, [*seven, row("passed", drawn=False)])  # survived an earlier draw: apart
    add_draw(project, 3, [row("failed")] * 7)  # once tests were written for it
    add_draw(project, 3, [row("failed", file="other/a.py")])
    add_draw(project, 4, [row("failed")])
    write_page(project)
    page = project.page.read_text()
    assert "## The latest draws: seeds 3, 4\n" in page
    assert (
        "| core | 6 of 8 (75%, 41% to 93%) |" in page and "| **all** | 7 of 9 (78%," in page
    )  # Wilson's interval, by scipy
    assert "| 3 | 5/7 |  | 5/7 |  |\n| 3 |  | 1/1 | 1/1 |  |\n| 4 | 1/1 |  | 1/1 |  |" in page


def test_survivors_are_on_the_page_until_a_test_is_named_or_their_line_is_gone(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path, "toy", {"core": ("core",)}, (), ())
    project.page.parent.mkdir()
    a, b, c = sites("core/sums.py", b"def f(a):\n    return a + 1, a * 2, a / 3\n")[:3]
    add_survivors(project, [a, b, c], {a.key, b.key, c.key})
    notes = project.notes / SURVIVORS
    notes.write_text(notes.read_text().replace('note = ""', 'note = "Closed: test_it"', 1))
    add_survivors(project, [], {a.key, b.key})
    assert [*load(project, SURVIVORS)] == [a.key, b.key]
    write_page(project)
    page = project.page.read_text()
    assert "Survivors of all draws that a test catches by now: 1." in page
    assert f"- core/sums.py, f: `{b.before}` as `{b.after}`. To be looked at." in page
    assert f"`{a.before}` as" not in page and "Closed" not in page


def test_of_a_long_change_only_what_differs_is_shown() -> None:
    assert excerpts("x < 3", "x <= 3") == ("x < 3", "x <= 3")
    long = "function(a" + 20 * "b" + ", {}c" + 30 * "d" + ")"
    assert excerpts(long.format("x=1, "), long.format("")) == (
        f"...(a{20 * 'b'}, x=1, c{23 * 'd'}...",  # 24 characters before and after
        f"...(a{20 * 'b'}, c{23 * 'd'}...",
    )


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
