"""Flower's own FedAvg on the perceptron and the rows of `flower_overhead.py`, as a
Flower user writes it.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def rows(context: Context) -> tuple[torch.Tensor, ...]:
    from importlib.resources import files

    arrays = np.load(str(files("fedblocks.data") / "digits.npz"))
    names = list(arrays)
    x = torch.tensor(arrays[names[0]].reshape(len(arrays[names[1]]), -1), dtype=torch.float32) / 16
    y = torch.tensor(arrays[names[1]], dtype=torch.long)
    own = slice(int(context.node_config["partition-id"]), None, 2)
    cut = int(0.6 * len(y[own]))
    return x[own][:cut], y[own][:cut], x[own][cut:], y[own][cut:]


def loaded(message: Message) -> nn.Module:
    torch.set_num_threads(1)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    model, (x, y, *_) = loaded(message), rows(context)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randperm(len(y)).split(32):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        steps.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, (_, _, x, y) = loaded(message), rows(context)
    correct = int((model(x).argmax(1) == y).sum())
    metrics = MetricRecord({"num-examples": len(y), "accuracy": correct / len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """The same, with a clock: a round begins when its messages are made."""

    times: list[float]

    def configure_train(self, *args, **options):
        self.times.append(time.perf_counter())
        return super().configure_train(*args, **options)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(min_available_nodes=2)
    strategy.times = []
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
    )
    ends = [*strategy.times[1:], time.perf_counter()]
    seconds = [end - start for start, end in zip(strategy.times, ends)]
    Path(str(context.run_config["out"])).write_text(json.dumps(seconds))
