"""The methods, by name. One file for each paper."""

from __future__ import annotations

from fedblocks.core.method import Method
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedavg_ft import FedAvgFT
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.methods.ifca import IFCA
from fedblocks.methods.local import Local
from fedblocks.methods.pfedmb import PFedMB

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
}
