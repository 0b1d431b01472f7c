"""FedMN's router: what it sees, in which units, who learns it, and what it decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks import Config, run
from fedblocks.config.options import plain
from fedblocks.core.errors import UserError
from fedblocks.core.schedules import Ramp, at
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedmn.gates import gates_used
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.pool import AS_PRINTED
from fedblocks.recipes.papers.fedmn import PRINTED
from fedblocks.testing.federations import SIZES, small_federation

from .test_fedmn import EVERYBODY, biased, ours, small


def drawn(**options: object) -> FedMN:
    """A router that starts as it was drawn, over modules that do so, too."""
    return ours(**{"router_start": "drawn", "module_start": "independent", **options})


NOT_NORMAL = {"unit_length": False, "router_relu": False}


def play(method: FedMN, rounds: int, data: Federation | None = None) -> tuple[Experiment, State]:
    experiment = Experiment.of(method, data or small_federation())
    state = experiment.start()
    for _ in range(rounds):
        state, _ = run_round(experiment, state, EVERYBODY, Sequential())
    return experiment, state


def logits_of(experiment: Experiment, state: State) -> Tensor:
    """What the router says of every client: [clients, edges]."""
    (method,) = experiment.methods.values()
    assert isinstance(method, FedMN)
    job = experiment.job("all", EVERYBODY, state, [], False, "adapt")
    clients = job.several(EVERYBODY, torch.func.vmap)

    def route(blocks: Any, client: Any) -> Tensor:
        return method.router.of_client(blocks["router"], client, blocks.get("moments"))

    logits: Tensor = clients.call(route, job.sent.blocks)
    return logits.detach()


def gates_of(experiment: Experiment, state: State) -> list[list[float]]:
    seen = evaluate_parts(experiment, state, EVERYBODY, Sequential(), ["test"])
    return list(seen.portraits["gates"].values())


def test_in_the_first_round_all_gates_are_open_and_the_router_rests() -> None:
    experiment, before = play(drawn(), 0)
    after, report = run_round(experiment, before, EVERYBODY, Sequential())
    assert {len(set(by.values())) for by in report.bytes_down.values()} == {1}
    for name, value in after.server["router"].items():
        assert torch.allclose(value, before.server["router"][name], atol=1e-14)
    assert gates_of(experiment, before) == [[1.0] * 10] * len(SIZES)
    later, _ = run_round(experiment, after, EVERYBODY, Sequential())
    for name in ("gates.weight", "gates.bias"):
        assert not torch.equal(later.server["router"][name], after.server["router"][name])


def test_as_many_first_rounds_are_open_as_one_says() -> None:
    experiment, state = play(drawn(pretrain_rounds=2, gate_noise=0.0, router_spread=300.0), 1)
    assert gates_of(experiment, state) == [[1.0] * 10] * len(SIZES)
    state, _ = run_round(experiment, state, EVERYBODY, Sequential())
    assert gates_of(experiment, state) != [[1.0] * 10] * len(SIZES)


def test_in_units_of_the_federation_the_average_client_is_at_the_heads_bias() -> None:
    """sum_c n_c (mean_c - mean) = 0, so the mean of all logits, by examples, is the bias."""
    experiment, state = play(drawn(router_spread=50.0), 1)
    bias = state.server["router"]["gates.bias"][0]
    sizes = torch.tensor(SIZES).double()
    mean = (sizes @ logits_of(experiment, state)) / sizes.sum()
    assert torch.allclose(mean, bias, atol=1e-9)
    assert logits_of(experiment, state).std(0).min() > 1  # and clients differ around it


def test_the_moments_are_those_of_all_examples_together() -> None:
    experiment, state = play(drawn(**NOT_NORMAL), 1)
    router = {k: v[0] for k, v in state.server["router"].items()}
    data = experiment.data
    rows = np.concatenate([data.train[c] for c in EVERYBODY])
    hidden = torch.tanh(data.x[rows] @ router["inputs.0.weight"].T + router["inputs.0.bias"])
    of_inputs = hidden @ router["inputs.2.weight"].T + router["inputs.2.bias"]
    of_labels = router["labels.weight"].T[data.y[rows]] + router["labels.bias"]
    summary = torch.cat([of_inputs, of_labels], 1)
    moments = {k: v[0] for k, v in state.server["moments"].items()}
    assert torch.allclose(moments["mean"], summary.mean(0), atol=1e-12)
    assert torch.allclose(moments["square"], summary.square().mean(0), atol=1e-12)


def test_the_printed_router_hardly_tells_clients_apart_and_ours_does() -> None:
    """In units of the mean logit: what the gates can see of a client."""
    printed = logits_of(*play(small(), 0)).std(0).mean()
    scaled = logits_of(*play(drawn(), 1)).std(0).mean()
    assert printed < 0.1 and scaled > 10 * printed


def test_a_router_that_learns_nothing_is_never_sent_and_stays() -> None:
    experiment, state = play(drawn(train_router="nothing"), 1)
    assert "router" not in state.server
    before = logits_of(experiment, state)
    state, report = run_round(experiment, state, EVERYBODY, Sequential())
    assert "router" not in report.bytes_down and "router" not in report.bytes_up
    assert torch.allclose(logits_of(experiment, state), before, atol=1e-12)


def test_of_a_router_whose_head_learns_nothing_else_moves() -> None:
    experiment, before = play(drawn(router_lr=0.5), 1)
    after, _ = run_round(experiment, before, EVERYBODY, Sequential())
    moved = {
        name
        for name, value in after.server["router"].items()
        if not torch.allclose(value, before.server["router"][name], atol=1e-12)
    }
    assert moved == {"gates.weight", "gates.bias"}


def swapped() -> Federation:
    """Two clients with the same inputs and equally many labels of each class;
    the second calls two classes by each other's name.
    """
    draw = np.random.Generator(np.random.PCG64(0))
    own = small_federation()
    count = len(own.train[0])
    y = torch.arange(count) % 2
    x = torch.from_numpy(draw.standard_normal((count, own.x.shape[1]))) + 3 * y[:, None].double()
    rows = Rows.of([np.arange(count), np.arange(count, 2 * count)])
    none = Rows.none(2)
    return Federation(torch.cat([x, x]), torch.cat([y, 1 - y]), rows, none, none, own.classes)


@pytest.mark.parametrize(("reading", "sees"), [("apart", False), ("joint", True)])
def test_a_joint_reading_sees_who_calls_classes_otherwise(reading: str, sees: bool) -> None:
    data = swapped()
    method = drawn(reading=reading, router_scale="none", router_spread=10.0, **NOT_NORMAL)
    experiment = Experiment.of(method, data)
    job = experiment.job("all", [0, 1], experiment.start(), [], False, "adapt")
    clients = job.several([0, 1], torch.func.vmap)
    one, other = clients.call(
        lambda blocks, client: method.router.of_client(blocks["router"], client), job.sent.blocks
    )
    assert (not torch.allclose(one, other, atol=1e-9)) is sees


def test_without_noise_clients_train_what_they_are_evaluated_with() -> None:
    """An output is asked for if its gate to the prediction, one of the last two, is used."""
    method = drawn(gate_noise=0.0, router_spread=1.0)  # with noise, these would be coin tosses
    experiment, state = play(method, 1)
    job = experiment.job("all", EVERYBODY, state, method.phases(), True, "train")
    asked = Vectorised().train(job).wanted["outputs"].tolist()
    assert asked == [gates[-2:] for gates in gates_of(experiment, state)]


def test_noise_and_temperature_end_with_the_run() -> None:
    fades = drawn(gate_noise=Ramp(1.0, 0.0, 0.5))
    method = fades.over(40)  # it is over 4 rounds already, and stays so
    assert [at(method.gate_noise, t) for t in range(4)] == [1.0, 0.5, 0.0, 0.0]
    assert at(method.temperature, 4) == pytest.approx(0.1)


def leads_nowhere() -> Tensor:
    """Gates of (2, 2, 2): the second output is reached and has no gate to the prediction, and the
    second middle block leads there and nowhere else.
    """
    return torch.tensor([1, 1, 1, 1, 1, 0, 1, 1, 1, 0.0])


@pytest.mark.parametrize(("travel", "modules"), [("used", [1, 0]), ("reached", [1, 1])])
def test_a_module_that_leads_nowhere_travels_only_if_one_says_so(
    travel: str, modules: list[int]
) -> None:
    method = small(travel=travel)
    experiment = Experiment.of(method, small_federation())
    state = biased(experiment.start(), 80 * leads_nowhere() - 40)
    job = experiment.job("all", EVERYBODY, state, method.phases(), True, "train")
    for wanted in Vectorised().train(job).wanted.values():
        assert wanted.tolist() == [modules] * len(SIZES)


def test_a_portrait_shows_the_gates_that_are_used() -> None:
    used = gates_used(leads_nowhere(), (2, 2, 2))
    assert used.tolist() == [1, 1, 0, 0, 1, 0, 0, 0, 1, 0]
    experiment, _ = play(small(), 0)
    state = biased(experiment.start(), 80 * leads_nowhere() - 40)
    assert gates_of(experiment, state) == [used.tolist()] * len(SIZES)


def test_clients_that_share_one_path_are_named() -> None:
    method = small()
    (sentence,) = method.conclusions({"gates": {0: [1.0, 0.0], 3: [1.0, 0.0]}})
    assert sentence.startswith("all 2 clients share one path")
    assert method.conclusions({"gates": {0: [1.0, 0.0], 3: [0.0, 1.0]}}) == []
    assert method.conclusions({"gates": {0: [1.0, 0.0]}}) == method.conclusions({}) == []


@pytest.mark.parametrize(("spread", "warned"), [(0.0, True), (300.0, False)])
def test_a_run_whose_clients_share_one_path_says_so_once(
    tmp_path: Path, spread: float, warned: bool
) -> None:
    pool = {"modules": [1, 4], "router_start": "drawn", "summary_width": 4}
    table = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 4, "partition": {"name": "iid"}},
        "net": {"name": "mlp", "hidden": [4]},
        "method": {"name": "fedmn", "router_spread": spread, "train_router": "nothing", **pool},
        "evaluation": {"every": 1},
    }
    notes = run(Config.of(table), tmp_path / "run").notes
    said = [n for n in notes if "share one path" in n["text"]]
    assert [(n["round"], n["level"]) for n in said] == ([(2, "warning")] if warned else [])


def test_the_recipes_run_what_the_paper_prints() -> None:
    assert {name: plain(value) for name, value in AS_PRINTED.items()} == PRINTED


def test_the_printed_options_are_all_that_the_first_version_did_not_have() -> None:
    later = FedMN.later_options
    known = {**later, "temperature": AS_PRINTED["temperature"]}
    printed = small(**{k: v for k, v in known.items() if k not in AS_PRINTED})
    assert {name: printed.options()[name] for name in known} == known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretrain_rounds": 0}, "first known after a round with open gates"),
        ({"train_router": "nothing", "router_lr": 0.1}, "does not train has no learning rate"),
        ({"router_start": "updates", "train_router": "nothing"}, "never sent cannot be fitted"),
        ({"router_start": "updates", "router_scale": "none"}, "from the federation's moments"),
        ({"router_scale": "clients"}, 'must be "federation" or "none"'),
        ({"reading": "both"}, 'must be "apart" or "joint"'),
        ({"gate_noise": -0.5}, "at least 0"),
        ({"router_spread": -1.0}, "at least 0"),
    ],
)
def test_wrong_options_of_the_router_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drawn(**options)
