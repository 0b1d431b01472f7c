"""Numbers that are chosen in `fedblocks.engines` are as ever; see tests/noted.py."""

from __future__ import annotations

from tests.noted import check_noted


def test_defaults_limits_and_constants_are_as_noted() -> None:
    check_noted("engines")
