"""Check 19: with some options a method is a simpler one, and with one client it is
plain training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core.blocks import Private, server_name
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Params
from fedblocks.core.random import derive
from fedblocks.core.schedules import at
from fedblocks.core.state import State
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.round import Engine, Experiment
from fedblocks.testing.compare import Leaves, close, differences
from fedblocks.testing.example import Alone, Example, Reduction
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rigged import Rigged, recast
from fedblocks.testing.rounds import ENGINES, run


def reductions(example: Example) -> list[LearningProblem]:
    """Every reduction that the example knows of holds, to the precision of its numbers."""
    if not example.reductions:
        question = "with which options is this method a simpler one?"
        return [LearningProblem(f"no reduction is given: {question}")]
    failures: list[LearningProblem] = []
    for reduction in example.reductions:
        for plain in ENGINES:
            engine = Rigged(plain, recast({}, phases_alike=True))
            if isinstance(reduction, Alone):
                sentences = _alone(example, reduction, engine)
            else:
                sentences = _compare_reduced(example, reduction, engine)
            failures += problems(sentences, f"{reduction.says}, {plain.name}")
    return failures


def _compare_reduced(example: Example, reduction: Reduction, engine: Engine) -> list[str]:
    ours = example.experiment(**reduction.options)
    other_method = _with_common_options(example, reduction)
    theirs = Experiment.of(other_method, example.federation, example.seed)
    our_end = run(ours, engine, example.cohorts()).last
    their_end = run(theirs, engine, example.cohorts()).last
    sentences: list[str] = []
    for own, other in reduction.blocks.items():
        mine = _held(ours, our_end, own)
        reference = _held(theirs, their_end, other)
        known = {place: value for place, value in reference.items() if place in mine}
        sentences += differences(mine, known, close(ours))
    return sentences


def _with_common_options(example: Example, reduction: Reduction) -> Method:
    """The other method with the options that it has in common with ours."""
    known = set(example.options)
    if is_dataclass(reduction.equals):
        known = {f.name for f in fields(reduction.equals)}
    common = {name: value for name, value in example.options.items() if name in known}
    return reduction.equals(**{**common, **reduction.theirs})


def _held(experiment: Experiment, state: State, name: str) -> Leaves:
    """The copies of a block: on the server its first slot, on clients one each."""
    method = next(iter(experiment.methods.values()))
    block = method.blocks()[name]
    if isinstance(block, Private):
        return {
            f'client {c}, tensor "{k}"': v
            for c, own in state.private.items()
            for k, v in own[name].items()
        }
    slots = state.server[server_name(name, block)]
    return {f'server, tensor "{k}"': v[0] for k, v in slots.items()}


def _alone(example: Example, alone: Alone, engine: Engine) -> list[str]:
    """One client for some rounds against a module and `torch.optim`."""
    client = int(example.federation.train.sizes.argmax())
    experiment = example.experiment(example.federation.subset([client]), [client], **alone.options)
    state = run(experiment, engine, [[0]] * example.rounds).last
    method = next(iter(experiment.methods.values()))
    ours: Leaves = {}
    for name in alone.blocks:
        held = _held(experiment, state, name)
        ours |= {place.split(", ")[1]: value for place, value in held.items()}
    plain = plain_training(method, experiment, example.rounds)
    expected = {f'tensor "{k}"': v for k, v in plain.items()}
    return differences(ours, expected, close(experiment))


def plain_training(method: Method, experiment: Experiment, rounds: int) -> Params:
    """The method's net, trained on client 0 with `torch.optim.SGD` in an ordinary loop."""
    module = method.net.make().to(method.net.dtype).train()
    start = method.net.init(derive(experiment.seed, "init", 0))
    module.load_state_dict({**start, **method.net.base}, strict=False)
    rows = torch.from_numpy(experiment.data.train[0])
    x, y = experiment.data.x[rows], experiment.data.y[rows]
    for number in range(rounds):
        _epochs(module, method, x, y, _order(method, experiment, number, len(rows)), number)
    state: dict[str, Tensor] = module.state_dict()
    return {name: state[name] for name in method.net.names}


def _order(method: Method, experiment: Experiment, number: int, count: int) -> Sequence[Any]:
    draw = Draw(experiment.seed, number, client=0, purpose="train")
    return batches(method, method.phases()[-1], 0, count, draw)


def _epochs(
    module: nn.Module, method: Method, x: Tensor, y: Tensor, order: Sequence[Any], number: int
) -> None:
    chosen = method.optimizer
    if not isinstance(chosen, SGD):
        raise TypeError("a reduction to plain training needs the SGD optimizer in its options")
    optimizer = torch.optim.SGD(
        module.parameters(),
        at(method.lr, number),
        momentum=chosen.momentum,
        nesterov=chosen.nesterov,
        weight_decay=chosen.weight_decay,
    )
    for index in order:
        optimizer.zero_grad()
        logits = module(x[index])
        F.cross_entropy(logits.movedim(-1, 1), y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
