"""Estimates, hashes and reductions of recipes, worked out by hand."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.methods.fedavg import FedAvg
from fedblocks.recipes import cost
from fedblocks.recipes.suite.entrants import source_hash
from fedblocks.recipes.suite.summary import _reductions

TABLE: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "gaussian", "clients": 4},
    "net": {"name": "mlp"},
    "method": {"name": "fedavg"},
}


class Own(FedAvg):
    """A method of this file."""


def test_a_method_is_known_by_its_file_the_code_beside_it_and_what_they_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(__file__).resolve().read_bytes()
    assert source_hash(Own, []) == sha256(here).hexdigest()[:8]
    assert source_hash(Own, [__file__]) == source_hash(Own, [])
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    helper = tmp_path / "helper_of_other.py"
    order = sorted([(Path(__file__).resolve(), here), (other.resolve(), b"x = 1\n")])
    assert source_hash(Own, [str(other)]) == sha256(order[0][1] + order[1][1]).hexdigest()[:8]
    before = source_hash(Own, [str(other)])
    monkeypatch.syspath_prepend(str(tmp_path))
    other.write_text("import helper_of_other\n")
    helper.write_text("x = 1\n")
    first = source_hash(Own, [str(other)])
    helper.write_text("x = 2\n")
    assert len({before, first, source_hash(Own, [str(other)])}) == 3


def runs(own: list[float], other: list[float]) -> Any:
    """One client's accuracy of a method and of the reference, seed by seed."""
    one = lambda value: SimpleNamespace(accuracies={0: value})
    pairs = {seed: (one(a), one(b)) for seed, (a, b) in enumerate(zip(own, other, strict=True))}
    return SimpleNamespace(pairs=lambda name, reference: pairs)


def test_errors_are_reduced_by_a_share_of_the_references_and_of_none_by_nothing() -> None:
    """The reference errs in 0.3 and 0.5 of the cases, 0.4 in the mean."""
    reduced = _reductions("fedavg", "ditto", runs([0.9, 0.5], [0.7, 0.5]))
    assert reduced == pytest.approx({0: 0.2 / 0.4, 1: 0.0})
    assert _reductions("fedavg", "ditto", runs([0.9, 1.0], [1.0, 1.0])) == {0: 0.0, 1: 0.0}
    # of an error of 0.1 in the mean 0.9 more are nine times as much, and count as one
    assert _reductions("fedavg", "ditto", runs([0.0, 0.9], [0.9, 0.9])) == {0: -1.0, 1: 0.0}


def test_clients_side_by_side_take_the_seconds_of_their_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3 seeds, 0.7 of the rows, 2 rounds of 5 passes, 100 rows of half a second: 1050 seconds."""
    monkeypatch.setattr(cost, "side_by_side_work", lambda config: [(100, {"name": "mlp"}, (3,), 2)])
    monkeypatch.setattr(cost, "seconds_per_example", lambda net, shape, classes: 0.5)
    monkeypatch.setattr(cost, "passes", lambda method: 5.0)
    cell: Any = SimpleNamespace(points=lambda quick: [{}], table=lambda point, quick: TABLE)
    assert cost.seconds(cell, 3, False) == pytest.approx(3 * 0.7 * 2 * 5 * 50)
