"""Vectorised equals sequential to 1e-5 after two rounds: every method, three kinds of
nets, clients of every size.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam, Optimizer
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import Leaves, differences, judged, report_leaves, state_leaves
from fedblocks.testing.rounds import run
from tests.representatives import REPRESENTATIVES, case_of

# in batches of 4: one left over, one example, one full batch, nothing, a half, two full
SIZES = (9, 1, 4, 0, 6, 8)
COHORTS = [[0, 1, 2, 3, 4, 5], [1, 2, 3, 5]]
CLASSES = 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Linear(8, 5),
            nn.LSTM(5, 6, batch_first=True),
            nn.Linear(6, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x[:, 0]))[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES)
    )


def cnn() -> nn.Module:
    scaled = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.2)
    )
    return nn.Sequential(*scaled, nn.Flatten(), nn.Linear(27, CLASSES))


KINDS: dict[str, tuple[Callable[[], nn.Module], Optimizer]] = {
    "mlp": (mlp, SGD(momentum=0.9, nesterov=True, weight_decay=1e-3)),
    "cnn": (cnn, SGD(momentum=0.5)),
    # a larger eps: 1e-8 turns rounding into steps where gradients vanish
    "lstm": (Recurrent, Adam(eps=1e-3)),
}
# reads gradients off its steps
NEEDS: dict[str, dict[str, object]] = {"scaffold": {"optimizer": SGD()}}
# of recurrent nets, they route language models only
ROUTED = ("dynamic_routing", "flow", "flow_v2")


def federation(tags: tuple[str, ...]) -> Federation:
    rng = generator(0, "engines agree")
    parts = np.array([(size, 2, 5) for size in SIZES])
    rows = int(parts.sum())
    y = rng.integers(0, CLASSES, rows)
    x = rng.normal(size=(rows, 1, 8, 8)) + y[:, None, None, None] / 2
    cuts = np.split(np.arange(rows), np.cumsum(parts.ravel())[:-1])
    train, validation, test = (Rows.of(cuts[part::3]) for part in range(3))
    kinds = {name: np.arange(len(SIZES)) % 2 for name in tags}
    return Federation(
        torch.from_numpy(x).float(),
        torch.from_numpy(y),
        train,
        validation,
        test,
        CLASSES,
        tags=kinds,
    )


def outcome(name: str, kind: str, engine: Engine, **changes: object) -> Leaves:
    make, optimizer = KINDS[kind]
    example = EXAMPLES[name]()
    net = Net.of(make, input_shape=(1, 8, 8))
    options = {"net": net, "optimizer": optimizer, "lr": 0.05, **NEEDS.get(name, {}), **changes}
    experiment = example.experiment(federation(getattr(example.method, "tags", ())), **options)
    done = run(experiment, engine, COHORTS, score="test")
    actual = {**state_leaves(done.last), **judged(experiment, done.last, engine)}
    for number, report in enumerate(done.reports):
        assert report.refusals == []
        actual |= {
            f"round {number}, {place}": value for place, value in report_leaves(report).items()
        }
    return actual


PAIRS = [
    case_of(name, kind, always=kind == "cnn" or name in REPRESENTATIVES)
    for name in EXAMPLES
    for kind in KINDS
    if not (name in ROUTED and kind == "lstm")
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_vectorised_engine_gives_what_the_sequential_gives(name: str, kind: str) -> None:
    """All methods on a net with convolutions, norms and dropout, one of each kind on the others;
    all on all in `make test-rest`.
    """
    assert (
        differences(
            outcome(name, kind, Vectorised(chunk=4)), outcome(name, kind, Sequential()), 1e-5
        )
        == []
    )


@pytest.mark.parametrize("name", [name for name in ROUTED if name in EXAMPLES])
def test_a_method_that_cannot_route_a_net_says_so(name: str) -> None:
    with pytest.raises(UserError, match="no layers to route"):
        outcome(name, "lstm", Sequential())


@pytest.mark.parametrize(
    "changes", [{"statistics": "local"}, {"drop_last": True}, {"keep_optimizer": True}], ids=str
)
@pytest.mark.parametrize("name", ["fedavg", "pfedmb"])
def test_engines_agree_on_every_switch(name: str, changes: dict[str, object]) -> None:
    ours, theirs = (
        outcome(name, "cnn", engine, **changes) for engine in (Vectorised(chunk=2), Sequential())
    )
    assert differences(ours, theirs, 1e-5) == []
