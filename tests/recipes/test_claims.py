"""Verdicts on what papers claim: by hand for three seeds, where Student's quantile is 4.303."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from fedblocks.recipes.chart import chart_of
from fedblocks.recipes.claims import (
    CLAIMS,
    Claim,
    closest_leads,
    leads_of,
    verdict_of_claim,
)
from fedblocks.recipes.claims_page import claims_section
from fedblocks.recipes.show import row_of

CLAIM = Claim("pfedmb-table2", "A is ahead", "a")


def cell(*values: float, published: float | None = None) -> dict[str, Any]:
    seeds = {str(i): {"value": value} for i, value in enumerate(values)}
    return {"published": published, "seeds": seeds}


CELLS = {
    "s/a": cell(70.0, 72.0, 74.0, published=75.0),
    "s/b": cell(60.0, 62.0, 64.0, published=74.0),
    "s/c": cell(69.0, 72.0, 75.0),
    "t/a": cell(50.0, 51.0, 52.0),
    "t/b": cell(54.0, 55.0, 57.0),
}


def test_a_lead_is_the_mean_of_paired_differences_with_their_interval() -> None:
    # a - c on seeds 0, 1, 2: 1, 0, -1; deviation 1, so half the interval is 4.303 / sqrt 3 = 2.484
    leads = {(lead.setting, lead.other): lead for lead in leads_of(CLAIM, CELLS)}
    assert leads["s", "b"].mean == 10.0 and leads["s", "b"].half == 0.0
    assert leads["s", "c"].mean == 0.0 and leads["s", "c"].half == pytest.approx(2.484, abs=1e-3)
    assert leads["s", "b"].published == 1.0 and leads["s", "c"].published is None
    # -4, -4, -5: mean -4.333, deviation 0.577, half 1.434
    assert leads["t", "b"].mean == pytest.approx(-13 / 3)
    assert leads["t", "b"].half == pytest.approx(1.434, abs=1e-3)
    # 3, 2, -1: mean 1.333, deviation 2.082, half 5.17, so that 0 lies inside on either side
    for sign in (1, -1):
        near = {"s/a": cell(3.0 * sign, 2.0 * sign, -1.0 * sign), "s/b": cell(0.0, 0.0, 0.0)}
        (unsure,) = leads_of(CLAIM, near)
        assert unsure.mean * sign > 1 and unsure.verdict == "cannot be told"
    verdicts = [leads[key].verdict for key in (("s", "b"), ("s", "c"), ("t", "b"))]
    assert verdicts == ["holds", "cannot be told", "does not hold"]


def test_seeds_are_paired_by_their_number_and_two_are_too_few() -> None:
    shifted = {"seeds": {"1": {"value": 1.0}, "2": {"value": 2.0}, "10": {"value": 3.0}}}
    others = {"seeds": {"10": {"value": 1.0}, "2": {"value": 2.0}, "1": {"value": 3.0}}}
    cells = {"s/a": {**shifted, "published": None}, "s/b": {**others, "published": None}}
    (lead,) = leads_of(CLAIM, cells)
    assert lead.mean == 0.0 and lead.half > 0
    del cells["s/b"]["seeds"]["10"]
    assert leads_of(CLAIM, cells) == []
    assert leads_of(CLAIM, {"s/b": cell(1.0, 2.0, 3.0)}) == []


def test_one_refutation_refutes_and_only_all_comparisons_confirm() -> None:
    leads = leads_of(CLAIM, CELLS)
    assert verdict_of_claim(leads) == "does not hold"
    assert verdict_of_claim(leads[:2]) == "cannot be told"
    assert verdict_of_claim(leads[:1]) == "holds"
    assert verdict_of_claim([]) == "cannot be told"
    assert [(lead.setting, lead.other) for lead in closest_leads(leads)] == [
        ("s", "c"),
        ("t", "b"),
    ]


def test_named_rivals_and_variants_of_the_same_method() -> None:
    cells = {**CELLS, "s/pfedmb": cell(1, 2, 3), "s/pfedmb-common": cell(4, 5, 6)}
    rivals = [lead.other for lead in leads_of(CLAIMS[0], cells)]
    assert rivals == ["a", "b", "c"]
    assert [lead.other for lead in leads_of(Claim("x", "", "a", ("c",)), CELLS)] == ["c"]


def test_the_page_asks_stand_ins_too_and_says_what_is_not_measured() -> None:
    results = {"recipe": "pfedmb-table2-own", "stand_in_for": "pfedmb-table2"}
    cells = {key.replace("/a", "/pfedmb"): value for key, value in CELLS.items()}
    text = claims_section([{**results, "cells": cells}])
    first = "**pFedMB is more accurate than all baselines** (pfedmb-table2-own, a stand-in)"
    assert f"{first}: **does not hold**; settings measured: 2." in text
    assert "| s | c | - | +0.00 ± 2.48 | 1, 1, 0 | cannot be told |" in text
    assert "| t | b | - | -4.33 ± 1.43 | 0, 0, 1 | does not hold |" in text
    assert "Flow is more accurate than all baselines" in text.split("Not measured")[1]


def test_a_chart_has_our_interval_and_the_published_number_at_their_places() -> None:
    rows = [row_of(key, CELLS[key], quick=False) for key in ("s/a", "s/b", "t/b")]
    tree = ET.fromstring(chart_of(rows))
    tag = "{http://www.w3.org/2000/svg}"
    words = [one.text for one in tree.iter(f"{tag}text")]
    assert {"a", "b", "s", "t"} <= set(words)
    # panel s shows 56 (62 - 4.97, rounded down to even) to 78: 190 pixels from 120 on
    circles = [float(one.attrib["cx"]) for one in tree.iter(f"{tag}circle")]
    assert circles[0] == pytest.approx(120 + 190 * (72 - 56) / 22, abs=0.06)
    diamonds = [one.attrib["points"] for one in tree.iter(f"{tag}polygon")]
    assert len(diamonds) == 3  # two published numbers and the legend
    middle = float(diamonds[0].split()[1].split(",")[0])
    assert middle == pytest.approx(120 + 190 * (75 - 56) / 22, abs=0.06)
    intervals = [one for one in tree.iter(f"{tag}line") if one.attrib["stroke"] != "#d8dee4"]
    ends = [float(intervals[0].attrib[end]) for end in ("x1", "x2")]
    # half of 70, 72, 74: 4.303 x 2 / sqrt 3 = 4.968
    assert ends == [
        pytest.approx(120 + 190 * (72 + s * 4.968 - 56) / 22, abs=0.06) for s in (-1, 1)
    ]
