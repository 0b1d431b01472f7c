"""What all peers are given: the job, its net and data, when to begin a round. Needs torch, and nothing of fedblocks."""

import json
import os
import sys
from functools import cache
from importlib.metadata import version
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

JOB = json.loads(os.environ["FEDBLOCKS_PEER_JOB"])  # the fields of a BenchJob, and rounds, lr
_driver = os.fdopen(os.dup(1), "w", buffering=1)  # fluke and Flower write to the standard output themselves
os.dup2(2, 1)


def begin(package):
    """Wait until a round may begin; before the first, say that everything is ready."""
    if not hello:
        hello.update(
            package=package, version=version(package), torch=torch.__version__, threads=torch.get_num_threads()
        )
        _driver.write(json.dumps({**hello, "note": ", ".join(notes)}) + "\n")
    if not sys.stdin.readline():
        os._exit(1)  # whoever asked is gone


def end(**noted):
    """A round is over; what is noted of it, the number of clients at least, goes into the results."""
    _driver.write(json.dumps(noted) + "\n")


hello, notes = {}, []


def net():
    """The job's net, new."""
    return nn.Sequential(*NETS[JOB["net"]](JOB["shape"], JOB["classes"]))


@cache
def _pool():
    noise, count = torch.Generator().manual_seed(0), JOB["clients"] * JOB["examples"]
    return torch.randn(count, *JOB["shape"], generator=noise), torch.arange(count) % JOB["classes"]


def rows(client):
    """Inputs and labels of one client, in memory, not copied."""
    own = slice(client * JOB["examples"], (client + 1) * JOB["examples"])
    x, y = _pool()
    return x[own], y[own]


def train(model, x, y):
    """One epoch of SGD, for peers that leave this to the user."""
    optimizer = torch.optim.SGD(model.parameters(), lr=JOB["lr"])
    model.train()
    for batch in torch.split(torch.randperm(len(x)), JOB["batch"]):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def _lenet(shape, classes):
    convolutions = [
        nn.Conv2d(shape[0], 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return [*convolutions, nn.Flatten(), *dense]


def _pfl_cnn(shape, classes):
    convolutions = [nn.Conv2d(shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes)]
    return [*convolutions, nn.Dropout(0.25), nn.Flatten(), *dense]


def _mlp(shape, classes):
    hidden = [nn.Linear(prod(shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
    return [nn.Flatten(), *hidden, nn.Linear(200, classes)]


NETS = {"lenet": _lenet, "pfl_cnn": _pfl_cnn, "mlp": _mlp}
