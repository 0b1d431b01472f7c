"""Numbers, several labels and a label for each step are trained by methods of every kind, from a
configuration, with the same metrics on both engines.
"""

from __future__ import annotations

import pytest

import fedblocks as fb
from tests.representatives import case_of

SMALL = "data.options.rows=24"
SETS = {
    "truck_ranges-fedper": [SMALL, "data.options.trucks=6", "data.options.outputs=2"],
    "diagnoses-ditto": [SMALL, "data.options.hospitals=6"],
    "tagged_words-fedper": [SMALL, "data.options.writers=6", "net.units=8"],
}
METHODS = ["fedavg", "fedper", "ditto", "fedem", "pfedmb", "fedmn", "flow_v2", "modfl"]

OWN = {"modfl": ["method.cohorts=found", "method.operations=2", "method.warmup=1"]}
SHORT = ["method.lr=0.1", "rounds=2", "evaluation.every=1"]


# every set by two methods of few nets, every method on one set
PAIRS = [
    case_of(preset, method, always=method in ("fedper", "fedem") or (place + turn) % 3 == 0)
    for place, preset in enumerate(SETS)
    for turn, method in enumerate(METHODS)
]


@pytest.mark.parametrize(("preset", "method"), PAIRS)
def test_a_method_trains_the_set_alike_on_both_engines(preset: str, method: str) -> None:
    """Every method on every set in `make test-rest`."""
    changes = [*SETS[preset], f"method={method}", *OWN.get(method, ()), *SHORT]
    runs = [
        fb.run(fb.read_config(preset, [*changes, f"engine={engine}"]), engine)
        for engine in ("sequential", "vectorised")
    ]
    one, other = runs
    for metric in (one.metric.name, *one.metric.others, "loss"):
        assert len(one.scores(metric)) == 6
        assert other.scores(metric) == pytest.approx(one.scores(metric), abs=1e-4)
    curve = [row["test"] for row in one.curves("loss")]
    assert len(curve) == 2 and all(0 < loss < 100 for loss in curve)
