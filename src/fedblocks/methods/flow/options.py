"""What can be chosen of the two versions of Flow, and of its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fedblocks.core.options import AtLeast, Below, Help, Positive
from fedblocks.methods.flow.base import Routed

Temperature = Annotated[
    float, Positive(), Help("temperature of the route", usual="0.75, the poster's")
]
MixCell = Annotated[
    bool, Help("the LSTM's cell state is mixed like its output; else each branch keeps its own")
]


# the options with which Flow is what its poster says
POSTER: Mapping[str, Any] = {
    "local_epochs": 1,
    "router_epochs": 1,
    "global_update_path": "personalised",
}


@dataclass(frozen=True, eq=False)
class FlowOptions(Routed):
    """The options of Flow."""

    local_epochs: Annotated[
        int, AtLeast(0), Help("of tuning the local copy; the poster: 1", usual="1 to 10")
    ] = 10
    router_epochs: Annotated[
        int,
        AtLeast(0),
        Help("of training the router before an evaluation; the poster: 1", usual="1 to 5"),
    ] = 3
    tau: Temperature = 0.75
    router_pace: Annotated[
        float,
        Positive(),
        Help("the router's learning rate, as a multiple of the local learning rate", usual="1"),
    ] = 1.0
    router_scope: Annotated[
        Literal["federated", "local_reinit"],
        Help('the router is "federated", or every client starts it anew: "local_reinit"'),
    ] = "federated"
    tune_local_embedding: Annotated[bool, Help("the local copy has an embedding of its own")] = True
    mix_cell: MixCell = True
    global_update_path: Annotated[
        Literal["personalised", "global_only"],
        Help('the shared net learns alone ("global_only"), or through the mixture: "personalised"'),
    ] = "global_only"


@dataclass(frozen=True, eq=False)
class FlowV2Options(Routed):
    """The options of Flow's second version; some of the first have other defaults."""

    local_epochs: Annotated[
        int, AtLeast(0), Help("E: of tuning the local copy", usual="1 to 5")
    ] = 3
    router_epochs: Annotated[
        int, AtLeast(0), Help("E: of training the policy before an evaluation", usual="1 to 5")
    ] = 3
    split_data: Annotated[
        bool, Help("tune the local copy on one half of the examples, train the rest on the other")
    ] = True
    eval_routing: Annotated[
        Literal["soft", "hard"],
        Help('at test: the "hard" choice of the better branch, or "soft" mixtures'),
    ] = "hard"
    strength: Annotated[
        float, AtLeast(0), Help("lambda: of the reward for the shared branch", usual="0.001")
    ] = 0.001
    policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help(
            "hidden layers of the policy that sees the whole input (chains)",
            usual="[350, 150, 50]",
        ),
    ] = (350, 150, 50)
    step_policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help("hidden layers of the policy of each step (LSTMs)", usual="[500, 250, 100, 50]"),
    ] = (500, 250, 100, 50)
    dense_policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help("hidden layers of the policy of the layers after an LSTM", usual="[75, 30, 10]"),
    ] = (75, 30, 10)
    policy_dropout: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help("in the policy of each step, while it trains", usual="0.3"),
    ] = 0.3
