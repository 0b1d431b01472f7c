"""The methods, by name. One file for each paper."""

from __future__ import annotations

from fedblocks.core.method import Method
from fedblocks.methods.apfl import APFL
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedala import FedALA
from fedblocks.methods.fedamp import FedAMP, HeurFedAMP
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedavg_ft import FedAvgFT
from fedblocks.methods.fedbabu import FedBABU
from fedblocks.methods.fedbn import FedBN
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedfomo import FedFomo
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.reference import FedMNReference
from fedblocks.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.methods.fedrecon import FedRecon
from fedblocks.methods.fedrep import FedRep
from fedblocks.methods.flow.dynamic_routing import DynamicRouting
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.flow_v2 import FlowV2
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.lg_fedavg import LGFedAvg
from fedblocks.methods.local import Local
from fedblocks.methods.mean_reg_mtl import MeanRegMTL
from fedblocks.methods.modfl import ModFL
from fedblocks.methods.moon import Moon
from fedblocks.methods.per_fedavg import PerFedAvg
from fedblocks.methods.pfedhn import PFedHN
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.methods.pfedme import PFedMe
from fedblocks.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavg_ft": FedAvgFT,
    "fedper": FedPer,
    "ditto": Ditto,
    "ifca": IFCA,
    "fedem": FedEM,
    "pfedmb": PFedMB,
    "modfl": ModFL,
    "clustered": Clustered,
    "pfedme": PFedMe,
    "mean_reg_mtl": MeanRegMTL,
    "fedyogi": FedYogi,
    "fedadam": FedAdam,
    "fedadagrad": FedAdagrad,
    "apfl": APFL,
    "lg_fedavg": LGFedAvg,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedmn": FedMN,
    "fedmn_reference": FedMNReference,
    "fedrecon": FedRecon,
    "dynamic_routing": DynamicRouting,
    "flow": Flow,
    "flow_v2": FlowV2,
    "fedfomo": FedFomo,
    "fedamp": FedAMP,
    "heur_fedamp": HeurFedAMP,
    "per_fedavg": PerFedAvg,
    "scaffold": Scaffold,
    "moon": Moon,
    "fedbn": FedBN,
    "fedala": FedALA,
    "pfedhn": PFedHN,
}
