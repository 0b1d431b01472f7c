"""Methods as people get them wrong: each body replaces functions of one that is right, and must be
refused in words that name the function and say `said`.
"""

from typing import NamedTuple

# what all of them start from: a shared body, a head of one's own
RIGHT = '''
from dataclasses import dataclass

import torch

import fedblocks as fb


@dataclass(frozen=True, eq=False)
class Odd(fb.Method):
    """A body for all, a head for each."""

    def blocks(self):
        return {"body": fb.Shared(self.net.body), "head": fb.Private(self.net.head)}

    def predict(self, blocks, x):
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self):
        return [fb.Phase((self.step("body", "head"),), self.epochs)]
'''


class Wrong(NamedTuple):
    """One mistake."""

    body: str  # functions of the class
    where: str  # the function that is named
    said: str  # a part of the message


BLOCKS = "def blocks(self):\n    body, head = self.net.body, self.net.head\n"
PREDICT = "def predict(self, blocks, x):\n"
PHASES = "def phases(self):\n"
PREPARE = "def prepare(self, blocks, client):\n"
FINISH = "def finish(self, blocks, start, client):\n"
WRITES = "def writes(self, blocks, client):\n"
READS = "def reads(self, server, cohort):\n"
CONCLUDE = "def conclude(self, server, before, uploads, cohort):\n"
HALF = "{k: v.to(torch.bfloat16) for k, v in blocks['body'].items()}"
LONG = "{k: torch.cat([v, v]) for k, v in blocks['body'].items()}"
ON_META = "{k: v.to('meta') for k, v in blocks['body'].items()}"

WRONG = {
    # pulls
    "a pull between blocks of other tensors": Wrong(
        PHASES + "    pull = fb.Pull('body', to='head', strength=1.0)\n"
        "    return [fb.Phase((self.step('body', 'head', pull=pull),), 1)]",
        "phases",
        'pulls block "body" to "head": the one has',
    ),
    # blocks
    "no blocks": Wrong(BLOCKS + "    return {}", "blocks", "no block"),
    "blocks forgets to return": Wrong(BLOCKS + "    {}", "blocks", "None"),
    "a list of blocks": Wrong(BLOCKS + "    return [fb.Shared(body)]", "blocks", "a list"),
    "a block without a home": Wrong(
        BLOCKS + "    return {'body': fb.Shared(body), 'head': head}", "blocks", "a Piece"
    ),
    "a home that is a class": Wrong(
        BLOCKS + "    return {'body': fb.Shared(body), 'head': fb.Private}", "blocks", "Private"
    ),
    "a home of a tensor": Wrong(
        BLOCKS + "    return {'body': fb.Shared(body), 'head': fb.Private(torch.zeros(2))}",
        "blocks",
        "fb.Value(",
    ),
    "a block whose name is a number": Wrong(
        BLOCKS + "    return {0: fb.Shared(body), 'head': fb.Private(head)}", "blocks", "an int"
    ),
    "a pool without slots": Wrong(
        BLOCKS + "    return {'body': fb.Pool(body, 0), 'head': fb.Private(head)}", "blocks", "slot"
    ),
    "an upload from nowhere": Wrong(
        BLOCKS + "    return {'body': fb.Shared(body, of='boddy'), 'head': fb.Private(head)}",
        "blocks",
        '"boddy"',
    ),
    "an error in blocks": Wrong(
        BLOCKS + "    return {'body': fb.Shared(self.net.boddy)}", "blocks", "AttributeError"
    ),
    "blocks with a parameter": Wrong("def blocks(self, net):\n    return {}", "blocks", "net"),
    # predict
    "a block that is not there": Wrong(
        PREDICT + "    return self.net(fb.join(blocks['body'], blocks['tail']), x)",
        "predict",
        "KeyError: 'tail'",
    ),
    "a block left out of predict": Wrong(
        PREDICT + "    return self.net(blocks['body'], x)", "predict", '"head"'
    ),
    "predict forgets to return": Wrong(
        PREDICT + "    self.net(fb.join(blocks['body'], blocks['head']), x)", "predict", "None"
    ),
    "predict returns a pair": Wrong(
        PREDICT + "    return self.net(fb.join(blocks['body'], blocks['head']), x), 1",
        "predict",
        "a tuple",
    ),
    "predict returns classes": Wrong(
        PREDICT + "    return self.net(fb.join(blocks['body'], blocks['head']), x).argmax(1)",
        "predict",
        "[",
    ),
    "predict without inputs": Wrong("def predict(self, blocks):\n    return 0", "predict", "x"),
    "blocks given to the net": Wrong(PREDICT + "    return self.net(blocks, x)", "predict", "join"),
    # phases
    "a phase without a list": Wrong(
        PHASES + "    return fb.Phase((self.step('body', 'head'),))", "phases", "a Phase"
    ),
    "phases one by one": Wrong(
        PHASES + "    yield fb.Phase((self.step('body', 'head'),))", "phases", "a generator"
    ),
    "a learning rate in words": Wrong(
        PHASES + "    return [fb.Phase((self.step('body', lr='0.1'),))]", "phases", "'0.1'"
    ),
    "phases forgets to return": Wrong(PHASES + "    self.step('body')", "phases", "None"),
    "an update for a phase": Wrong(PHASES + "    return [self.step('body')]", "phases", "Update"),
    "an update without a comma": Wrong(
        PHASES + "    return [fb.Phase((self.step('body', 'head')))]", "phases", "updates"
    ),
    "a phase of a block that is not there": Wrong(
        PHASES + "    return [fb.Phase((self.step('body', 'tail'),))]", "phase", '"tail"'
    ),
    "epochs of a half": Wrong(
        PHASES + "    return [fb.Phase((self.step('body', 'head'),), 0.5)]", "phases", "0.5"
    ),
    "another half of the data": Wrong(
        PHASES + "    return [fb.Phase((self.step('body', 'head'),), on='half')]",
        "phases",
        "'half'",
    ),
    "a loss for each example": Wrong(
        "def loss(self, blocks, batch):\n"
        "    return torch.nn.functional.cross_entropy(\n"
        "        self.predict(blocks, batch.x), batch.y, reduction='none')",
        "loss",
        "shape [",
    ),
    "a loss that is a number": Wrong(
        "def loss(self, blocks, batch):\n"
        "    return float(batch.loss(self.predict(blocks, batch.x)))",
        "loss",
        "a float",
    ),
    "adaptation is one phase": Wrong(
        "def adaptation(self):\n    return fb.Phase((self.step('head'),))", "adaptation", "a Phase"
    ),
    # prepare, finish
    "prepare forgets to return": Wrong(PREPARE + "    blocks['body']", "prepare", "None"),
    "prepare returns a tensor": Wrong(
        PREPARE + "    return {'body': torch.ones(3), 'head': blocks['head']}", "prepare", "Tensor"
    ),
    "prepare without a client": Wrong(
        "def prepare(self, blocks):\n    return blocks", "prepare", "client"
    ),
    "prepare of something else": Wrong(
        PREPARE + "    return {**blocks, 'body': blocks['head']}", "prepare", '"body"'
    ),
    "prepare writes into what all are sent": Wrong(
        PREPARE + "    next(iter(blocks['body'].values())).add_(1)\n    return blocks",
        "prepare",
        "writes into",
    ),
    "conclude writes into the last state": Wrong(
        CONCLUDE + "    next(iter(before['body'].values())).mul_(2)\n    return server",
        "conclude",
        "writes into",
    ),
    "finish forgets to return": Wrong(FINISH + "    blocks['body']", "finish", "None"),
    "finish returns a tensor": Wrong(
        FINISH + "    return next(iter(blocks['body'].values()))", "finish", "a Tensor"
    ),
    "finish leaves out a block": Wrong(
        FINISH + "    return {'body': blocks['body']}", "finish", '"head"'
    ),
    "finish of another type": Wrong(
        FINISH + f"    return {{**blocks, 'body': {HALF}}}", "finish", "bfloat16"
    ),
    "finish of another shape": Wrong(
        FINISH + f"    return {{**blocks, 'body': {LONG}}}", "finish", "shape"
    ),
    "finish on another device": Wrong(
        FINISH + f"    return {{**blocks, 'body': {ON_META}}}", "finish", "meta"
    ),
    "finish leaves out a tensor": Wrong(
        FINISH + "    return {**blocks, 'head': {}}", "finish", '"head"'
    ),
    "finish has an error": Wrong(
        FINISH + "    return {**blocks, 'body': blocks['body'] + 1}", "finish", "TypeError"
    ),
    # writes, wants, reads
    "a weight above the labels of a client": Wrong(
        WRITES + "    return {'body': 2 * client.size}", "writes", "a client with"
    ),
    "a weight below 0": Wrong(
        WRITES + "    return {'body': -client.size}", "writes", "weight of -"
    ),
    "writes a number": Wrong(WRITES + "    return 1.0", "writes", "a float"),
    "writes a dictionary of numbers": Wrong(
        WRITES + "    return {'body': 1.0}", "writes", "a float"
    ),
    "writes a block that is not there": Wrong(
        WRITES + "    return {'boddy': client.size}", "writes", '"boddy"'
    ),
    "writes a private block": Wrong(
        WRITES + "    return {'head': client.size}", "writes", '"head"'
    ),
    "writes as many slots as there are not": Wrong(
        WRITES + "    return {'body': torch.ones(3)}", "writes", "[3]"
    ),
    "reads a tensor": Wrong(READS + "    return {'body': torch.ones(4)}", "reads", "a Tensor"),
    "reads a private block": Wrong(
        READS + "    return {'head': fb.Selection(cohort.ids * 0)}", "reads", '"head"'
    ),
    "reads for other clients": Wrong(
        READS + "    return {'body': fb.Mixture(torch.ones(7, 1))}", "reads", "[7, 1]"
    ),
    "reads slots that are not there": Wrong(
        READS + "    return {'body': fb.Selection(cohort.ids * 0 + 5)}", "reads", "slot 5"
    ),
    # conclude, views
    "conclude forgets to return": Wrong(CONCLUDE + "    server['body']", "conclude", "None"),
    "conclude of a block that is not there": Wrong(
        CONCLUDE + "    return {**server, 'boddy': server['body']}", "conclude", '"boddy"'
    ),
    "conclude without slots": Wrong(
        CONCLUDE + "    return {'body': {k: v[0] for k, v in server['body'].items()}}",
        "conclude",
        "shape",
    ),
    "conclude leaves out a tensor": Wrong(
        CONCLUDE + "    return {'body': dict(list(server['body'].items())[1:])}",
        "conclude",
        "weight",
    ),
    "conclude of another type": Wrong(
        CONCLUDE + "    return {'body': {k: v.double() for k, v in server['body'].items()}}",
        "conclude",
        "float64",
    ),
    "conclude has an error": Wrong(CONCLUDE + "    return server['boddy']", "conclude", "KeyError"),
    "views of nothing": Wrong("def views(self):\n    return {}", "views", "personal"),
    "views as a list": Wrong("def views(self):\n    return [self.predict]", "views", "a list"),
    # what only describes
    "remarks with an error": Wrong(
        "def remarks(self, tags):\n    return tags['none']", "remarks", "KeyError: 'none'"
    ),
    "degenerate forgets to return": Wrong("def degenerate(self):\n    []", "degenerate", "None"),
    "conclusions with an error": Wrong(
        "def conclusions(self, portraits):\n    return portraits['x']", "conclusions", "KeyError"
    ),
    "a portrait of a number": Wrong(
        "def portrait(self, blocks, client):\n    return {'a': 1.0}", "portrait", "a float"
    ),
    # the class itself
    "an error when it is made": Wrong(
        "def __post_init__(self):\n    raise ValueError('a bad day')", "method", "a bad day"
    ),
    "a method that forgets predict": Wrong("predict = fb.Method.predict", "predict", "must"),
    "options as a tuple": Wrong("tags = 'cohort'", "tags", "cohort"),
}
