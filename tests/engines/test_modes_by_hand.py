"""What a method's functions can learn of the pass that they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fedblocks.core import mode
from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.ditto import Ditto
from fedblocks.testing.federations import small_federation, small_net

TASK = Task("regression")


@dataclass(frozen=True)
class Listening(Ditto):
    """Ditto, whose functions write down in what pass they are."""

    heard: ClassVar[dict[str, Any]] = {}

    def _hear(self, name: str) -> None:
        now = mode.current()
        self.heard[name] = (now.training, now.mapped, now.key is not None, now.task)

    def prepare(self, blocks: Any, client: Any) -> Any:
        self._hear("prepare")
        return super().prepare(blocks, client)

    def finish(self, blocks: Any, start: Any, client: Any) -> Any:
        self._hear("finish")
        return super().finish(blocks, start, client)

    def loss(self, blocks: Any, batch: Any) -> Any:
        self._hear("loss")
        return super().loss(blocks, batch)

    def predict(self, blocks: Any, x: Any) -> Any:
        self._hear("predict in training" if mode.current().training else "predict")
        return super().predict(blocks, x)


@pytest.mark.parametrize(("engine", "mapped"), [(Sequential(), False), (Vectorised(), True)])
def test_functions_know_the_task_and_whether_clients_are_stacked(engine: Any, mapped: bool) -> None:
    data = small_federation()
    y = data.y[:, None].expand(-1, 4).double()
    numbers = Federation(data.x, y, data.train, data.validation, data.test, 4, task=TASK)
    experiment = Experiment.of(Listening(small_net()), numbers, 0)
    Listening.heard.clear()
    state, _ = run_round(experiment, experiment.start(), [0, 1, 2], engine)
    evaluate_parts(experiment, state, [0, 1, 2], engine, ("test",))
    assert Listening.heard == {
        "prepare": (False, mapped, False, TASK),
        "finish": (False, mapped, False, TASK),
        "loss": (True, mapped, True, TASK),
        "predict in training": (True, mapped, True, TASK),
        "predict": (False, mapped, False, TASK),
    }
