"""Cells, tables, JSON and small bars, as they are printed."""

from __future__ import annotations

import json
from io import StringIO

import pytest

from fedblocks.cli.output import PLAIN_WIDTH, clean, show_error, show_json, show_table
from fedblocks.cli.progress import Watch, sparkline
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.storage.record import Note

Capture = pytest.CaptureFixture[str]


def test_what_is_no_number_is_null_at_any_depth(capsys: Capture) -> None:
    show_json({"a": [1.5, float("nan"), (float("inf"), -float("inf"))], 3: {"b": None}, "c": "x"})
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"a": [1.5, None, [None, None]], "3": {"b": None}, "c": "x"}


def test_a_table_has_headings_and_numbers_stand_to_the_right(capsys: Capture) -> None:
    rows = [{"n": 1.23456, "w": "word", "b": True}, {"n": 12, "w": None, "b": False}, {"w": "[x]"}]
    show_table({"n": "number", "w": "words", "b": "is"}, rows, title="What")
    title, *lines = [line for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert title.strip() == "What" and [line.split() for line in lines] == [
        ["number", "words", "is"],
        ["1.235", "word", "yes"],
        ["12", "-", "no"],
        ["-", "[x]", "-"],
    ]
    ends = [lines[0].index("number") + 6, *(lines[i].index(t) + len(t) for i, t in [(1, "1.235")])]
    assert len({*ends, lines[2].index("12") + 2}) == 1
    assert len({line.index(word) for line, word in zip(lines, ("words", "word", "-"))}) == 1


def test_a_long_cell_is_folded_and_nothing_of_it_lost(capsys: Capture) -> None:
    show_table({"w": "words"}, [{"w": "x" * (PLAIN_WIDTH + 40)}])
    out = capsys.readouterr().out
    assert out.count("x") == PLAIN_WIDTH + 40 and max(map(len, out.splitlines())) <= PLAIN_WIDTH


def test_control_characters_are_spelt_and_lines_stay(capsys: Capture) -> None:
    assert clean("a\x1b[1m\tb\nc") == "a\\x1b[1m\\tb\nc"
    show_error("wrong\x07", "")
    assert capsys.readouterr().err == "error: wrong\\x07\n"
    show_error("wrong", "mend it")
    assert capsys.readouterr().err == "error: wrong\n  fix: mend it\n"


def test_bars_go_from_the_lowest_to_the_highest_of_the_last_values() -> None:
    assert sparkline([0.0, 1.0]) == "▁█" and sparkline([]) == "" and sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([9.0, 0.0, 1.0], most=2) == "▁█" and len(sparkline([1.0] * 50)) == 20


@pytest.mark.parametrize(("quiet", "lines"), [(False, 3), (True, 1)])
def test_a_quiet_watch_shows_warnings_only(quiet: bool, lines: int) -> None:
    file = StringIO()
    with Watch("title", quiet, file) as watch:
        watch.on_round(RoundDone(1, 3, 4, 0.5, 1000, 2000, 0, {"validation": 0.5}))
        watch.on_note(Note("a remark"))
        watch.on_note(Note("take care", "warning"))
    printed = file.getvalue().splitlines()
    assert len(printed) == lines and printed[-1] == "warning: take care"
    assert quiet or (printed[0].startswith("title  ") and printed[1] == "info: a remark")
