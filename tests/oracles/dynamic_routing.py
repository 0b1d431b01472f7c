"""DynamicRouting, the baseline of the Flow poster: two encoders that start apart, one
router, all of it averaged.
"""

from __future__ import annotations

from .autograd import Data, Params, arrays, descend, entropy, mean, tensors
from .flow import Kind, Options
from .plain import Batches, Outcome, Task

FIRST, SECOND, COMMON, THETA = "first/", "second/", "common/", "theta/"


def part(net: Params, start: str) -> Params:
    return {k.removeprefix(start): v for k, v in net.items() if k.startswith(start)}


def begin(task: Task, theta: Params, kind: Kind) -> Params:
    """Everything that is learned, as one dict."""
    one, two = tensors(task.start[0]), tensors(task.start[1])
    net = {(FIRST if k.startswith(kind.enc_only) else COMMON) + k: v for k, v in one.items()}
    net |= {SECOND + k: v for k, v in two.items() if k.startswith(kind.enc_only)}
    return net | {THETA + k: v for k, v in theta.items()}


def logits(net: Params, x, kind: Kind, o: Options):
    first = {**part(net, COMMON), **part(net, FIRST)}
    return kind.mixed(first, part(net, SECOND), part(net, THETA), x, o, False)


def trained(net: Params, batches: Batches, data: Data, kind: Kind, o: Options, lr: float) -> Params:
    """One update of everything for every batch."""
    loss = lambda v, b: entropy(logits(v, data.x[b], kind, o), data.y[b])
    return descend(net, batches, loss, {"": lr}, o.momentum)


def run(task: Task, theta: Params, kind: Kind, o: Options, tune_lr: float) -> Outcome:
    net, train = begin(task, theta, kind), [Data.of(pair) for pair in task.train]
    for cohort in task.rounds:
        copies = [
            trained(net, batches, train[i], kind, o, o.lr) for i, (batches,) in cohort.items()
        ]
        net = mean(copies, [task.size(i) for i in cohort])
    answers = {}
    for i in task.clients:
        own = trained(net, task.adapting[i][0], train[i], kind, o, tune_lr)
        answers[i] = logits(own, Data.of(task.test[i]).x, kind, o).numpy()
    branches = [arrays(part(net, FIRST)), arrays(part(net, SECOND))]
    server = {
        "common": [arrays(part(net, COMMON))],
        "branches": branches,
        "router": [arrays(part(net, THETA))],
    }
    return Outcome(server, {}, {"personal": answers})
