"""Examples of methods that begin with clusters of the clients' first updates."""

from __future__ import annotations

from typing import Any

from fedblocks.methods.clustered import Clustered
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.modfl import ModFL
from fedblocks.testing.extras import COUNTED
from fedblocks.testing.federations import small_federation
from fedblocks.testing.making import Examples, is_fedavg, ours

# enough examples, and steps, that the two kinds of clients pull apart in the first round
_APART: dict[str, Any] = {
    "federation": small_federation((40, 37, 33, 38, 35, 46, 31, 36)),
    "cohort": 6,
    "start": "updates",
    "epochs": 2,
    "batch_size": 16,
}
STARTS: Examples = {
    "ifca_updates": ours(
        "ifca_updates",
        IFCA,
        is_fedavg("one cluster", {"clusters": "model"}, clusters=1),
        clusters="auto",
        others={"clusters": 3},
        exceptions={"client_twice": COUNTED},
        **_APART,
    ),
    "clustered_updates": ours(
        "clustered_updates",
        Clustered,
        is_fedavg("one cluster", {"clusters": "model"}, max_clusters=1),
        max_clusters=3,
        epsilon1=2.0,
        epsilon2=0.2,
        first_round=1,
        min_size=1,
        others={"epsilon1": 0.02, "epsilon2": 9.0, "min_size": 4, "weigh_by": "clients"},
        exceptions={
            "client_twice": COUNTED,
            "unwritten_slots/clusters": "a split fills the slot of the new cluster",
            "unwritten_slots/membership": "a split gives its members their new cluster",
        },
        **_APART,
    ),
    "modfl_updates": ours(
        "modfl_updates",
        ModFL,
        is_fedavg("one operation cohort", {"configuration": "model"}, operations=1),
        operations="auto",
        cohorts="found",
        others={"operations": 3},
        exceptions={
            "client_twice": COUNTED,
            "unwritten_slots/membership": "clients keep the cohort of their first round",
            "no_dead_knobs/warmup": "nobody waits where the first updates decide",
        },
        **_APART,
    ),
}
