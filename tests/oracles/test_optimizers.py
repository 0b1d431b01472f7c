"""Local optimizers are those of torch.optim, alone, on a stack of clients, and inside a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedblocks.core.optimizers import SGD, Adam, AdamW, Optimizer
from fedblocks.core.schedules import Exponential, Milestones
from fedblocks.methods.fedavg import FedAvg

from .harness import BATCH, ENGINES, SIZES, federation, mlp, mlp_net, play, task_of

STEPS = 10
SHAPES = ((4, 3), (4,), ())

Reference = Callable[[Sequence[Tensor], float], torch.optim.Optimizer]
PAIRS: dict[str, tuple[Optimizer, Reference]] = {
    "sgd": (SGD(), lambda p, lr: torch.optim.SGD(p, lr)),
    "decay": (SGD(weight_decay=0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    "momentum": (SGD(0.9), lambda p, lr: torch.optim.SGD(p, lr, 0.9)),
    "momentum and decay": (
        SGD(0.9, weight_decay=0.1),
        lambda p, lr: torch.optim.SGD(p, lr, 0.9, weight_decay=0.1),
    ),
    "nesterov and decay": (
        SGD(0.9, nesterov=True, weight_decay=0.1),
        lambda p, lr: torch.optim.SGD(p, lr, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam": (Adam(), lambda p, lr: torch.optim.Adam(p, lr)),
    "adam, other constants": (
        Adam((0.8, 0.95), eps=1e-3, weight_decay=0.1),
        lambda p, lr: torch.optim.Adam(p, lr, (0.8, 0.95), 1e-3, 0.1),
    ),
    "adamw": (AdamW(), lambda p, lr: torch.optim.AdamW(p, lr)),
    "adamw, other constants": (
        AdamW((0.8, 0.95), eps=1e-3, weight_decay=0.3),
        lambda p, lr: torch.optim.AdamW(p, lr, (0.8, 0.95), 1e-3, 0.3),
    ),
}


def drawn(number: int, count: int) -> list[Tensor]:
    """A stack of `count` clients' tensors."""
    generator = torch.Generator().manual_seed(number)
    return [
        torch.randn(count, *shape, generator=generator, dtype=torch.float64) for shape in SHAPES
    ]


def by_torch(
    reference: Reference, start: list[Tensor], grads: list[list[Tensor]], lr: float
) -> list[Tensor]:
    params = [p.clone().requires_grad_() for p in start]
    optimizer = reference(params, lr)
    for step in grads:
        for p, g in zip(params, step):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


def by_us(
    optimizer: Optimizer, start: list[Tensor], grads: list[list[Tensor]], lr: float
) -> list[Tensor]:
    params = [p.clone() for p in start]
    memory = optimizer.memory(params)
    for count, step in enumerate(grads, 1):
        optimizer.step(params, step, memory, lr, count)
    return params


@pytest.mark.parametrize("name", PAIRS)
def test_ten_steps_of_one_client_are_those_of_torch(name: str) -> None:
    ours, reference = PAIRS[name]
    start, grads = (
        [p[0] for p in drawn(0, 1)],
        [[g[0] for g in drawn(s, 1)] for s in range(1, STEPS + 1)],
    )
    for mine, expected in zip(
        by_us(ours, start, grads, 0.05), by_torch(reference, start, grads, 0.05)
    ):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", PAIRS)
def test_ten_steps_of_a_stack_are_those_of_each_client_alone(name: str) -> None:
    ours, reference = PAIRS[name]
    start, grads = drawn(0, 3), [drawn(s, 3) for s in range(1, STEPS + 1)]
    stacked = by_us(ours, start, grads, 0.05)
    for client in range(3):
        alone = by_torch(
            reference,
            [p[client] for p in start],
            [[g[client] for g in step] for step in grads],
            0.05,
        )
        for mine, expected in zip(stacked, alone):
            torch.testing.assert_close(mine[client], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", PAIRS)
def test_a_step_leaves_the_gradients_as_they_are(name: str) -> None:
    params, grads = drawn(0, 1), drawn(1, 1)
    memory = PAIRS[name][0].memory(params)
    for count in (1, 2):
        PAIRS[name][0].step(params, grads, memory, 0.05, count)
    for kept, before in zip(grads, drawn(1, 1)):
        assert torch.equal(kept, before)


def loop(client: int, reference: Reference, lrs: Sequence[float]) -> dict[str, Tensor]:
    """One client trains alone, as anybody would write it: a fresh optimizer in every round."""
    method = FedAvg(mlp_net(), epochs=2, batch_size=BATCH)
    rounds = [cohort[client][0] for cohort in task_of(method).rounds]
    data, module = federation(), mlp().double()
    x, y = data.x[data.train[client]], data.y[data.train[client]]
    module.load_state_dict({k: torch.from_numpy(v) for k, v in task_of(method).start[0].items()})
    for lr, batches in zip(lrs, rounds, strict=True):
        optimizer = reference(list(module.parameters()), lr)
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    return {k: v.detach() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PAIRS)
def test_fedavg_of_one_client_is_a_plain_training_loop(name: str, engine: str) -> None:
    ours, reference = PAIRS[name]
    assert SIZES[1] % BATCH == 1  # the last batch is a single example
    method = FedAvg(mlp_net(), lr=0.03, epochs=2, batch_size=BATCH, optimizer=ours)
    _, state = play(method, ENGINES[engine], cohorts=((1,), (1,)))
    for k, v in loop(1, reference, (0.03, 0.03)).items():
        torch.testing.assert_close(state.server["model"][k][0], v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schedule_sets_the_learning_rate_of_each_round(engine: str) -> None:
    method = FedAvg(mlp_net(), lr=Milestones(0.2, (1,), 0.25), epochs=2, batch_size=BATCH)
    _, state = play(method, ENGINES[engine], cohorts=((1,), (1,)))
    for k, v in loop(1, PAIRS["sgd"][1], (0.2, 0.05)).items():
        torch.testing.assert_close(state.server["model"][k][0], v, rtol=0, atol=1e-12)


def test_schedules_go_where_they_say() -> None:
    falling = Milestones(1.0, (2, 5), 0.1)
    assert [falling(t) for t in range(7)] == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])
    fading = Exponential(1.0, 0.01, 4)
    assert [fading(t) for t in range(6)] == pytest.approx([1, 10**-0.5, 0.1, 10**-1.5, 0.01, 0.01])
