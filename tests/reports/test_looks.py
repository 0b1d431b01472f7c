"""How a report looks, apart from its numbers: as it was when somebody last looked at it.

After a change on purpose, delete looks.json, run these tests twice, look at a report, and commit
the new file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.core.blocks import Private
from fedblocks.core.parts import Value
from fedblocks.reports.html.figures import Chart, Look, axes, plain, quantile, rgba
from fedblocks.reports.html.gather import Story
from fedblocks.reports.html.labels import _private_names
from fedblocks.reports.html.page import Content, embed, format_cell, policy

APPROVED = Path(__file__).parent / "looks.json"
NUMBERS = ("x", "y", "z", "text", "zmin", "zmax")  # of a trace: test_numbers.py has them


def look_of(chart: Chart) -> dict[str, Any]:
    traces = [{k: v for k, v in trace.items() if k not in NUMBERS} for trace in chart.data]
    note = chart.note if "plane" not in chart.id else chart.note.partition("(")[0]
    words = {"title": chart.title, "note": note, "columns": list(chart.columns)}
    return {"id": chart.id, **words, "layout": chart.layout, "traces": traces, "more": chart.more}


def test_charts_look_as_they_were_approved(story: Story) -> None:
    content = Content.of(story)
    actual = {
        "results": [look_of(chart) for chart in content.results],
        "maps": [[look_of(chart) for chart in row] for row in content.maps],
    }
    if not APPROVED.exists():
        APPROVED.write_text(json.dumps(actual, indent=1, ensure_ascii=False) + "\n")
        pytest.fail("looks.json was written: look at a report, then commit it")
    assert actual == json.loads(APPROVED.read_text()), "see the first lines of this file"
    assert [chart.id for chart in content.charts] == [
        one["id"] for one in (*actual["results"], *actual["maps"][0])
    ]
    assert [data["id"] for data in content.script_data()] == [c.id for c in content.charts]
    assert all(chart.steps == [] for chart in content.slim().charts)


def test_a_slim_chart_says_how_many_rows_it_leaves_out() -> None:
    chart = Chart.of("a", "t", "n", ["x"] * 4, [[i] * 4 for i in range(700)], data=[], layout={})
    assert (len(chart.rows), chart.more) == (500, 200)  # 2,000 cells of 4 columns
    slim = chart.slim()
    assert (slim.rows, slim.more) == ([[i] * 4 for i in range(20)], 680)
    assert (slim.id, slim.title, slim.note) == ("a", "t", "n")
    few = Chart.of("a", "t", "n", ["x"] * 900, [[i] for i in range(19)], data=[], layout={})
    assert (len(few.rows), few.more, few.slim().more) == (19, 0, 0)
    wide = Chart.of("a", "t", "n", ["x"] * 900, [[i] for i in range(25)], data=[], layout={})
    assert (len(wide.rows), wide.more, wide.slim().more) == (20, 5, 5)


def test_looks_change_their_colour_first_then_dash_and_symbol() -> None:
    assert Look.number(0) == Look("#0072B2", "solid", "circle")
    assert Look.number(6) == Look("#7F7F7F", "solid", "star")
    assert Look.number(7) == Look("#0072B2", "dash", "square")
    assert Look.number(28) == Look("#0072B2", "solid", "cross")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.12345, "0.123"),
        (999.9994, "999.999"),
        (1000.0, "1,000"),
        (-12345.6, "-12,346"),
        (7, "7"),
        (1234567, "1234567"),
        ("a", "a"),
    ],
)
def test_cells_are_short(value: object, shown: str) -> None:
    assert format_cell(value) == shown


def test_small_helpers_do_what_they_say() -> None:
    assert rgba("#0072B2", 0.18) == "rgba(0,114,178,0.18)"
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.1, 0.25, 0.5, 1.0)] == [
        1.0,
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert plain("a" * 40) == "a" * 40 and plain("a" * 41) == "a" * 39 + "…"
    assert plain("a\tb", 2) == "a…" and plain("abcd", 4) == "abcd"
    assert axes("x", "y", height=3)["height"] == 3
    assert embed({"a": "</&>"}) == '{"a":"\\u003c/\\u0026\\u003e"}'
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))


def test_only_a_live_page_may_ask_its_server() -> None:
    # printf a | openssl dgst -sha256 -binary | base64
    digest = "ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs="
    assert policy("a") == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    assert "img-src data: blob:; connect-src 'self'; base-uri" in policy("a", live=True)


def test_numbers_of_a_block_are_named_by_their_place() -> None:
    names = lambda value: _private_names(Private(Value(torch.zeros(value))))
    assert names(()) == ["value"]
    assert names((2,)) == ["0", "1"]
    assert names((2, 2)) == ["0,0", "0,1", "1,0", "1,1"]
