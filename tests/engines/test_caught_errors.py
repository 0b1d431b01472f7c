"""A module that catches the error of an operation, and goes on in another way for that batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.failing_operations import checks_matrices, error_of
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential

LARGE = 2.0  # first inputs above make a matrix that has no factor


class Careful(nn.Module):
    """Adds to a matrix that cannot be factored, as layers of Gaussian processes do."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        matrices = torch.eye(2, dtype=x.dtype) * (LARGE - x[:, 0])[:, None, None]
        try:
            factors = torch.linalg.cholesky(matrices)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            factors = torch.linalg.cholesky(matrices + 5 * torch.eye(2, dtype=x.dtype))
        scale = factors.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        return self.out(self.inp(x).tanh() * scale)  # type: ignore[no-any-return]


class Careless(Careful):
    """Fails where the other one goes on."""

    def forward(self, x: Tensor) -> Tensor:
        matrices = torch.eye(2, dtype=x.dtype) * (9 - x[:, 0])[:, None, None]
        factors = torch.linalg.cholesky(matrices)
        return self.out(self.inp(x).tanh() * factors[:, 0, :1])  # type: ignore[no-any-return]


class Looking(nn.Module):
    """Uses a table, and its last row for what is not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = x[:, 0].abs().long()
        try:
            rows = torch.index_select(self.table, 0, places)
        except IndexError:
            rows = torch.index_select(self.table, 0, places.clamp(max=4))
        return self.out(rows)  # type: ignore[no-any-return]


def some_data(clients: int = 4, rows: int = 80) -> fb.Federation:
    """In the batches of a client a row is large now and then; all of the last client's are."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(clients * rows, 6)).astype("float32")
    x[:, 0] = x[:, 0].clip(-1.5, 1.5)
    x[np.arange(7, len(x) - rows, 23), 0] = LARGE + 1
    x[-rows:-20, 0] = LARGE + 1
    return fb.Federation.from_users(x, rng.integers(0, 3, len(x)), np.repeat(range(clients), rows))


def rounds(method: fb.Method, data: fb.Federation, engine: Sequential) -> dict[str, Tensor]:
    experiment = Experiment.of(method, data, seed=1)
    state = experiment.start()
    for _ in range(3):
        state, report = run_round(experiment, state, range(data.clients), engine)
        assert not report.refusals
    return state.server["model"]


@pytest.mark.parametrize("optimizer", [fb.SGD(), fb.SGD(momentum=0.9)])
def test_repeated_steps_go_the_way_of_the_plain_ones(optimizer: Any) -> None:
    data = some_data()
    method = fb.FedAvg(fb.Net.of(Careful), lr=0.1, epochs=2, batch_size=5, optimizer=optimizer)
    engine = Sequential(worth=0)
    ours, wanted = (rounds(method, data, e) for e in (engine, Sequential(replay=False)))
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
    (replayed,) = engine.known.values()
    assert replayed.unrepeatable  # type: ignore[union-attr] # a step had failed, and was taken back


def test_a_step_whose_operation_failed_is_not_written_down() -> None:
    matrices = -torch.eye(2)[None]
    with Recorder([matrices]) as recorder:
        try:
            torch.linalg.cholesky(matrices)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            matrices.add_(3)
    assert recorder.program(1) is None


@pytest.mark.parametrize("kind", [Careful, Looking])
def test_a_net_that_catches_errors_is_kept_from_stacks(
    kind: type[nn.Module], tmp_path: Path
) -> None:
    method = fb.FedAvg(fb.Net.of(kind), lr=0.1, batch_size=5)
    data = some_data()
    with pytest.warns(UserWarning, match="runs one client after another.*fails for it alone"):
        run = fb.run(method, data, rounds=2, out=tmp_path / "auto")
    plain = rounds_of_two(fb.FedAvg(fb.Net.of(kind), lr=0.1, batch_size=5), data)
    ours = run.state().server["model"]
    assert all(torch.allclose(ours[name], plain[name], atol=1e-6) for name in plain)
    with pytest.raises(fb.NetError, match=r"goes on where .* fails"):
        again = fb.FedAvg(fb.Net.of(kind), lr=0.1, batch_size=5)
        fb.run(again, data, rounds=1, out=tmp_path / "stack", engine="vectorised")


def rounds_of_two(method: fb.Method, data: fb.Federation) -> dict[str, Tensor]:
    experiment = Experiment.of(method, data, seed=0)
    state = experiment.start()
    for _ in range(2):
        state, _ = run_round(experiment, state, range(data.clients), Sequential(replay=False))
    return state.server["model"]


def test_a_net_that_catches_nothing_may_stand_in_a_stack() -> None:
    report = fb.check_net(fb.Net.of(Careless), torch.randn(21, 6))
    assert report.engines == ("sequential", "vectorised")


def test_operations_that_fail_by_their_numbers_are_known_by_their_names() -> None:
    aten = torch.ops.aten
    matrices = (aten.linalg_cholesky_ex, aten._linalg_check_errors, aten.linalg_inv_ex, aten.qr)
    others = (aten.sqrt, aten.detach, aten._weight_norm_interface, aten.addmm)
    assert all(checks_matrices(one.default) for one in matrices)
    assert all(error_of(one.default) is None for one in others)
    assert error_of(aten.eq.Tensor) is None
    assert error_of(aten.embedding.default) is IndexError
    assert error_of(aten.gather.default) is RuntimeError
