"""Check 11 allows rounding in a slot that nobody writes, and says by how much one changed."""

from typing import Any

import pytest

import fedblocks as fb
from fedblocks.testing import CHECKS, example_for, run_check

UNWRITTEN = next(one for one in CHECKS if one.name == "unwritten_slots")


class Mixing(fb.FedAvg):
    """Its server keeps a part of what it had: where nothing was written, all of it."""

    kept = 0.2
    moved = 0.0

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        mixed = lambda v, old: (1 - self.kept) * v + self.kept * old + self.moved
        return {
            name: {key: mixed(value, before[name][key]) for key, value in slots.items()}
            for name, slots in server.items()
        }


def test_last_digits_may_change_in_a_slot_that_nobody_writes() -> None:
    verdict = run_check(UNWRITTEN, example_for(Mixing))
    assert verdict.state == "holds", verdict.detail


def test_a_slot_that_changed_is_shown_with_the_largest_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mixing, "moved", 0.25)
    verdict = run_check(UNWRITTEN, example_for(Mixing))
    assert verdict.state == "fails"
    assert "it changed, " in verdict.detail and "differs by up to 0.25" in verdict.detail
