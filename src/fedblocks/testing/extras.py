"""Examples of the methods in which clients look at each other's models, and of those
beyond the papers' tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.methods.fedala import FedALA
from fedblocks.methods.fedamp import FedAMP, HeurFedAMP
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedbn import FedBN
from fedblocks.methods.fedfomo import FedFomo
from fedblocks.methods.local import Local
from fedblocks.methods.moon import Moon
from fedblocks.methods.per_fedavg import PerFedAvg
from fedblocks.methods.pfedhn import PFedHN
from fedblocks.methods.scaffold import Scaffold
from fedblocks.testing.example import Alone, Reduction
from fedblocks.testing.federations import CLASSES, FEATURES
from fedblocks.testing.making import Examples, is_fedavg, ours

COUNTED = "clients are counted, so that two are not one with twice the data"


def normed_net() -> Net:
    """A perceptron with a batch normalisation, before which no bias can learn."""
    layers = (
        nn.Linear(FEATURES, 5, bias=False),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Linear(5, CLASSES),
    )
    return Net.of(nn.Sequential(*layers), dtype=torch.float64)


def is_local(says: str, **options: Any) -> Reduction:
    """With these options a method is Local."""
    return Reduction(f"{says} is Local", Local, {"model": "model"}, options)


# each client has a model of its own, made on the server or with its help
_PERSONAL: Examples = {
    "fedfomo": ours(
        "fedfomo",
        FedFomo,
        Alone(("model",)),
        peers=2,
        epsilon=0.5,
        epsilon_decay=0.1,
        others={"epsilon": 1.0, "epsilon_decay": 0.5, "baseline": "last"},
        exceptions={
            "client_order": "which peers a client draws depends on its number",
            "client_twice": COUNTED,
        },
    ),
    "fedamp": ours(
        "fedamp",
        FedAMP,
        is_local("attention to nobody, without a pull,", sigma=1e-9, strength=0.0),
        strength=0.5,
        others={"start": "model"},
        exceptions={"client_twice": COUNTED},
    ),
    "heur_fedamp": ours(
        "heur_fedamp",
        HeurFedAMP,
        is_local("an own share of 1 without a pull", own_share=1.0, strength=0.0),
        strength=0.5,
        others={"start": "model"},
        exceptions={"client_twice": COUNTED},
    ),
    "pfedhn": ours(
        "pfedhn",
        PFedHN,
        hidden=8,
        hidden_layers=2,
        server_lr=0.1,
        clip=0.05,
        exceptions={
            "client_order": "a client's number decides where its embedding starts",
            "client_twice": COUNTED,
            "reductions": "a model that another network makes is no other method's",
        },
    ),
}


# one model is shared; what clients do to it, or with it, is not FedAvg's
_CORRECTED: Examples = {
    "per_fedavg": ours(
        "per_fedavg",
        PerFedAvg,
        Reduction(
            "no inner step on single examples is FedAvg",
            FedAvg,
            {"model": "model"},
            {"inner_lr": 0.0, "batch_size": 1},
            {"batch_size": 1},
        ),
        inner_lr=0.3,
        others={"variant": "hf"},
        exceptions={
            "no_dead_knobs/delta": "it matters in the Hessian-free variant, which is slow",
            "client_twice": "examples that are there twice fall to other parts of a batch",
        },
    ),
    "scaffold": ours(
        "scaffold",
        Scaffold,
        Alone(("model",)),
        others={"weigh_by": "clients"},
        exceptions={
            "no_dead_knobs": "any optimizer but plain SGD, which has nothing to keep, is refused",
            "client_twice": COUNTED,
        },
    ),
    "moon": ours("moon", Moon, is_fedavg("strength 0", {"model": "model"}, strength=0.0)),
    "fedbn": ours(
        "fedbn",
        FedBN,
        Alone(("rest", "norms")),
        net=normed_net(),
        batch_size=8,  # no batch of a single example
        exceptions={
            "client_twice": "the variance of examples that are there twice is estimated otherwise"
        },
    ),
    "fedala": ours(
        "fedala",
        FedALA,
        is_fedavg("mixing that never moves", {"model": "model"}, mixing_lr=0.0),
        mixing_lr=20.0,
        others={"share": 0.4, "top": 2},
        exceptions={
            "named_blocks_move/mixing": "in its first round a client has nothing to mix",
            "named_blocks_move/local": "adaptation mixes and does not train",
            "client_twice": "other examples are drawn to learn the mixing",
        },
    ),
}

EXTRAS = _PERSONAL | _CORRECTED
