"""A run goes on with the training that it was started with: other phases, and other functions of a
round, are refused; other machines are not.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks import Federation, Phase, Private, Pull, Shared
from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.schedules import Milestones
from fedblocks.engines.behaviour import behaviours_of, difference
from fedblocks.engines.round import Experiment
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing import EXAMPLES

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 6)).astype("float32")
Y = (X @ DRAW.normal(size=(6, 3))).argmax(1)


def points() -> Federation:
    return Federation.from_users(X, Y, np.arange(60) % 4)


class Own(fb.Method):
    """A shared net and an own head, with numbers that no option names."""

    passes = 1
    rate: Any = 0.1
    strength = 0.5
    repeat = 1
    optimizer_of_head: Any = SGD()
    largest: float | None = None
    joined = 1
    kept = 1.0  # by `finish`, of what was learned
    weight = 1.0
    mixing = 0.8  # of the mean, by `conclude`

    def blocks(self) -> Any:
        return {
            "body": Shared(self.net.body),
            "head": Shared(self.net.head),
            "own": Private(self.net.head),
        }

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(fb.join(blocks["body"], blocks["own"]), x)

    def shared_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return batch.loss(self.net(fb.join(blocks["body"], blocks["head"]), batch.x))

    def phases(self) -> list[Phase]:
        pull = Pull("own", to="head", strength=self.strength)
        own = self.step("own", pull=pull, lr=self.rate)
        own = replace(
            own,
            repeat=self.repeat,
            optimizer=self.optimizer_of_head,
            clip_norm=self.largest,
        )
        return [Phase((self.step("body", "head", loss=self.shared_loss), own), self.passes)]

    def joining(self) -> list[Phase]:
        return [Phase((self.step("own"),), self.joined)]

    def finish(self, blocks: fb.Blocks, start: fb.Blocks, client: fb.Client) -> fb.Blocks:
        body = {
            k: start["body"][k] + self.kept * (v - start["body"][k])
            for k, v in blocks["body"].items()
        }
        return {**blocks, "body": body}

    def writes(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        return {"body": (client.size * self.weight)[None]}  # [1]

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        m = self.mixing
        return {
            name: {k: m * v + (1 - m) * before[name][k] for k, v in slots.items()}
            for name, slots in server.items()
        }


def own() -> Own:
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return Own(fb.Net.of(make), lr=0.2, batch_size=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fb.run(own(), points(), rounds=1, out=tmp_path / "run")
    return tmp_path / "run"


CHANGES: dict[str, tuple[Any, str]] = {
    "passes": (2, "`phases`, phase 1, epochs: was 1, and is 2"),
    "rate": (0.11, "`phases`, phase 1, step 2, lr: was 0.1, and is 0.11"),
    "strength": (0.6, "`phases`, phase 1, step 2, pull.strength: was 0.5, and is 0.6"),
    "repeat": (2, "`phases`, phase 1, step 2, repeat: was 1, and is 2"),
    "optimizer_of_head": (SGD(momentum=0.5), "optimizer.momentum: was 0, and is 0.5"),
    "largest": (1.0, "`phases`, phase 1, step 2, clip_norm: was none, and is 1"),
    "joined": (5, "`joining`, phase 1, epochs: was 1, and is 5"),
    "kept": (0.5, "moves blocks otherwise (`finish`) for client"),
    "weight": (0.5, "moves blocks otherwise (`writes`) for client"),
    "mixing": (0.4, "moves blocks otherwise (`conclude`) for client"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_training_is_refused(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, said = CHANGES[name]
    monkeypatch.setattr(Own, name, value)
    with pytest.raises(UserError) as refusal:
        fb.resume(folder, own(), points(), rounds="+1")
    assert said in str(refusal.value)


def test_the_direction_counts_where_the_length_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "kept", -1.0)
    with pytest.raises(UserError, match="`finish`"):
        fb.resume(folder, own(), points(), rounds="+1")


def test_a_schedule_is_compared_in_later_rounds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "rate", Milestones(0.1, (4,)))
    fb.run(own(), points(), rounds=1, out=tmp_path / "run")
    fb.resume(tmp_path / "run", own(), points(), rounds="+1")
    monkeypatch.setattr(Own, "rate", Milestones(0.1, (4,), factor=0.5))
    with pytest.raises(UserError, match=r"lr in round 6: was 0\.01, and is 0\.05"):
        fb.resume(tmp_path / "run", own(), points(), rounds="+1")


def test_a_schedule_over_the_run_may_go_on_for_more_rounds(tmp_path: Path) -> None:
    method = lambda: replace(own(), lr=fb.Cosine(0.2, 0.0, 1.0))
    fb.run(method(), points(), rounds=2, out=tmp_path / "run")
    assert fb.resume(tmp_path / "run", method(), points(), rounds="+2").rounds == 4


def test_the_same_training_goes_on(folder: Path) -> None:
    assert fb.resume(folder, own(), points(), rounds="+1").rounds == 2


def test_a_record_of_earlier_versions_is_compared_by_what_it_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.open(folder) as opened:
        record = json.loads(opened.store.meta("behaviour") or "{}")
        old = {k: v for k, v in record["all"].items() if k not in ("courses", "moves")}
        opened.store.write_facts({"behaviour": json.dumps({"all": old})})
    monkeypatch.setattr(Own, "passes", 2)
    assert fb.resume(folder, own(), points(), rounds="+1").rounds == 2


def test_a_server_that_fails_for_one_client_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Mapping[str, Any]:
        raise ValueError("two are needed")

    monkeypatch.setattr(Own, "conclude", fail)
    behaviour = behaviours_of(Experiment.of(own(), points()))["all"]
    assert behaviour["losses"] and behaviour["courses"] and "moves" not in behaviour


def _elsewhere(make: Callable[[], Experiment]) -> dict[str, Any]:
    """As another machine might compute it: other kernels, and inputs that are off by rounding."""
    experiment = make()
    x = experiment.data.x
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        x.mul_(1 + 1e-6 * noise)
    with torch.backends.mkldnn.flags(enabled=False):
        return behaviours_of(experiment)["all"]


WITH_ADAM = ("fedavg", "ditto", "ifca", "fedem", "pfedmb", "fedbn", "flow")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, None) for name in EXAMPLES), *((name, Adam()) for name in WITH_ADAM)],
)
def test_no_method_of_the_library_is_refused_for_last_digits(
    name: str, optimizer: Adam | None
) -> None:
    def make() -> Experiment:
        experiment = EXAMPLES[name]().experiment()
        usual = experiment.methods["all"]
        method = usual if optimizer is None else replace(usual, optimizer=optimizer)
        return replace(experiment, methods={"all": method})

    here, net = behaviours_of(make())["all"], make().methods["all"].net
    assert here["moves"]["lengths"]["phases"]
    assert difference(here, _elsewhere(make), net, "0") == ""
