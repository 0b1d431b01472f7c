"""A tensor without a gradient takes no step, as in `torch.optim`: its count of steps waits with its
moments, also where the next steps have a gradient for it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.batching import Draw, batches

ROWS, BATCH, EPOCHS = 9, 5, 6  # batches of 5 and 4 rows in turn
LARGE = (5, 2)  # or four of 2 and one of 1
CLIENTS = 3
ATTENDANCE = [[0, 1], [1, 2], [0, 1, 2]]  # so that clients have taken other numbers of steps
STRONG = 0.3  # so that what decays shows in the first digits


class TopOne(nn.Module):
    """The first row of a batch chooses the expert; the others have no gradient in that step."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = int(x[0, 0] > 0) + int(x[0, 1] > 0)
        return self.router(x) + self.experts[chosen](x)


class EverySecondStep(nn.Module):
    """A layer in front that only the larger ones of the batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.now_and_then, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.now_and_then(x) if len(x) in LARGE else x)


class Unused(nn.Module):
    """The first layer is in no prediction, and the second one in those of small batches."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.late, self.used = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) + (0 if len(x) in LARGE else self.late(x))


NETS = {
    make.__name__: fb.Net.of(make, dtype=torch.float64)
    for make in (TopOne, EverySecondStep, Unused)
}
TWINS: dict[str, tuple[Any, Any]] = {
    "momentum": (fb.SGD(momentum=0.9, weight_decay=STRONG), torch.optim.SGD),
    "nesterov": (fb.SGD(momentum=0.9, nesterov=True, weight_decay=STRONG), torch.optim.SGD),
    "adam": (fb.Adam(weight_decay=STRONG), torch.optim.Adam),
    "adamw": (fb.AdamW(weight_decay=STRONG), torch.optim.AdamW),
    "groups": (fb.AdamW(weight_decay=STRONG, decay="weights"), torch.optim.AdamW),
    "short": (fb.Adam(betas=(0.0, 0.0), eps=0.1), torch.optim.Adam),
}  # fmt: skip
ENGINES = {"plain": fb.Sequential(replay=False), "replayed": fb.Sequential(worth=1)}


def small_data() -> fb.Federation:
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(39, 6)).astype("float32"), draw.integers(0, 4, 39)
    data = fb.Federation.from_users(x, y, np.arange(39) % CLIENTS)
    assert all(len(rows) == ROWS for rows in data.train)
    return data


DATA = small_data()


def local(net: str, kind: str, keep: bool, **options: Any) -> fb.Method:
    usual = {"lr": 0.05, "batch_size": BATCH, "epochs": EPOCHS}
    return fb.Local(
        NETS[net], optimizer=TWINS[kind][0], keep_optimizer=keep, **{**usual, **options}
    )


def after(method: fb.Method, engine: Any) -> fb.State:
    experiment = fb.Experiment.of(method, DATA)
    state = experiment.start()
    for clients in ATTENDANCE:
        state, report = fb.run_round(experiment, state, clients, engine)
        assert not report.refusals
    return state


def steps(method: fb.Method, client: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
    rows = torch.from_numpy(np.array(DATA.train[client]))
    for batch in batches(method, method.phases()[0], 0, len(rows), Draw(0, round, client, "train")):
        where = rows[torch.from_numpy(batch)]
        yield DATA.x[where].double(), DATA.y[where]


def twin_of(method: fb.Method, make: Any, module: nn.Module) -> Any:
    options = {k: v for k, v in vars(method.optimizer).items() if k != "decay"}
    named = dict(module.named_parameters())
    exempt = [p for n, p in named.items() if n.endswith("bias")] if method.optimizer.decay else []
    decayed = [p for p in named.values() if not any(p is other for other in exempt)]
    groups = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
    return make(groups if exempt else decayed, lr=method.lr, **options)


def plainly(method: fb.Method, make: Any, client: int, start: dict[str, Tensor]) -> nn.Module:
    """One client in plain PyTorch, with one optimizer or a new one for each round."""
    module = deepcopy(method.net.template)
    module.load_state_dict(start)
    optimizer = twin_of(method, make, module)
    for round in (n for n, clients in enumerate(ATTENDANCE) if client in clients):
        optimizer = optimizer if method.keep_optimizer else twin_of(method, make, module)
        module.round = round
        for x, y in steps(method, client, round):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            if method.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), method.clip_norm)
            optimizer.step()
    return module


def assert_like_torch(method: fb.Method, make: Any, state: fb.State, near: float = 1e-12) -> None:
    start = method.net.init(fb.core.random.derive(0, "init", 0))
    for client in range(CLIENTS):
        ours, module = state.private[client]["model"], plainly(method, make, client, start)
        for name, value in module.named_parameters():
            torch.testing.assert_close(ours[name], value.detach(), rtol=0, atol=near)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize("kind", TWINS)
@pytest.mark.parametrize("net", NETS)
def test_tensors_that_lack_gradients_in_some_steps_train_as_in_torch(net, kind, keep, engine):
    method = local(net, kind, keep)
    assert_like_torch(method, TWINS[kind][1], after(method, ENGINES[engine]))


@pytest.mark.parametrize("keep", [False, True], ids=["anew", "kept"])
def test_gradients_that_are_not_there_are_no_part_of_the_clipped_norm(keep):
    method = local("TopOne", "adam", keep, clip_norm=0.3)
    assert_like_torch(method, torch.optim.Adam, after(method, ENGINES["plain"]))


class EverySecondRound(nn.Module):
    """A layer in front that rounds 0, 2 and so on use."""

    round = 0

    def __init__(self) -> None:
        super().__init__()
        self.now_and_then, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x if self.round % 2 else self.now_and_then(x))


ROUNDS = fb.Net.of(EverySecondRound, dtype=torch.float64)


class InSomeRounds(fb.Local):
    """Its loss is that of the net in its round."""

    def loss(self, blocks: Any, batch: fb.Batch) -> Tensor:
        w, x = blocks["model"], batch.x.double()
        if batch.client.round % 2 == 0:
            x = F.linear(x, w["now_and_then.weight"], w["now_and_then.bias"])
        return batch.loss(F.linear(x, w["last.weight"], w["last.bias"]))

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model", loss=self.loss),), self.epochs)]


@pytest.mark.parametrize("engine", [fb.Sequential(worth=1), fb.Vectorised()], ids=lambda e: e.name)
@pytest.mark.parametrize("kind", ["adam", "groups"])
def test_clients_of_a_stack_have_missed_the_rounds_that_each_was_there_for(kind, engine):
    """In the last round the first client's layer has missed nothing, and all others' have."""
    options = {"lr": 0.05, "batch_size": BATCH, "epochs": EPOCHS, "keep_optimizer": True}
    method = InSomeRounds(ROUNDS, optimizer=TWINS[kind][0], **options)
    state = after(method, engine)
    missed = [state.private[i]["optimizer/0/0"]["missed/0"].tolist() for i in range(CLIENTS)]
    assert missed == [[0.0] * 4, [2.0 * EPOCHS] * 2 + [0.0] * 2, [2.0 * EPOCHS] * 2 + [0.0] * 2]
    assert_like_torch(method, TWINS[kind][1], state)


@pytest.mark.filterwarnings("ignore::fedblocks.runs.progress.RunWarning")
def test_a_run_that_goes_on_goes_on_counting(tmp_path):
    options = {"batch_size": BATCH, "optimizer": fb.Adam(), "keep_optimizer": True}
    method = fb.FedAvg(NETS["TopOne"], lr=0.05, **options)
    start = lambda rounds, name: fb.run(
        method, DATA, rounds=rounds, out=tmp_path / name, engine="sequential", device="cpu"
    )
    whole, half = start(4, "whole"), start(2, "half")
    parts = fb.resume(half.folder, method, DATA, rounds=4)
    for key, value in whole.state().server["model"].items():
        assert torch.equal(value, parts.state().server["model"][key]), key
    kept = [blocks["optimizer/0/0"] for blocks in half.state().private.values()]
    assert any(block["missed/0"].any() for block in kept)
