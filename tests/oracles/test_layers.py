"""Layers in their mappable form are torch's own layers, padding and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.mode import mode
from fedblocks.core.net import Net
from fedblocks.core.random import derive
from fedblocks.core.state import State
from fedblocks.engines.round import evaluate
from fedblocks.layers.replacement import mappable
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedem import FedEM
from fedblocks.methods.local import Local
from fedblocks.methods.pfedmb.method import PFedMB

from .harness import BATCH, CLASSES, COHORTS, ENGINES, SEED, apart, federation, play, task_of

NO_SINGLE = (23, 10, 40, 3, 0, 18)  # training examples; no batch of 8 leaves a single one over

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "features": (lambda: nn.BatchNorm1d(3), (3,)),
    "sequences": (lambda: nn.BatchNorm1d(3), (3, 5)),
    "images": (lambda: nn.BatchNorm2d(3, eps=1e-3, momentum=0.4), (3, 4, 4)),
    "volumes": (lambda: nn.BatchNorm3d(3), (3, 2, 3, 2)),
    "without scales": (lambda: nn.BatchNorm2d(3, affine=False), (3, 4, 4)),
    "without statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (3, 4, 4)),
}


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {k: v for k, v in module.named_buffers() if v is not None and "running" in k}


@pytest.mark.parametrize("kind", NORMS)
def test_padding_has_no_part_in_batch_normalisation(kind: str) -> None:
    make, shape = NORMS[kind]
    plain, ours = make().double(), mappable(make().double())
    for step, real in enumerate((8, 5, 2)):
        x = noise(step, 8, *shape) * 3 + 1
        x[real:] = 1e3  # padding
        a, b = x[:real].clone().requires_grad_(), x.clone().requires_grad_()
        expected = plain(a)
        with mode(training=True, mapped=True, mask=(torch.arange(8) < real).double()):
            actual = ours(b)
        torch.testing.assert_close(actual[:real], expected, rtol=0, atol=1e-12)
        direction = noise(9, *expected.shape)
        (expected * direction).sum().backward()
        (actual[:real] * direction).sum().backward()
        torch.testing.assert_close(b.grad[:real], a.grad, rtol=0, atol=1e-12)
        assert b.grad[real:].abs().max() == 0 if real < 8 else True
    for name, value in statistics(plain).items():
        torch.testing.assert_close(statistics(ours)[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in NORMS if kind != "without statistics"])
@pytest.mark.parametrize("mapped", [False, True])
def test_batch_normalisation_uses_its_statistics_in_evaluation(kind: str, mapped: bool) -> None:
    make, shape = NORMS[kind]
    plain = make().double()
    plain(noise(0, 8, *shape) * 3 + 1)
    ours = mappable(plain)
    before = {k: v.clone() for k, v in statistics(ours).items()}
    with mode(training=False, mapped=mapped):
        actual = ours(noise(1, 8, *shape))
    torch.testing.assert_close(actual, plain.eval()(noise(1, 8, *shape)), rtol=0, atol=1e-12)
    assert all(torch.equal(v, before[k]) for k, v in statistics(ours).items())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_a_mapped_lstm_is_torchs_lstm(
    layers: int, bias: bool, batch_first: bool, started: bool
) -> None:
    plain = nn.LSTM(3, 4, layers, bias=bias, batch_first=batch_first)
    ours, plain = mappable(plain).double(), plain.double()
    x = noise(0, 6, 5, 3) if batch_first else noise(0, 5, 6, 3)  # 6 sequences of 5 steps
    hx = (noise(1, layers, 6, 4), noise(2, layers, 6, 4)) if started else None
    expected, (h, c) = plain(x, hx)
    params = dict(ours.named_parameters())
    with mode(training=True, mapped=True):
        actual = vmap(lambda p: functional_call(ours, p, (x, hx)))(
            {k: v[None] for k, v in params.items()}
        )
    for mine, theirs in ((actual[0], expected), (actual[1][0], h), (actual[1][1], c)):
        torch.testing.assert_close(mine[0], theirs, rtol=0, atol=1e-12)


def test_a_lstm_outside_vmap_is_torchs_lstm() -> None:
    plain = nn.LSTM(3, 4, 2, batch_first=True)
    x = noise(0, 6, 5, 3).float()
    assert torch.equal(mappable(plain)(x)[0], plain(x)[0])


@pytest.mark.parametrize(
    ("make", "shape"), [(nn.Dropout, (300, 200)), (nn.Dropout2d, (300, 200, 2, 2))]
)
def test_dropout_keeps_the_mean_and_drops_its_share(
    make: type[nn.Module], shape: tuple[int, ...]
) -> None:
    layer, x = mappable(make(0.3)), torch.ones(shape, dtype=torch.float64)
    with mode(training=True, mapped=False, key=torch.tensor(derive(0, "noise"))):
        actual = layer(x)
    assert set(actual.unique().tolist()) == {0.0, 1 / 0.7}
    share = (actual == 0).double().mean().item()  # 60,000 draws: a standard deviation is 0.0019
    assert share == pytest.approx(0.3, abs=0.01) and actual.mean().item() == pytest.approx(
        1, abs=0.014
    )
    if len(shape) == 4:
        assert (actual.flatten(2) == actual[:, :, :1, 0]).all()  # whole channels


def test_dropout_differs_between_steps_and_between_layers_and_is_repeatable() -> None:
    layer, x = mappable(nn.Dropout(0.5)), torch.ones(50, 20)
    actual = []
    for key in (1, 1, 2):
        with mode(training=True, mapped=False, key=torch.tensor(key)):
            actual.append((layer(x), layer(x)))
    assert torch.equal(actual[0][0], actual[1][0]) and torch.equal(actual[0][1], actual[1][1])
    assert not torch.equal(actual[0][0], actual[2][0])  # another step
    assert not torch.equal(actual[0][0], actual[0][1])  # the next layer


def test_dropout_does_nothing_in_evaluation() -> None:
    with mode(training=False, mapped=False):
        assert torch.equal(mappable(nn.Dropout(0.5))(torch.ones(9)), torch.ones(9))


def dense(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), *layers, nn.Linear(6, CLASSES))


class Reader(nn.Module):
    """A recurrent net."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.answer = (
            nn.LSTM(5, 6, num_layers=2, batch_first=True),
            nn.Linear(6, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.read(x)[0][:, -1])


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: dense(nn.BatchNorm1d(6), nn.ReLU()), (5,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)
        ),
        (1, 4, 4),
    ),
    "sequences": (Reader, (3, 5)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", NETS)
def test_every_client_trains_as_in_a_plain_loop(kind: str, engine: str) -> None:
    """Each in its own loop over unpadded batches of torch's own module: parameters and
    running statistics.
    """
    make, shape = NETS[kind]
    method = Local(Net.of(make, dtype=torch.float64), lr=0.1, epochs=2, batch_size=BATCH)
    data = federation(shape, NO_SINGLE)
    experiment, state = play(method, ENGINES[engine], data)
    task = task_of(method, sizes=NO_SINGLE)
    scores = evaluate(experiment, state, COHORTS[0], ENGINES[engine])["personal"]
    for client in COHORTS[0]:
        module = make().double()
        module.load_state_dict(method.net.init(derive(SEED, "init", 0)), strict=False)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        rows = data.train[client]
        for batch in [b for cohort in task.rounds if client in cohort for b in cohort[client][0]]:
            optimizer.zero_grad()
            cross_entropy(module(data.x[rows[batch]]), data.y[rows[batch]]).backward()
            optimizer.step()
        actual = state.private[client]["model"]
        for name, value in actual.items():
            torch.testing.assert_close(value, module.state_dict()[name], rtol=0, atol=1e-10)
        test = data.test[client]
        with torch.no_grad():
            loss = cross_entropy(module.eval()(data.x[test]), data.y[test], reduction="sum").item()
        assert scores[client][2] == pytest.approx(loss, abs=1e-9)


def both(
    method: Method, sizes: tuple[int, ...], shape: tuple[int, ...] = (5,)
) -> tuple[float, float]:
    """How far the engines are apart in states, and in evaluations."""
    data = federation(shape, sizes)
    states: list[State] = []
    scores = []
    for engine in ENGINES.values():
        experiment, state = play(method, engine, data)
        states.append(state)
        scores.append(evaluate(experiment, state, range(len(sizes)), engine)["personal"])
    gaps = [abs(a - b) for i in scores[0] for a, b in zip(scores[0][i], scores[1][i])]
    return apart(*states), max(gaps)


@pytest.mark.parametrize("method", [FedAvg, FedEM, Ditto, PFedMB])
def test_dropout_is_the_same_in_both_engines(method: type[Method]) -> None:
    net = Net.of(lambda: dense(nn.ReLU(), nn.Dropout(0.3)), dtype=torch.float64)
    assert max(both(method(net, lr=0.1, epochs=2, batch_size=BATCH), NO_SINGLE)) < 1e-10


def test_dropout_changes_training() -> None:
    nets = [
        Net.of(lambda p=p: dense(nn.ReLU(), nn.Dropout(p)), dtype=torch.float64) for p in (0.0, 0.3)
    ]
    one, other = (
        play(FedAvg(net, lr=0.1, batch_size=BATCH), ENGINES["sequential"])[1] for net in nets
    )
    assert apart(one, other) > 1e-3


def test_batch_normalisation_without_statistics_does_not_see_padding_in_evaluation() -> None:
    net = Net.of(
        lambda: dense(nn.BatchNorm1d(6, track_running_stats=False), nn.ReLU()), dtype=torch.float64
    )
    assert max(both(FedAvg(net, lr=0.1, epochs=2, batch_size=BATCH), NO_SINGLE)) < 1e-10


def test_a_batch_of_one_example_is_normalised_alike_by_both_engines_or_refused_by_both() -> None:
    """torch's own layer refuses it: "more than 1 value per channel"."""
    method = FedAvg(
        Net.of(lambda: dense(nn.BatchNorm1d(6)), dtype=torch.float64), lr=0.1, batch_size=BATCH
    )
    data = federation((5,), (9, 16, 17))
    outcomes = []
    for engine in ENGINES.values():
        try:
            outcomes.append(play(method, engine, data, cohorts=((0, 1, 2),))[1])
        except UserError as refused:
            outcomes.append(str(refused))
    one, other = outcomes
    assert (
        one == other
        if isinstance(one, str) or isinstance(other, str)
        else apart(one, other) < 1e-10
    )
