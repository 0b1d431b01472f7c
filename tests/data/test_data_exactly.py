"""Small parts of the data, each against what is written down of it."""

from __future__ import annotations

from fedblocks.data.sets import realworld


def test_activities_of_realworld_are_numbered_in_the_words_of_the_other_sets() -> None:
    assert realworld.ACTIVITIES == (
        "walking", "upstairs", "downstairs", "sitting", "standing", "laying", "jumping", "running",
    )  # fmt: skip
    assert list(realworld.NAMES).index("climbingup") == realworld.ACTIVITIES.index("upstairs")
