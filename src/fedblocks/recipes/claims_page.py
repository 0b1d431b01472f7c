"""Verdicts on the papers' claims, on top of the page of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedblocks.recipes.claims import (
    CLAIMS,
    Claim,
    Lead,
    closest_leads,
    leads_of,
    verdict_of_claim,
)

HEAD = """## Verdicts

A claim is asked in every setting that has three seeds or more of both methods: the difference of
accuracies on the same seed, hence on the same partition, with Student's 95 % interval. It **holds**
in a setting if the interval lies above 0 for every rival, it **does not hold** if one lies below 0,
else it **cannot be told**. Intervals are not widened for the number of rivals. "Closest" is the
rival with the smallest lead.
"""


def claims_section(results: Sequence[dict[str, Any]]) -> str:
    """A sentence and a table for each claim that stored full-size results say something of."""
    parts = [_claim(claim, one) for claim in CLAIMS for one in results if _is_asked(claim, one)]
    silent = [claim.words for claim in CLAIMS if not any(_is_asked(claim, r) for r in results)]
    rest = f"Not measured at full size yet: {'; '.join(silent)}.\n" if silent else ""
    return "\n".join([HEAD, *parts, rest])


def _is_asked(claim: Claim, results: dict[str, Any]) -> bool:
    of = results["stand_in_for"] or results["recipe"]
    return of == claim.recipe and bool(leads_of(claim, results["cells"]))


def _claim(claim: Claim, results: dict[str, Any]) -> str:
    leads = leads_of(claim, results["cells"])
    verdict = verdict_of_claim(leads)
    closest = closest_leads(leads)
    rows = [_row(lead, [one for one in leads if one.setting == lead.setting]) for lead in closest]
    of = f" ({results['recipe']}, a stand-in)" if results["stand_in_for"] else ""
    measured = f"settings measured: {len(closest)}"
    head = (
        "| setting | closest | published lead | our lead | rivals behind, level, ahead | verdict |"
    )
    return "\n".join(
        [
            f"**{claim.words}**{of}: **{verdict}**; {measured}.",
            "",
            head,
            "|---" * 6 + "|",
            *rows,
            "",
        ]
    )


def _row(lead: Lead, all_leads: Sequence[Lead]) -> str:
    published = "-" if lead.published is None else f"{lead.published:+.2f}"
    verdicts = [one.verdict for one in all_leads]
    counts = ", ".join(
        str(verdicts.count(name)) for name in ("holds", "cannot be told", "does not hold")
    )
    cells = [lead.setting, lead.other, published, f"{lead.mean:+.2f} ± {lead.half:.2f}"]
    return f"| {' | '.join([*cells, counts, verdict_of_claim(all_leads)])} |"
