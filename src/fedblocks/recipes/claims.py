"""What the papers claim of their tables, and whether our numbers bear it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedblocks.reports.student import half_width

SEEDS = 3  # fewer tell nothing


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper: in every setting of a table one method is ahead of others."""

    recipe: str  # the table; whatever stands in for it is asked as well
    words: str
    ahead: str
    others: tuple[str, ...] = ()  # default: all other methods of the table


CLAIMS = (
    Claim("pfedmb-table2", "pFedMB is more accurate than all baselines", "pfedmb"),
    Claim(
        "pfedmb-table2",
        "with a common start (not the paper's), pFedMB is more accurate than all baselines",
        "pfedmb-common",
    ),
    Claim("modfl-table1", "ModFL is more accurate than FedX on images", "modfl", ("fedx",)),
    Claim("modfl-table2", "ModFL is more accurate than FedX on activities", "modfl", ("fedx",)),
    Claim("fedmn-table2", "FedMN is more accurate than all baselines", "fedmn"),
    Claim("flow-table1", "Flow is more accurate than all baselines", "flow"),
)
# the same method twice is no baseline of itself
VARIANTS = {"pfedmb": ("pfedmb-common",), "pfedmb-common": ("pfedmb",)}


class Lead(NamedTuple):
    """How far a method is ahead of another in one setting, in points, by paired seeds."""

    setting: str
    other: str
    mean: float
    half: float
    published: float | None

    @property
    def verdict(self) -> str:
        """Whether the 95 % interval lies above 0, below it, or on both sides."""
        if self.mean - self.half > 0:
            return "holds"
        return "does not hold" if self.mean + self.half < 0 else "cannot be told"


def leads_of(claim: Claim, cells: Mapping[str, Any]) -> list[Lead]:
    """All comparisons that a results file allows, in its order."""
    pairs = [(key, *key.split("/", 1)) for key in cells]
    return [
        lead
        for key, setting, other in pairs
        if _is_rival(claim, other) and (lead := _lead(claim.ahead, setting, other, cells))
    ]


def closest_leads(leads: Sequence[Lead]) -> list[Lead]:
    """For each setting the strongest of the others."""
    settings = dict.fromkeys(lead.setting for lead in leads)
    return [
        min((one for one in leads if one.setting == setting), key=lambda one: one.mean)
        for setting in settings
    ]


def verdict_of_claim(leads: Sequence[Lead]) -> str:
    """One refutation refutes; all comparisons together confirm."""
    verdicts = [lead.verdict for lead in leads]
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and set(verdicts) == {"holds"} else "cannot be told"


def _is_rival(claim: Claim, other: str) -> bool:
    if claim.others:
        return other in claim.others
    return other != claim.ahead and other not in VARIANTS.get(claim.ahead, ())


def _lead(ahead: str, setting: str, other: str, cells: Mapping[str, Any]) -> Lead | None:
    ours, theirs = cells.get(f"{setting}/{ahead}"), cells[f"{setting}/{other}"]
    if ours is None:
        return None
    common = sorted(set(ours["seeds"]) & set(theirs["seeds"]), key=int)
    if len(common) < SEEDS:
        return None
    gaps = [ours["seeds"][s]["value"] - theirs["seeds"][s]["value"] for s in common]
    known = ours["published"] is not None and theirs["published"] is not None
    published = ours["published"] - theirs["published"] if known else None
    return Lead(setting, other, sum(gaps) / len(gaps), half_width(gaps), published)
