"""The job with fluke: its FedAVG, its clients with FastDataLoader, no evaluation."""

import importlib.util
import sys
from types import ModuleType

import torchmetrics  # noqa: F401 - before the stand-in below: it asks whether torchvision is there
from peer_job import JOB, begin, end, net, notes, rows
from torch import nn

if importlib.util.find_spec("torchvision") is None:  # fluke imports it for nets and data sets that are not used here

    class _Nothing(ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for part in ("", ".models", ".datasets", ".datasets.utils", ".transforms"):
        sys.modules[f"torchvision{part}"] = _Nothing(f"torchvision{part}")
    notes.append("torchvision replaced by an empty module")

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver


class Turns(FederationObserver):
    def start_round(self, round, global_model):
        begin("fluke-fl")

    def selected_clients(self, round, clients):
        self.clients = len(clients)

    def end_round(self, round):
        end(clients=self.clients)


def client(index):
    data = FastDataLoader(*rows(index), num_labels=JOB["classes"], batch_size=JOB["batch"], shuffle=True)
    optimizer = OptimizerConfigurator({"name": "SGD", "lr": JOB["lr"]}, {"name": "StepLR", "step_size": 1, "gamma": 1})
    return Client(index, data, None, optimizer, nn.CrossEntropyLoss(), local_epochs=1)


FlukeENV().set_device("cpu")
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
clients = [client(index) for index in range(JOB["clients"])]
federation = FedAVG(len(clients), None, {}, clients=clients, server=Server(net(), None, clients, weighted=True))
federation.set_callbacks(Turns())
federation.run(JOB["rounds"], JOB["cohort"] / JOB["clients"], finalize=False)
