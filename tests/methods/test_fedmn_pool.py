"""FedMN's pool: which nets it is made of, how it starts, and what is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.modular_net import ModularNet, modular, started_from
from fedblocks.core.net import Net
from fedblocks.core.parts import Blocks
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.nets.convolutional import cnn
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.federations import CLASSES, FEATURES, small_federation, small_net

from .test_fedmn import EVERYBODY, one_round, small


class Residual(nn.Module):
    """Somebody's own net, no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.classify = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x + torch.tanh(self.inside(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recur, self.classify = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.recur(x.reshape(len(x), 2, 3))[0][:, -1])


def image_net() -> Net:
    net = cnn((1, 4, 4), CLASSES, channels=(2, 3), hidden=5, batch_norm=True)
    pad = nn.Sequential(nn.ZeroPad1d((0, 10)), nn.Unflatten(1, (1, 4, 4)))
    return Net.of(lambda: nn.Sequential(*pad, *net.make()), dtype=torch.float64)


@pytest.mark.parametrize(
    "net",
    [Net.of(Residual, dtype=torch.float64), Net.of(Recurrent, dtype=torch.float64), image_net()],
    ids=["residual", "recurrent", "batch norm"],
)
def test_any_net_with_a_dense_last_layer_is_an_encoder_and_engines_agree(net: Net) -> None:
    method = small(net=net, dropout=0.3)
    states = []
    for engine in (Sequential(), Vectorised(chunk=4)):
        experiment = Experiment.of(method, small_federation())
        state = experiment.start()
        for _ in range(2):
            state, report = run_round(experiment, state, EVERYBODY, engine)
            assert report.refusals == []
        states.append(state)
    assert not differences(state_leaves(states[0]), state_leaves(states[1]), 1e-9)


def test_pre_trained_weights_start_every_encoder_and_the_router_but_for_their_last_layers() -> None:
    net, data = small_net(), small_federation()
    experiment = Experiment.of(FedAvg(net, lr=0.2), data)
    state = experiment.start()
    for _ in range(2):
        state, _ = run_round(experiment, state, EVERYBODY, Sequential())
    trained = {k: v[0] for k, v in state.server["model"].items()}
    start = Experiment.of(small(net=started_from(net, trained)), data).start().server
    for key in ("0.weight", "0.bias"):
        for encoder in start["encoders"][f"0.0.{key}"]:
            assert torch.equal(encoder, trained[key])
        assert torch.equal(start["router"][f"inputs.{key}"][0], trained[key])
    last = start["encoders"]["0.0.2.weight"]
    assert last.shape == (2, 6, 5) and not torch.equal(last[0], last[1])


def alone(modules: tuple[int, ...], **options: object) -> FedMN:
    """FedMN with its defaults on the net itself, and one group."""
    common = {"lr": 0.2, "epochs": 2, "batch_size": 4, "summary_width": 4, "label_width": 3}
    pool = {"modules": modules, "router_groups": 1, **common, **options}
    return FedMN(small_net(), **pool).over(3)  # type: ignore[arg-type]


def after_rounds(method: FedMN | FedAvg, rounds: int) -> Blocks:
    experiment = Experiment.of(method, small_federation())
    state = experiment.start()
    for _ in range(rounds):
        state, _ = run_round(experiment, state, EVERYBODY, Sequential())
    return state.server


@pytest.mark.parametrize("rounds", [0, 3])
def test_where_updates_show_one_group_fedmn_is_fedavg_on_the_net_itself(rounds: int) -> None:
    """From the same start: every output is the net's last layer, the encoder all before it."""
    pool = after_rounds(alone((1, 3)), rounds)
    own = after_rounds(FedAvg(small_net(), lr=0.2, epochs=2, batch_size=4), rounds)["model"]
    encoder = {k.removeprefix("0."): v for k, v in pool["encoders"].items()}
    outputs = {k.replace("1.", "2.", 1): v for k, v in pool["outputs"].items()}
    assert encoder.keys() | outputs.keys() == own.keys()
    for name, value in {**encoder, **outputs}.items():
        torch.testing.assert_close(value, own[name].expand_as(value), rtol=0, atol=1e-12)


def test_a_middle_block_of_the_net_itself_adds_to_what_it_is_given() -> None:
    _, middle, _ = alone((1, 2, 2)).path.stages
    params = middle.init(0)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).double()
    added = (x @ params["1.change.0.weight"].T + params["1.change.0.bias"]).relu()
    torch.testing.assert_close(middle(params, x), x + added)


def test_dropout_is_by_default_in_the_blocks_that_the_paper_prints_alone() -> None:
    rates = [
        [layer.p for layer in method.path.make().modules() if isinstance(layer, nn.Dropout)]
        for method in (alone((1, 2, 2)), alone((1, 2, 2), widths=(6, 5)))
    ]
    assert rates == [[0.0], [0.5]]


def test_modules_of_a_layer_start_alike_or_each_from_its_own_weights() -> None:
    for start, alike in (("alike", True), ("independent", False)):
        weight = after_rounds(alone((2, 2), module_start=start), 0)["outputs"]["1.weight"]
        assert torch.equal(weight[0], weight[1]) is alike


def test_a_net_of_one_layer_has_nothing_to_be_an_encoder_without_widths() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES)), dtype=torch.float64)
    with pytest.raises(UserError, match="nothing before its last layer") as told:
        FedMN(net).blocks()
    assert "widths" in told.value.fix
    assert len(FedMN(net, widths=(6,)).path.stages) == 2


def test_weights_of_another_net_are_refused() -> None:
    with pytest.raises(UserError, match="not those of this net"):
        started_from(small_net(), {"0.weight": torch.zeros(5, FEATURES)})


def test_the_blocks_first_weights_can_be_drawn_as_the_released_code_draws_them() -> None:
    server = Experiment.of(small(spread=0.01, widths=(60, 50)), small_federation()).start().server
    weight, bias = server["modules.2"]["1.0.weight"], server["modules.2"]["1.0.bias"]
    assert float(weight.std()) == pytest.approx(0.01, rel=0.05) and not bias.any()


def test_a_modular_net_brings_its_own_modules() -> None:
    layers = [
        lambda: nn.Linear(FEATURES, 7),
        lambda: nn.Sequential(nn.Tanh(), nn.Linear(7, CLASSES)),
    ]
    net = ModularNet(layers, lambda width: nn.Linear(FEATURES, width), torch.float64)
    method = FedMN(net, modules=(2, 3), summary_width=4, label_width=3, batch_size=4).over(2)
    before, after, report = one_round(method)
    assert [tuple(v.shape) for v in after.server["outputs"].values()] == [
        (3, CLASSES, 7),
        (3, CLASSES),
    ]
    assert report.refusals == [] and differences(state_leaves(before), state_leaves(after), 1e-6)


def test_one_path_is_told_to_be_fedavg() -> None:
    assert small(modules=(1, 1, 1)).degenerate() == [
        "modules = (1, 1, 1) leaves one path: FedAvg on that net"
    ]
    assert small(modules=(1, 2, 1)).degenerate() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": (2, 0, 2)}, r"modules = \[2, 0, 2\]: must be at least 1"),
        ({"modules": (2,)}, "at least 2 items"),
        ({"widths": (6,)}, r"widths = \[6\]: do not fit modules = \[2, 2, 2\]"),
        ({"widths": (6, 0)}, "must be at least 1"),
        ({"gate_mode": "hard"}, 'gate_mode = "hard": must be "st_hard" or "soft"'),
        ({"eval_gate": "modes"}, 'eval_gate = "modes": must be "mode" or'),
        ({"noise_per": "step"}, "modules that were not sent"),
        ({"router_samples": -1}, "router_samples = -1: must be at least 0"),
        ({"net": modular(small_net(), (6, 5))}, "widths = .* a modular net has its own"),
        (
            {
                "net": modular(small_net(), (6, 5)),
                "modules": (2, 2),
                "widths": None,
                "dropout": None,
            },
            "3",
        ),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**options)


def test_a_net_whose_last_layer_is_not_dense_is_refused() -> None:
    net = Net.of(
        lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5)), dtype=torch.float64
    )
    with pytest.raises(UserError, match="is a LayerNorm and not a dense layer"):
        small(net=net).blocks()


def test_a_modular_net_of_one_layer_or_with_an_empty_one_is_refused() -> None:
    dense = partial(nn.Linear, FEATURES, CLASSES)
    for layers in ([dense], [dense, nn.ReLU, dense]):
        with pytest.raises(UserError, match="a modular net needs"):
            ModularNet(layers, lambda width: nn.Linear(FEATURES, width))
