"""FedMN: the limit cases of its paper, what travels, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.core.random import uniform
from fedblocks.core.schedules import at
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedmn.gates import concrete, connect, edges, matrices, modules_reached
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.pool import AS_PRINTED
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.federations import CLASSES, FEATURES, SIZES, small_federation, small_net

EVERYBODY = list(range(len(SIZES)))
SMALL: dict[str, object] = {
    "modules": (2, 2, 2),
    "widths": (6, 5),
    "dropout": 0.0,
    "summary_width": 4,
    "label_width": 3,
}
ROUNDS = 4  # of a run that knows its length
POOLS = ("encoders", "modules.2", "outputs")


def small(**options: object) -> FedMN:
    """FedMN as it is printed, and small."""
    return ours(**{**AS_PRINTED, **SMALL, **options})


def ours(**options: object) -> FedMN:
    """FedMN with its defaults, small, in a run of ROUNDS rounds."""
    common = {"net": small_net(), "lr": 0.2, "epochs": 2, "batch_size": 4}
    return FedMN(**{**common, **SMALL, **options}).over(ROUNDS)  # type: ignore[arg-type]


def biased(state: State, bias: Tensor) -> State:
    """The same state with a router that says this of every client."""
    router = {k: torch.zeros_like(v) for k, v in state.server["router"].items()} | {
        "gates.bias": bias[None].double()
    }
    return replace(state, server={**state.server, "router": router})


def one_round(method: FedMN, bias: Tensor | None = None) -> tuple[State, State, Report]:
    experiment = Experiment.of(method, small_federation())
    before = experiment.start() if bias is None else biased(experiment.start(), bias)
    return before, *run_round(experiment, before, EVERYBODY, Sequential())


def client_blocks(method: FedMN, gates: Tensor) -> Blocks:
    """What a client with every module would hold."""
    server = Experiment.of(method, small_federation()).start().server
    return {name: server[name] for name in method.layers} | {"gates": {"value": gates.double()}}


@pytest.mark.parametrize(
    ("modules", "count"), [((2, 2, 2), 10), ((3, 3, 3), 21), ((1, 4, 3), 19), ((3, 2), 8)]
)
def test_a_pool_has_a_gate_for_each_edge_and_each_output(
    modules: tuple[int, ...], count: int
) -> None:
    assert edges(modules) == count
    assert [m.shape for m in matrices(torch.zeros(count), modules)] == [
        (b, a) for a, b in pairwise((*modules, 1))
    ]


def test_open_gates_and_equal_modules_are_the_plain_net() -> None:
    method = small(modules=(2, 3, 2))
    blocks = client_blocks(method, torch.ones(edges(method.modules)))
    equal = {
        n: {k: v[:1].expand_as(v) for k, v in b.items()} if n in POOLS else b
        for n, b in blocks.items()
    }
    plain = {k: v[0] for name in POOLS for k, v in equal[name].items()}
    x = small_federation().x
    assert torch.allclose(method.predict(equal, x), method.path(plain, x), atol=1e-12)


def test_modules_that_are_not_reached_change_no_logit_and_get_no_gradient() -> None:
    """Gates of (2, 2, 2): the second middle block has no way in; the second output has
    one way in, from it.
    """
    method = small()
    gates = torch.tensor([1, 1, 0, 0, 1, 1, 0, 1, 1, 1.0])
    blocks = client_blocks(method, gates)
    for name in POOLS:
        blocks[name] = {k: v.clone().requires_grad_() for k, v in blocks[name].items()}
    x = small_federation().x
    logits = method.predict(blocks, x)
    logits.square().sum().backward()
    for name in ("modules.2", "outputs"):
        assert all(
            v.grad is not None and v.grad[0].any() and not v.grad[1].any()
            for v in blocks[name].values()
        )
    other = {
        n: {k: torch.cat([v[:1], v[1:] + 7]) for k, v in blocks[n].items()}
        for n in ("modules.2", "outputs")
    }
    assert torch.equal(method.predict({**blocks, **other}, x), logits)


def test_modules_of_a_pool_start_different_and_share_no_memory() -> None:
    server = Experiment.of(small(modules=(3, 3, 3)), small_federation()).start().server
    for name in POOLS:
        for value in server[name].values():
            assert value.is_contiguous()
            for slot in (1, 2):
                assert not torch.equal(value[0], value[slot])


def test_open_gates_average_every_module_like_fedavg() -> None:
    open_gates = torch.full((10,), 40.0)
    _, printed, _ = one_round(small(normalise_blocks=False), open_gates)
    before, after, report = one_round(small(), open_gates)
    assert not differences(state_leaves(printed), state_leaves(after), 1e-12)
    experiment = Experiment.of(small(), small_federation())
    apart = [run_round(experiment, before, [client], Sequential())[0] for client in EVERYBODY]
    for name in POOLS:
        for key, value in after.server[name].items():
            mean = sum(n * s.server[name][key] for n, s in zip(SIZES, apart, strict=True)) / sum(
                SIZES
            )
            assert torch.allclose(value, mean, atol=1e-12)
    assert set(report.bytes_down["modules.2"].values()) == {2 * (6 * 5 + 5) * 8}


def second_middle_block_closed() -> Tensor:
    bias = torch.full((10,), 40.0)
    bias[2:4] = -40  # the edges into it
    return bias


def test_a_block_nobody_chose_is_unchanged() -> None:
    before, after, _ = one_round(small(), second_middle_block_closed())
    for key, value in after.server["modules.2"].items():
        assert torch.equal(value[1], before.server["modules.2"][key][1])
        assert not torch.equal(value[0], before.server["modules.2"][key][0])


def test_the_printed_average_makes_a_block_nobody_chose_zero() -> None:
    _, after, _ = one_round(small(normalise_blocks=False), second_middle_block_closed())
    assert all(not v[1].any() and v[0].any() for v in after.server["modules.2"].values())


def test_a_gradient_reaches_every_tensor_of_the_router_and_every_gate() -> None:
    for options in ({}, {"gate_mode": "soft"}):
        before, after, _ = one_round(small(modules=(2, 3, 2), **options))
        moved = {k: v != before.server["router"][k] for k, v in after.server["router"].items()}
        assert all(m.any() for m in moved.values())
        assert moved["gates.bias"].all()


def test_hard_choices_are_as_frequent_as_the_router_says_at_every_temperature() -> None:
    logits = torch.tensor([-2.0, -0.5, 0.0, 1.0, 3.0])
    draws = 40_000
    noise = uniform(torch.tensor(5), (draws, 5))
    for temperature in (1.0, 0.1):
        seen = (concrete(logits, noise, temperature) > 0.5).float().mean(0)
        chance = torch.sigmoid(logits)
        # four standard errors
        assert ((seen - chance).abs() < 4 * (chance * (1 - chance) / draws).sqrt()).all()


def test_the_temperature_goes_from_1_to_a_tenth_in_150_rounds() -> None:
    temperature = small().temperature
    assert [at(temperature, t) for t in (0, 75, 150, 200)] == pytest.approx(
        [1.0, 0.1**0.5, 0.1, 0.1]
    )


def test_where_no_output_is_reached_the_most_probable_path_is_opened() -> None:
    """(2, 2, 2), everything closed: the prediction takes output 1, which takes block 0,
    which takes encoder 1.
    """
    logits = torch.tensor([-3, -2, -1, -1, -1, -5, -4, -6, -7, -2.0])
    assert connect(torch.zeros(10), logits, (2, 2, 2)).nonzero().flatten().tolist() == [1, 6, 9]


def test_the_fallback_opens_no_more_than_it_must() -> None:
    """Output 1 is reached and only its last gate is closed; and choices that reach an
    output are left alone.
    """
    logits = torch.tensor([-3, -2, -1, -1, -1, -5, -4, -6, -7, -2.0])
    closed = torch.tensor([1, 0, 0, 0, 0, 0, 1, 0, 0, 0.0])
    assert connect(closed, logits, (2, 2, 2)).nonzero().flatten().tolist() == [0, 6, 9]
    opened = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0, 1, 0.0])
    assert torch.equal(connect(opened, logits, (2, 2, 2)), opened)


def test_every_draw_reaches_the_prediction() -> None:
    for key in range(200):
        noise = uniform(torch.tensor(key), (2, edges((1, 4, 3))))
        hard = connect((noise[0] > 0.8).float(), noise[1], (1, 4, 3))
        assert modules_reached(matrices(hard, (1, 4, 3)))[-1].tolist() == [1.0]


def sizes_of(method: FedMN) -> Mapping[str, int]:
    """Bytes of one slot of each block, from the shapes of the small net's pool: 6-5-6
    encoders, 6-5 and 5-classes.
    """
    encoder = FEATURES * 5 + 5 + 5 * 6 + 6
    gates = edges(method.modules)
    router = FEATURES * 5 + 5 + 5 * 4 + 4 + CLASSES * 3 + 3 + 7 * gates + gates
    count = {
        "encoders": encoder,
        "modules.2": 6 * 5 + 5,
        "outputs": 5 * CLASSES + CLASSES,
        "router": router,
    }
    return {name: 8 * number for name, number in count.items()}  # float64


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(chunk=4)], ids=lambda e: e.name)
def test_exactly_the_active_modules_the_encoders_and_the_router_travel(
    engine: Sequential | Vectorised,
) -> None:
    method = small(modules=(2, 4, 3))
    experiment = Experiment.of(method, small_federation())
    state = experiment.start()
    _, report = run_round(experiment, state, EVERYBODY, engine)
    job = experiment.job("all", EVERYBODY, state, method.phases(), True, "train")
    active, one = engine.train(job).wanted, sizes_of(method)
    assert 0 < active["modules.2"].sum() < active["modules.2"].numel()  # some modules stay away
    for row, client in enumerate(EVERYBODY):
        sent = {"router": 1, "encoders": 2} | {
            n: int(active[n][row].sum()) for n in ("modules.2", "outputs")
        }
        slots = {"router": 1, "encoders": 2, "modules.2": 4, "outputs": 3}
        for name, copies in sent.items():
            assert report.bytes_down[name][client] == copies * one[name]
            # a weight for each slot
            assert report.bytes_up[name][client] == copies * one[name] + 8 * slots[name]
    assert (
        report.bytes_down.keys()
        == report.bytes_up.keys()
        == {"router", "encoders", "modules.2", "outputs"}
    )


def test_soft_gates_bring_every_module() -> None:
    _, _, report = one_round(small(gate_mode="soft"))
    assert set(report.bytes_down["outputs"].values()) == {2 * sizes_of(small())["outputs"]}


def test_gates_differ_between_clients_in_training_and_are_the_same_twice_in_evaluation() -> None:
    method = small()
    experiment = Experiment.of(method, small_federation())
    state = experiment.start()
    job = experiment.job("all", EVERYBODY, state, method.phases(), True, "train")
    wanted = Vectorised().train(job).wanted
    assert len({tuple(row.tolist()) for row in torch.cat(list(wanted.values()), 1)}) > 1
    later = replace(state, round=9)  # other noise
    for gate, same in (("mode", True), ("soft", True), ("sample", False)):
        experiment = Experiment.of(small(eval_gate=gate), small_federation())
        scores = [evaluate(experiment, s, EVERYBODY, Sequential()) for s in (state, later)]
        assert (scores[0] == scores[1]) is same
    assert evaluate(experiment, state, EVERYBODY, Sequential()) == evaluate(
        experiment, state, EVERYBODY, Sequential()
    )


def test_a_new_client_has_the_gates_of_any_other_evaluation() -> None:
    method = small()
    experiment = Experiment.of(method, small_federation())
    _, state, _ = one_round(method)
    usual, joining = (
        evaluate(experiment, state, EVERYBODY, Sequential(), joining=j) for j in (False, True)
    )
    assert usual == joining


def test_noise_of_each_step_changes_what_soft_gates_learn() -> None:
    states = [one_round(small(gate_mode="soft", noise_per=per))[1] for per in ("round", "step")]
    assert differences(state_leaves(states[0]), state_leaves(states[1]), 1e-6)


def test_the_router_looks_at_as_many_examples_as_it_is_told() -> None:
    """With 5 of a client's examples its gradient is another one than with all; with
    more than there are, the same.
    """
    all_of_them, many, few = (
        one_round(small(router_samples=n))[1].server["router"] for n in (0, 99, 5)
    )
    for key, value in all_of_them.items():
        assert np.allclose(value, many[key], atol=1e-12)
    assert not np.allclose(all_of_them["gates.weight"], few["gates.weight"], atol=1e-9)


def test_a_learning_rate_of_its_own_moves_the_router_alone() -> None:
    """Hard gates are decided before training, so that in one round the modules do not notice."""
    together, apart = one_round(small())[1].server, one_round(small(router_lr=0.9))[1].server
    for name in POOLS:
        assert all(torch.allclose(v, apart[name][k], atol=1e-12) for k, v in together[name].items())
    assert all(
        not torch.allclose(v, apart["router"][k], atol=1e-9) for k, v in together["router"].items()
    )
