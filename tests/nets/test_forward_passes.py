"""What a few forward passes show of a net, whatever its size, and what its code keeps elsewhere."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.kept_state import changed_state, state_around

GLOBAL = {"calls": 0}
TALLY: Counter[str] = Counter()
NUMBERS = itertools.count()


def some_data(task: fb.Task | None = None) -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6)).astype("float32")
    data = fb.Federation.from_users(x, (x[:, 0] > 0) * 1 + (x[:, 1] > 0), np.arange(120) % 4)
    return data if task is None else data.with_task(task)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inp(x).tanh())  # type: ignore[no-any-return]


class OverBatch(Body):
    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x).tanh()
        return self.out(h - h.mean(0, keepdim=True))  # type: ignore[no-any-return]


class Counting(Body):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


class Catching(Body):
    def forward(self, x: Tensor) -> Tensor:
        try:
            torch.linalg.cholesky(torch.eye(2) * (9 - x[:, 0].max()))
        except RuntimeError:
            x = -x
        return super().forward(x)


class Writing(Body):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


@pytest.fixture
def all_nets_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST", 10)


@pytest.mark.usefixtures("all_nets_are_large")
@pytest.mark.parametrize("kind", [OverBatch, Catching])
def test_a_large_net_that_is_wrong_in_a_stack_is_kept_from_it(kind: type, tmp_path: Path) -> None:
    method = fb.FedAvg(fb.Net.of(kind), lr=0.1, batch_size=8)
    with pytest.warns(
        UserWarning, match="only a few steps of one client were tried; .* after another"
    ):
        run = fb.run(method, some_data(), 1, tmp_path / "run")
    assert "engine sequential" in str(run.notes)
    with pytest.raises(fb.NetError, match="in a stack of clients"):
        again = fb.FedAvg(fb.Net.of(kind), lr=0.1)
        fb.run(again, some_data(), 1, tmp_path / "stack", engine="vectorised")


@pytest.mark.usefixtures("all_nets_are_large")
@pytest.mark.parametrize(
    ("kind", "why"),
    [(Counting, 'its own attribute "passes"'), (Writing, "writes into them: begin with x = x")],
)
def test_a_large_net_that_leaves_something_behind_is_refused(
    kind: type, why: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.NetError, match=why):
        fb.run(fb.FedAvg(fb.Net.of(kind), lr=0.1), some_data(), 1, tmp_path / "run")


@pytest.mark.usefixtures("all_nets_are_large")
def test_a_large_net_that_is_right_trains_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the training of the net Body was not compared") as heard:
        fb.run(fb.FedAvg(fb.Net.of(Body), lr=0.1), some_data(), 1, tmp_path / "run")
    assert not any("after another" in str(one.message) for one in heard)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_net_that_writes_into_its_inputs_is_refused_by_that(engine: str, tmp_path: Path) -> None:
    """A method that needs a batch twice, as Ditto, would see another the second time."""
    with pytest.raises(fb.NetError, match="leaves its inputs as they are"):
        fb.run(fb.Ditto(fb.Net.of(Writing), lr=0.1), some_data(), 1, tmp_path / "r", engine=engine)  # type: ignore[arg-type]


class InClass(Body):
    log: list[int] = []  # noqa: RUF012 - on purpose

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(1)
        return super().forward(x)


class InGlobal(Body):
    def forward(self, x: Tensor) -> Tensor:
        GLOBAL["calls"] += 1
        return super().forward(x)


class InHelper(Body):
    def forward(self, x: Tensor) -> Tensor:
        count_once()
        return super().forward(x)


class InDefault(Body):
    def forward(self, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006 - on purpose
        seen.append(1)
        return super().forward(x)


class InIterator(Body):
    def forward(self, x: Tensor) -> Tensor:
        next(NUMBERS)
        return super().forward(x)


def count_once() -> None:
    TALLY["calls"] += 1


KEEPERS = {
    InClass: 'the class attribute "InClass.log"',
    InGlobal: '"GLOBAL"',
    InHelper: '"TALLY"',
    InDefault: 'a default argument of "forward" (0)',
    InIterator: '"NUMBERS"',
}


@pytest.mark.parametrize("kind", KEEPERS)
def test_what_a_net_keeps_outside_itself_is_told(kind: type, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="which is outside the net") as heard:
        fb.run(fb.FedAvg(fb.Net.of(kind), lr=0.1), some_data(), 1, tmp_path / "run")
    assert any(KEEPERS[kind] in str(one.message) for one in heard)


class Scheduled:
    """A loss that is another after some calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(outputs, y, reduction="none") * (1 + self.calls // 40)


def with_closure() -> Callable[[Tensor, Tensor], Tensor]:
    calls = 0

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, y, reduction="none") * (1 + calls // 40)

    return loss


@pytest.mark.parametrize(
    ("loss", "kept"), [(Scheduled(), 'its attribute "calls"'), (with_closure(), '"calls"')]
)
def test_what_a_loss_keeps_is_told(
    loss: Callable[[Tensor, Tensor], Tensor], kept: str, tmp_path: Path
) -> None:
    data = some_data(fb.Task(loss=loss))
    with pytest.warns(UserWarning, match=f"the loss .* changes {kept} when it is called"):
        fb.run(fb.FedAvg(fb.Net.of(Body), lr=0.1), data, 1, tmp_path / "run")


LOG = logging.getLogger("of a net")


class Logging(Body):
    def forward(self, x: Tensor) -> Tensor:
        LOG.debug("called")
        return super().forward(x)


@pytest.mark.filterwarnings("error:.*outside the net")
def test_a_net_that_logs_keeps_nothing(tmp_path: Path) -> None:
    fb.run(fb.FedAvg(fb.Net.of(Logging), lr=0.1), some_data(), 1, tmp_path / "run")


def test_code_that_keeps_nothing_changes_nothing() -> None:
    before = state_around(Body())
    assert changed_state(before, state_around(Body())) == ""
    assert changed_state({"a": 1}, {"a": 2}) == "a" and changed_state({}, {"b": 1}) == "b"
