"""What the server concludes from a round, it concludes from what it asked for: ranks bring the
uploads of single clients together only where a method says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.fedfomo import FedFomo
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.modfl import ModFL
from fedblocks.methods.pfedhn import PFedHN
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.methods.scaffold import Scaffold
from fedblocks.testing import small_federation, small_net

FOUND: dict[str, Any] = {"operations": 2, "cohorts": "found"}
BOTH = ("configuration", "operation")
LAYERS = ("layers.0", "layers.2")
# what is asked for in three rounds
ASKED: dict[str, tuple[Any, list[tuple[str, ...]]]] = {
    "a split from the third round on": (
        lambda net: Clustered(net, first_round=2),
        [(), (), ("clusters",)],
    ),
    "clusters that never split": (lambda net: Clustered(net, never_split=True), [()] * 3),
    "clusters of first updates": (
        lambda net: Clustered(net, start="updates", never_split=True),
        [("clusters",), (), ()],
    ),
    "IFCA from first updates": (lambda net: IFCA(net, start="updates"), [("clusters",), (), ()]),
    "IFCA at random": (lambda net: IFCA(net, start="random"), [()] * 3),
    "cohorts after two rounds": (lambda net: ModFL(net, **FOUND, warmup=2), [(), BOTH, ()]),
    "cohorts of first updates": (lambda net: ModFL(net, **FOUND, start="updates"), [BOTH, (), ()]),
    "compressed": (lambda net: PFedMB(net, branches=2, compressed_upload=True), [LAYERS] * 3),
    "not compressed": (lambda net: PFedMB(net, branches=2), [()] * 3),
    "a hypernetwork": (PFedHN, [("model",)] * 3),
    "peers": (FedFomo, [("gains",)] * 3),
    "control variates": (Scaffold, [()] * 3),
}


def without_others(uploads: Uploads, asked: Collection[str]) -> Uploads:
    """The weights of everything, and copies only of what was asked for."""
    return {n: u if n in asked else replace(u, copies={}) for n, u in uploads.items()}


@pytest.mark.parametrize("what", ASKED)
def test_a_method_concludes_from_the_uploads_that_it_asks_for(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, expected = ASKED[what]
    method: Method = make(small_net())
    asked: list[tuple[str, ...]] = []
    conclude = type(method).conclude

    def conclude_twice(
        own: Method, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort
    ) -> Blocks:
        asked.append(tuple(own.single_uploads(before, cohort)))
        whole = conclude(own, server, before, uploads, cohort)
        part = conclude(own, server, before, without_others(uploads, asked[-1]), cohort)
        for name, block in whole.items():
            assert all(torch.equal(part[name][key], value) for key, value in block.items())
        return whole

    monkeypatch.setattr(type(method), "conclude", conclude_twice)
    experiment = Experiment.of(method, small_federation())
    state = experiment.start()
    for clients in ([0, 1, 3], [0, 2, 4, 5], [1, 2, 3, 4]):
        state, _ = run_round(experiment, state, clients, Sequential())
    assert asked == expected
