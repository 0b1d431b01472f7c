"""Runs whose seeds have data of their own: clients are called as there, and not mixed up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.nets import mlp
from fedblocks.reports.html.facts import facts_of
from fedblocks.reports.html.gather import gather
from fedblocks.reports.html.maps import map_charts, numbers_of

WILD = 1e30  # a learning rate after whose first step nothing is finite


def fleet(seed: int) -> fb.Federation:
    """Four trucks, others for each seed."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(80, 6)).astype("float32"), rng.integers(0, 4, 80)
    return fb.Federation.from_users(x, y, [f"seed-{seed}-truck-{row % 4}" for row in range(80)])


@pytest.mark.filterwarnings("ignore::fedblocks.runs.progress.RunWarning")
def test_the_worst_and_the_refused_are_named_as_in_their_own_seed(tmp_path: Path) -> None:
    net = mlp((6,), 4, hidden=(4,))
    methods = {"local": fb.Local(net), "wild": fb.FedAvg(net, lr=WILD, batch_size=4)}
    found = fb.compare(methods, fleet, seeds=2, rounds=1, out=tmp_path / "c")
    facts = facts_of(gather(found.folder))
    told = [(row[1], row[2]) for row in facts["worst"]]
    told += [(row[1], row[3]) for row in facts["refusals"]]
    assert {seed for seed, _ in told} == {0, 1} and len(facts["refusals"]) == 8
    assert all(name.startswith(f"seed-{seed}-truck-") for seed, name in told)


def trained(folder: Path, method: str, seed: int) -> None:
    """A run on a division of its own into hidden groups."""
    changes = ["rounds=1", f"method={method}", f"seed={seed}", f"data.seed={seed}"]
    fb.run(fb.read_config("digits-pfedmb", [*changes, "data.clients=8"]), folder)


def test_groups_and_labels_of_other_data_are_not_shown_beside_a_run(tmp_path: Path) -> None:
    trained(tmp_path / "one" / "second", "pfedmb", 1)
    trained(tmp_path / "two" / "first", "ditto", 0)  # whose data labels and groups are of
    trained(tmp_path / "two" / "second", "pfedmb", 1)

    def shown(folder: Path) -> list[str]:
        story = gather(folder)
        (alpha,) = (one for one in numbers_of(story) if one.method == "pfedmb")
        return [chart.title + chart.note for chart in map_charts(story, alpha, 1)]

    own, beside = shown(tmp_path / "one"), shown(tmp_path / "two")
    assert [text.partition(" ")[0] for text in own] == ["alpha", "Labels", "Who"]
    assert "Adjusted Rand index" in own[-1]
    assert [text.partition(" ")[0] for text in beside] == ["alpha", "Who"]
    assert "Adjusted Rand index" not in beside[-1]
