"""Weight decay of weights alone: biases and norm layers are left out, as with torch's groups."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.config.options import plain
from fedblocks.core.decay import weight_names
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.rounds import run
from tests.representatives import mark_others

CLIENTS = range(6)
STRONG = 0.3  # so that a wrong group shows in the first digits


def normed() -> nn.Module:
    """Its first norm has parameters of two dimensions, which only the kind of layer tells."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.Unflatten(1, (2, 4)), nn.LayerNorm((2, 4)), nn.Flatten(),
        nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4),
    )  # fmt: skip


NET = fb.Net.of(normed, dtype=torch.float64)
DECAYED = {"0.weight", "6.weight"}
TWINS = {
    "sgd": (fb.SGD(momentum=0.9, weight_decay=STRONG, decay="weights"), torch.optim.SGD),
    "adam": (fb.Adam(weight_decay=STRONG, decay="weights"), torch.optim.Adam),
    "adamw": (fb.AdamW(weight_decay=STRONG, decay="weights"), torch.optim.AdamW),
}


def after_a_round(method: fb.Method, engine: fb.Engine) -> fb.State:
    experiment = fb.Experiment.of(method, fb.small_federation())
    state, report = fb.run_round(experiment, experiment.start(), CLIENTS, engine)
    assert not report.refusals
    return state


def plain_loop(method: fb.Method, client: int, make: Any) -> nn.Module:
    """One client with torch's optimizer and two groups of its parameters."""
    data = fb.small_federation()
    module = deepcopy(NET.template)
    still = after_a_round(replace(method, lr=1e-300, optimizer=fb.SGD()), fb.Sequential())
    start = {k: v for k, v in still.private[client]["model"].items() if "running" not in k}
    module.load_state_dict(start, strict=False)
    names = dict(module.named_parameters())
    groups = [
        {"params": [p for n, p in names.items() if n in DECAYED], "weight_decay": STRONG},
        {"params": [p for n, p in names.items() if n not in DECAYED], "weight_decay": 0.0},
    ]
    more = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(groups, lr=0.05, **more)
    draw = Draw(0, 0, client, "train")
    for rows in batches(method, method.phases()[0], 0, len(data.train[client]), draw):
        at = data.train[client][rows]
        optimizer.zero_grad()
        with fb.core.mode.mode(training=True, mapped=False):
            nn.functional.cross_entropy(module(data.x[at]), data.y[at]).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("engine", [fb.Sequential(), fb.Vectorised()], ids=lambda e: e.name)
@pytest.mark.parametrize("name", TWINS)
def test_a_client_trains_as_with_the_parameter_groups_of_torch(
    name: str, engine: fb.Engine
) -> None:
    optimizer, make = TWINS[name]
    method = fb.Local(NET, lr=0.05, batch_size=4, epochs=2, optimizer=optimizer)
    state = after_a_round(method, engine)
    for client in (0, 3):
        module = plain_loop(method, client, make)
        for key, value in module.named_parameters():
            torch.testing.assert_close(state.private[client]["model"][key], value.detach())


def test_norms_are_known_by_their_kind_and_biases_by_their_names() -> None:
    assert weight_names(fb.Local(NET)) == {("model", name) for name in DECAYED}


def test_a_bias_of_an_lstm_and_of_attention_is_one() -> None:
    attention = nn.MultiheadAttention(3, 1, add_bias_kv=True)
    net = fb.Net.of(nn.Sequential(nn.LSTM(3, 3), attention, nn.Linear(3, 2)), keep_weights=True)
    names = {name for _, name in weight_names(fb.Local(net))}
    assert {"0.weight_ih_l0", "0.weight_hh_l0", "1.in_proj_weight", "2.weight"} <= names
    assert not any("bias" in name for name in names)


@pytest.mark.parametrize("name", mark_others(name for name in EXAMPLES if name != "scaffold"))
def test_engines_agree_and_biases_are_left_out_in_every_method(name: str) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = EXAMPLES[name]()
    ends = {}
    for kind, optimizer in {
        "weights": fb.SGD(weight_decay=STRONG, decay="weights"),
        "all": fb.SGD(weight_decay=STRONG),
    }.items():
        for engine in (fb.Sequential(), fb.Sequential(replay=False), fb.Vectorised()):
            experiment = example.experiment(optimizer=optimizer)
            state = run(experiment, engine, [list(CLIENTS)]).last
            ends[kind, engine.name, getattr(engine, "replay", None)] = state_leaves(state)
    ours = ends["weights", "sequential", True]
    assert differences(ours, ends["weights", "sequential", False], 0) == []
    assert differences(ours, ends["weights", "vectorised", None], 1e-9) == []
    assert differences(ours, ends["all", "sequential", True], 1e-9) != []


@pytest.mark.parametrize("name", ["fedavg", "ifca", "modfl", "flow", "fedmn"])
def test_a_weight_is_one_also_in_pools_copies_and_routers(name: str) -> None:
    method = next(iter(EXAMPLES[name]().experiment().methods.values()))
    weights = weight_names(method)
    moved = {block for phase in method.phases() for block in phase.train}
    assert {block for block, _ in weights} >= moved
    assert all(key.rpartition(".")[2] != "bias" for _, key in weights)


def test_a_client_that_keeps_its_momenta_keeps_them_with_groups_too() -> None:
    # a larger eps: 1e-8 turns rounding into steps where gradients vanish
    adam = fb.Adam(eps=1e-3, weight_decay=STRONG, decay="weights")
    method = fb.Local(NET, lr=0.05, optimizer=adam, keep_optimizer=True)
    ends = []
    for engine in (fb.Sequential(), fb.Vectorised()):
        done = run(fb.Experiment.of(method, fb.small_federation()), engine, [list(CLIENTS)] * 2)
        ends.append(state_leaves(done.last))
    assert differences(*ends, 1e-9) == []


def test_lanes_may_differ_in_their_decay_of_weights() -> None:
    experiments = [
        fb.Experiment.of(
            fb.FedAvg(NET, optimizer=fb.SGD(weight_decay=decay, decay="weights")),
            fb.small_federation(),
        )
        for decay in (0.1, 0.4)
    ]
    lanes = Lanes(experiments)
    starts = [one.start() for one in experiments]
    together = lanes.run_round(starts, [list(CLIENTS)] * 2, fb.Vectorised())
    for experiment, start, (state, _) in zip(experiments, starts, together, strict=True):
        alone = fb.run_round(experiment, start, CLIENTS, fb.Vectorised())[0]
        assert differences(state_leaves(state), state_leaves(alone), 1e-9) == []


def test_the_default_is_written_down_as_before() -> None:
    assert plain(fb.SGD()) == {
        "name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0,
    }  # fmt: skip


def test_a_configuration_names_it() -> None:
    config = fb.read_config(
        "digits-fedavg", ['method.optimizer={name="adamw", weight_decay=0.05, decay="weights"}']
    )
    assert config.method.table["optimizer"]["decay"] == "weights"
    with pytest.raises(fb.UserError, match="weights"):
        fb.SGD(weight_decay=0.1, decay="norms")


def test_changes_of_branches_cannot_be_compressed_if_some_tensors_do_not_decay() -> None:
    with pytest.raises(fb.UserError, match="compressed_upload"):
        fb.PFedMB(
            fb.small_net(),
            compressed_upload=True,
            optimizer=fb.SGD(weight_decay=0.1, decay="weights"),
        )
