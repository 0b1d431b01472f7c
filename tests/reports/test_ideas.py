"""What modular methods found, in words: numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedblocks.reports import ideas
from fedblocks.reports.ideas import branch_weights, groups_in, tell_idea, tell_routes
from fedblocks.runs.result import RunResult


def test_routes_are_told_by_client_and_between_instances() -> None:
    said = tell_routes(np.array([[0.3, 0.7, 0.01], [0.1, 0.9, 0.03]]))
    assert "70% to 90% of a client's answers" in said and "varies by 2.0%" in said


def test_paths_are_counted_and_compared_with_the_hidden_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Clients 0 and 1 share a path, 2 and 3 another: the groups that are hidden."""
    gates = {0: [1.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 1.0], 3: [0.0, 1.0]}
    monkeypatch.setattr(ideas, "last_numbers", lambda result, block: gates)
    nothing: RunResult = None  # type: ignore[assignment]
    assert tell_idea("fedmn", nothing, [5, 5, 6, 6]) == (
        "4 clients take 2 paths through its modules; adjusted Rand index with the hidden groups "
        "1.00"
    )
    assert "index with the hidden groups -0.50" in tell_idea("modfl", nothing, [5, 6, 5, 6])
    assert tell_idea("fedavg", nothing, [5, 5, 6, 6]) == ""


def test_branch_weights_add_up_to_one_in_each_layer() -> None:
    """Three layers of two branches: 1 : 3, 1 : 1 and 4 : 1."""
    weights = branch_weights(np.array([[0.0, np.log(3), 2.0, 2.0, np.log(4), 0.0]]), 2)
    np.testing.assert_allclose(weights, [[0.25, 0.75, 0.5, 0.5, 0.8, 0.2]])
    alike = np.array([[0.9, 0.1], [0.88, 0.12], [0.1, 0.9]])
    assert groups_in("pfedmb", alike, 2).tolist() == [0, 0, 1]
