"""Examples of the methods that route every instance, on a small recurrent net, and of FedRecon."""

from __future__ import annotations

import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedrecon import FedRecon
from fedblocks.methods.flow.dynamic_routing import DynamicRouting
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.flow_v2 import FlowV2
from fedblocks.methods.flow.options import POSTER
from fedblocks.nets.recurrent import LastStep, Recurrent
from fedblocks.testing.example import Reduction
from fedblocks.testing.federations import CLASSES, FEATURES
from fedblocks.testing.making import Examples, is_fedavg, ours

STEPS = 2
WHOLE = {"batch_size": 20}  # one batch holds all of a client, so that its order does not matter


def recurrent_net() -> Net:
    """The features as two steps of three numbers, embedded, read by an LSTM, decoded
    after the last step.
    """

    def make() -> nn.Module:
        before = [
            nn.Unflatten(1, (STEPS, FEATURES // STEPS)),
            nn.Linear(FEATURES // STEPS, 3),
            Recurrent(3, 4, 1),
        ]
        return nn.Sequential(*before, LastStep(), nn.Linear(4, CLASSES))

    return Net.of(make, dtype=torch.float64)


def alone(says: str, **options: object) -> Reduction:
    """The shared net learns by itself, and is FedAvg's."""
    return Reduction(f"{says} is FedAvg", FedAvg, {"shared": "model"}, {**options, **WHOLE}, WHOLE)


ROUTES: Examples = {
    "fedrecon": ours(
        "fedrecon",
        FedRecon,
        is_fedavg("nothing local", {"shared": "model"}, local="", split_data=False),
        recon_epochs=2,
        recon_lr=0.3,
        others={"local": "0", "local_init": "zero", "server_rule": "adam", "server_lr": 0.5},
    ),
    "dynamic_routing": ours(
        "dynamic_routing",
        DynamicRouting,
        net=recurrent_net(),
        lr=0.5,
        exceptions={"reductions": "two branches and a router are no other method's net"},
    ),
    "flow": ours(
        "flow",
        Flow,
        alone("the shared net that learns alone", global_update_path="global_only"),
        net=recurrent_net(),
        lr=0.5,
        **POSTER,
        others={
            "router_scope": "local_reinit",
            "eval_routing": "hard",
            "global_update_path": "global_only",
        },
    ),
    "flow_v2": ours(
        "flow_v2",
        FlowV2,
        alone("the shared net on all data", split_data=False),
        net=recurrent_net(),
        lr=1.0,
        local_epochs=2,
        router_epochs=1,
        strength=0.1,
        policy_dropout=0.0,  # noise is another one for a client twice
        policy=(4,),
        step_policy=(5,),
        dense_policy=(4, 3),
        # what moves a route a little moves these, and hard choices not yet
        eval_routing="soft",
        others={"eval_routing": "hard", "step_policy": (4,), "dense_policy": (3, 3)},
    ),
}
