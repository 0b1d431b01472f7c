"""FedMN's released code: what its gates, its modules and its averaging come to."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.modular_net import modular
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedmn.gates import edges
from fedblocks.methods.fedmn.reference import FedMNReference
from fedblocks.testing.federations import SIZES, small_federation, small_net

SMALL: dict[str, object] = {
    "widths": (6, 5),
    "dropout": 0.0,
    "summary_width": 4,
    "label_width": 3,
    "spread": 0.5,
}
EVERYBODY = range(len(SIZES))


def small(**options: object) -> FedMNReference:
    return FedMNReference(**{"net": small_net(), "lr": 0.1, "batch_size": 4, **SMALL, **options})  # type: ignore[arg-type]


def test_two_outputs_with_gates_of_a_twelfth_add_up_to_three_and_a_half() -> None:
    """((0 + h/12) / (1/6) + h/12) / (1/6) = 3 h + h/2: the division stood inside the loop."""
    method = small()
    server = Experiment.of(method, small_federation()).start().server
    x = small_federation().x
    plain = method.path({k: v[0] for name in method.layers for k, v in server[name].items()}, x)
    logits = method.forward(server, torch.full((10,), 1 / 12, dtype=torch.float64), x)
    assert torch.allclose(logits, 3.5 * plain, atol=1e-12)


def test_gates_are_never_closed_and_only_rescale_the_logits() -> None:
    method = small(modules=(2, 3, 2))
    server = Experiment.of(method, small_federation()).start().server
    x = small_federation().x
    plain = method.path({k: v[0] for name in method.layers for k, v in server[name].items()}, x)
    for key in range(20):
        gates = method.draw(
            torch.linspace(-9, 9, edges(method.modules) + 2).double(), torch.tensor(key)
        )
        assert len(gates) == edges(method.modules) and (gates > 0).all() and gates.sum() < 1
        scale = method.forward(server, gates, x) / plain
        assert torch.allclose(scale, scale[0, 0].expand_as(scale)) and scale[0, 0] > 0


def test_every_module_travels_and_the_router_does_not() -> None:
    experiment = Experiment.of(small(), small_federation())
    state, report = run_round(experiment, experiment.start(), EVERYBODY, Sequential())
    assert state.server.keys() == report.bytes_down.keys() == {"encoder", "module.2", "output"}
    assert set(report.bytes_down["module.2"].values()) == {8 * (6 * 5 + 5)}


def test_clients_count_alike_whatever_they_hold() -> None:
    experiment = Experiment.of(small(), small_federation())
    start = experiment.start()
    together, _ = run_round(experiment, start, EVERYBODY, Sequential())
    apart = [run_round(experiment, start, [client], Sequential())[0] for client in EVERYBODY]
    for name, slots in together.server.items():
        for key, value in slots.items():
            mean = torch.stack([state.server[name][key] for state in apart]).mean(0)
            assert torch.allclose(value, mean, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_order": "cyclic"}, 'client_order = "cyclic": must be "parallel" or'),
        ({"modules": (1, 0)}, r"modules = \[1, 0\]: must be at least 1"),
        ({"net": modular(small_net(), (6, 5))}, "widths = .* a modular net has its own"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**options)
