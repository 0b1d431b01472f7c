"""What rests is not moved: not by weight decay, not by momentum or moments that were kept, and its
steps are not counted. `torch.optim` does the same with parameters that have no gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.parts import Blocks
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.processes.engine import Processes
from fedblocks.methods.fedmn.gates import matrices, modules_used
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import adapted_net

DATA = fb.small_federation()
CLIENT = max(range(DATA.clients), key=lambda i: len(DATA.train[i]))
STRONG = 0.3  # so that what decays shows in the first digits
NET = adapted_net()  # 6-5-4, an adapter of rank 2 and scale 2 beside the first layer, a head
DOWN, UP, HEAD = "lora.A", "lora.B", "head"
TWINS: dict[str, tuple[Any, Any]] = {
    "sgd": (fb.SGD(momentum=0.9, weight_decay=STRONG), torch.optim.SGD),
    "adam": (fb.Adam(weight_decay=STRONG), torch.optim.Adam),
    "adamw": (fb.AdamW(weight_decay=STRONG), torch.optim.AdamW),
}
ENGINES = {
    "sequential": fb.Sequential(replay=False),
    "replayed": fb.Sequential(worth=1),
    "vectorised": fb.Vectorised(),
}


def in_turn(kind: str, keep: bool, **options: Any) -> fb.FFALoRA:
    optimizer = TWINS[kind][0]
    usual = {"lr": 0.05, "epochs": 2, "batch_size": 4, "head": "shared", "turns": "alternate"}
    return fb.FFALoRA(NET, optimizer=optimizer, keep_optimizer=keep, **{**usual, **options})


def after(method: fb.Method, engine: Any, rounds: int = 4) -> fb.State:
    """Rounds of one client alone, so that the server has what the client sent."""
    experiment = fb.Experiment.of(method, DATA)
    state = experiment.start()
    for _ in range(rounds):
        state, report = fb.run_round(experiment, state, [CLIENT], engine)
        assert not report.refusals
    return state


def of_server(state: fb.State) -> dict[str, Tensor]:
    return {k: v[0] for name in (DOWN, UP, HEAD) for k, v in state.server[name].items()}


def steps(method: fb.Method, round: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the client in a round."""
    rows = torch.from_numpy(DATA.train[CLIENT].copy())
    draw = Draw(0, round, CLIENT, "train")
    for batch in batches(method, method.phases()[0], 0, len(rows), draw):
        where = rows[torch.from_numpy(batch)]
        yield DATA.x[where].double(), DATA.y[where]


def plainly(method: fb.FFALoRA, make: Any, rounds: int = 4) -> dict[str, Tensor]:
    """One client in plain PyTorch: the factor that rests has no gradient."""
    base = NET.base
    own = {
        k: v.requires_grad_() for k, v in of_server(fb.Experiment.of(method, DATA).start()).items()
    }
    options = {k: v for k, v in vars(method.optimizer).items() if k != "decay"}
    new = lambda: make(list(own.values()), lr=method.lr, **options)
    optimizer = new()
    for round in range(rounds):
        optimizer = optimizer if method.keep_optimizer else new()
        resting = own["0.lora_A" if round % 2 == 0 else "0.lora_B"]
        for x, y in steps(method, round):
            optimizer.zero_grad()
            weight = base["0.weight"] + 2.0 * own["0.lora_B"] @ own["0.lora_A"]
            hidden = torch.tanh(F.linear(x, weight, base["0.bias"]))
            F.cross_entropy(F.linear(hidden, own["2.weight"], own["2.bias"]), y).backward()
            resting.grad = None
            if method.clip_norm is not None:
                nn.utils.clip_grad_norm_(own.values(), method.clip_norm)
            optimizer.step()
    return {k: v.detach() for k, v in own.items()}


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [False, True], ids=["anew", "kept"])
@pytest.mark.parametrize("kind", TWINS)
def test_factors_in_turn_are_those_of_torch_in_which_one_has_no_gradient(kind, keep, engine):
    method = in_turn(kind, keep)
    assert_close(of_server(after(method, ENGINES[engine])), plainly(method, TWINS[kind][1]))


def test_a_factor_that_rests_is_no_part_of_the_clipped_norm():
    method = in_turn("sgd", False, clip_norm=0.05)
    assert_close(of_server(after(method, fb.Vectorised())), plainly(method, torch.optim.SGD))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_what_rests_rests_in_processes_too():
    engine = Processes(count=2)
    try:
        there = after(in_turn("adam", True), engine)
    finally:
        engine.close()
    assert_close(of_server(there), plainly(in_turn("adam", True), torch.optim.Adam))


def test_lanes_in_other_rounds_and_of_other_decays_rest_each_in_its_own_turn():
    """The second lane is a round behind: in every step one factor rests here, the other there."""
    first = in_turn("adam", True)
    methods = [first, replace(first, optimizer=fb.Adam(weight_decay=0.1))]
    experiments = [fb.Experiment.of(method, DATA) for method in methods]
    ahead, _ = fb.run_round(experiments[0], experiments[0].start(), [CLIENT], fb.Vectorised())
    states, lanes = [ahead, experiments[1].start()], Lanes(experiments)
    for _ in range(3):
        ends = lanes.run_round(states, [[CLIENT], [CLIENT]], fb.Vectorised())
        states = [state for state, _ in ends]
    for state, method, rounds in zip(states, methods, (4, 3), strict=True):
        assert_close(of_server(state), plainly(method, torch.optim.Adam, rounds))


class Aside(nn.Module):
    """A layer that the prediction uses, and one that it never does."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.aside = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", TWINS)
def test_tensors_without_a_gradient_do_not_decay_as_in_torch(kind, engine):
    optimizer, make = TWINS[kind]
    net = fb.Net.of(Aside, dtype=torch.float64)
    method = fb.FedAvg(net, lr=0.05, batch_size=4, optimizer=optimizer, keep_optimizer=True)
    module = Aside().double()
    start = fb.Experiment.of(method, DATA).start().server["model"]
    module.load_state_dict({k: v[0] for k, v in start.items()})
    options = {k: v for k, v in vars(optimizer).items() if k != "decay"}
    twin = make(module.parameters(), lr=0.05, **options)
    for round in range(2):
        for x, y in steps(method, round):
            twin.zero_grad()
            F.cross_entropy(module(x), y).backward()
            twin.step()
    end = {k: v[0] for k, v in after(method, ENGINES[engine], 2).server["model"].items()}
    assert_close(end, {k: v.detach() for k, v in module.named_parameters()})
    assert torch.equal(end["aside.weight"], start["aside.weight"][0])


@dataclass(frozen=True, eq=False)
class SlotsInTurn(fb.Method):
    """Two models; in round t only slot t % 2 trains, and a client predicts with their mean."""

    def blocks(self) -> dict[str, fb.Block]:
        return {"models": fb.Pool(self.net.whole, 2)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net({k: v.mean(0) for k, v in blocks["models"].items()}, x)

    def phases(self) -> list[fb.Phase]:
        pull = fb.Pull("models", to="models", strength=0.5)
        return [fb.Phase((self.step("models", pull=pull, rests=self.resting),), self.epochs)]

    def resting(self, blocks: Blocks, client: fb.Client) -> dict[str, Tensor]:
        slots = torch.arange(2, device=client.size.device)
        return {"models": slots != (torch.zeros_like(client.size) + client.round) % 2}


@pytest.mark.parametrize("engine", ENGINES)
def test_single_slots_rest_with_their_moments_and_counts(engine):
    """Rounds 0 and 2 are the first slot's, round 1 is the second's."""
    net = fb.Net.of(lambda: nn.Linear(6, 4), dtype=torch.float64)
    options = {"lr": 0.05, "batch_size": 4, "optimizer": fb.AdamW(weight_decay=STRONG)}
    method = SlotsInTurn(net, keep_optimizer=True, **options)
    states = [after(method, ENGINES[engine], rounds) for rounds in range(4)]
    for round, (before, now) in enumerate(pairwise(states)):
        for key, value in now.server["models"].items():
            rested, moved = 1 - round % 2, round % 2
            assert torch.equal(value[rested], before.server["models"][key][rested]), key
            assert not torch.equal(value[moved], before.server["models"][key][moved]), key
    kept = states[3].private[CLIENT]["optimizer/0/0"]
    batches_a_round = len(list(steps(method, 0)))
    assert kept["count/0"].tolist() == [2 * batches_a_round, batches_a_round]
    earlier = states[2].private[CLIENT]["optimizer/0/0"]
    assert torch.equal(kept["mean/0"][1], earlier["mean/0"][1])  # round 2 is the first slot's
    assert not torch.equal(kept["mean/0"][0], earlier["mean/0"][0])


@dataclass(frozen=True, eq=False)
class EverySecondRound(fb.FedAvg):
    """The head trains in every round, the body rests in the first, the third and so on."""

    def blocks(self) -> dict[str, fb.Block]:
        return {"body": fb.Shared(self.net.body), "head": fb.Shared(self.net.head)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net({**blocks["body"], **blocks["head"]}, x)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("body", "head", rests=self.resting),), self.epochs)]

    def resting(self, blocks: Blocks, client: fb.Client) -> dict[str, Tensor]:
        return {"body": (torch.zeros_like(client.size) + client.round) % 2 == 0}


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_of_a_block_that_rests_stay(engine):
    make = lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 4))
    method = EverySecondRound(fb.Net.of(make, dtype=torch.float64), lr=0.05, batch_size=4)
    states = [after(method, ENGINES[engine], rounds) for rounds in range(3)]
    body = [state.server["body"] for state in states]
    assert "1.running_mean" in body[0]
    for key in body[0]:
        assert torch.equal(body[0][key], body[1][key]), key
        assert not torch.equal(body[1][key], body[2][key]), key


@pytest.mark.parametrize("router_lr", [None, 0.5], ids=["together", "apart"])
def test_fedmn_rests_its_router_while_gates_are_open_and_modules_that_are_not_used(router_lr):
    example = EXAMPLES["fedmn"]()
    changes = {"optimizer": fb.SGD(weight_decay=STRONG), "router_lr": router_lr}
    experiment = example.experiment(**changes)
    method = experiment.methods["all"]
    start = experiment.start()
    state, _ = fb.run_round(experiment, start, [CLIENT], fb.Vectorised())
    for key, value in state.server["router"].items():
        assert torch.equal(value, start.server["router"][key]), key
    later, _ = fb.run_round(experiment, state, [CLIENT], fb.Vectorised())
    for key, value in later.server["router"].items():
        assert torch.equal(value, state.server["router"][key]) is (not key.startswith("gates")), key
    unused = 0
    for client in range(DATA.clients):
        job = experiment.training_job("all", [client], state)
        trained = fb.Vectorised().train(replace_kept(job))
        gates = matrices(trained.blocks["gates"]["value"][0], method.modules)
        for name, used in zip(method.layers, modules_used(gates), strict=False):
            for key, value in trained.blocks[name].items():
                for slot in (used == 0).nonzero().flatten().tolist():
                    unused += 1
                    sent = state.server[name][key][slot]
                    assert torch.equal(value[0][slot], sent) or not value[0][slot].any()
    assert unused


def replace_kept(job: Any) -> Any:
    """The same job, after which every block can be looked at."""
    kind = type("Open", (type(job),), {"kept_blocks": property(lambda own: {*own.method.blocks()})})
    return kind(**{name: getattr(job, name) for name in job.__dataclass_fields__})


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (lambda client: {"other": client.size > 0}, '"other"'),
        (lambda client: {"models": client.size}, "float32"),
        (lambda client: {"models": torch.ones(3) > 0}, r"\[3\]"),
        (lambda client: True, "bool"),
    ],
)
def test_an_answer_that_is_no_block_or_no_truth_is_refused(answer, wrong, tmp_path):
    class Odd(SlotsInTurn):
        def resting(self, blocks: Blocks, client: fb.Client) -> Any:
            return answer(client)

    method = Odd(fb.Net.of(lambda: nn.Linear(6, 4)), lr=0.1)
    with pytest.raises(fb.UserError, match=wrong):
        fb.run(method, DATA, rounds=1, out=tmp_path / "run")
