"""Where the similar stand side by side, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.reports.html.gather import Story, _count_tagged
from fedblocks.reports.html.order import by_similarity, distances, on_a_plane


def test_a_group_is_as_far_as_its_members_are_in_the_mean() -> None:
    """Of 0, 15.9, 1 and 8, 0 and 1 are nearest; 8 is 7.5 from them, 7.9 from 15.9."""
    rows = np.array([[0.0], [15.9], [1.0], [8.0]])
    assert by_similarity(rows) == [0, 2, 3, 1]
    # of 0, 1 and 4, the larger group counts by its members: 8.6 is 6.93 from them, 6.8 from 15.4
    assert by_similarity(np.array([[0.0], [15.4], [1.0], [8.6], [4.0]])) == [0, 2, 4, 1, 3]
    assert by_similarity(np.zeros((0, 1))) == [] and by_similarity(np.zeros((1, 1))) == [0]


def test_distances_are_those_of_pythagoras() -> None:
    assert distances(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0.0, 5.0], [5.0, 0.0]]


def test_places_on_a_plane_are_along_what_varies_most() -> None:
    """Along the first axis 8, along the second 2: of the variance 0.8 and 0.2."""
    rows = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) + 5
    places, shares = on_a_plane(rows)
    assert shares == pytest.approx([0.8, 0.2])
    assert np.allclose(np.abs(places), np.abs(rows - 5))
    alone, shares = on_a_plane(np.array([[1.0], [1.0]]))
    assert alone.tolist() == [[0.0, 0.0]] * 2 and shares == [0.0]


def test_clients_of_a_group_are_counted_by_its_tag() -> None:
    federation: Any = SimpleNamespace(tags={"kind": np.array([1, 0, 1])})
    group = lambda tag, value: SimpleNamespace(tag=tag, value=value)
    count = lambda *chosen: _count_tagged(federation, group(*chosen))  # type: ignore[arg-type]
    assert [count("kind", 1), count("kind", 0), count("kind", 2)] == [2, 1, 0]
    assert [count("other", 1), count(None, 0)] == [0, 0]


def test_the_first_run_of_a_method_is_that_of_its_lowest_seed() -> None:
    """Folders are read in the order of their names: seed 10 before seed 9."""
    ten, nine, eight = (
        SimpleNamespace(result=SimpleNamespace(config=SimpleNamespace(seed=seed)))
        for seed in (10, 9, 8)
    )
    runs: Any = {"fedavg": {10: ten, 9: nine}, "local": {10: ten, 8: eight}}
    story = Story(Path("runs"), runs)
    assert story.firsts == {"fedavg": nine, "local": eight} and story.first is eight
