"""A method whose functions answer the same question in two ways is refused before the first round:
they count padding, keep something on self, or draw random numbers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import fedblocks as fb
from fedblocks.core.random import uniform
from fedblocks.engines import rehearsal
from fedblocks.engines.round import Experiment
from fedblocks.methods import METHODS
from tests.runs.tempered import Tempered

LOOKED_AT: list[int] = []


class PlainMean(Tempered):
    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return cross_entropy(self.predict(blocks, batch.x), batch.y)


class Summed(Tempered):
    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return cross_entropy(self.predict(blocks, batch.x), batch.y, reduction="sum")


class Halved(Tempered):
    """Leaves examples out where more than half of a batch is padding."""

    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        is_real = batch.mask.bool()
        keeps = is_real if 2 * is_real.sum() > len(is_real) else is_real & (batch.y == 0)
        losses = cross_entropy(self.predict(blocks, batch.x), batch.y, reduction="none")
        return (losses * keeps).sum() / keeps.sum().clamp(min=1)


class Centred(Tempered):
    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        logits = super().predict(blocks, x)
        return logits - logits.mean(0)


class Halving(Tempered):
    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return super().predict(blocks, x.mul_(0.5))


class Counted(Tempered):
    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        LOOKED_AT.append(1)
        return super().own_loss(blocks, batch) * (1 + 0.1 * len(LOOKED_AT))


class Scaled(Tempered):
    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return super().own_loss(blocks, batch) * (1 + torch.rand(()))


class Drawn(Tempered):
    def prepare(self, blocks: fb.Blocks, client: fb.Client) -> fb.Blocks:
        return {**blocks, "temperature": {"value": torch.rand(1)}}


class Keyed(Tempered):
    def prepare(self, blocks: fb.Blocks, client: fb.Client) -> fb.Blocks:
        return {**blocks, "temperature": {"value": uniform(client.key, (1,))}}

    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        noise = uniform(batch.key, tuple(batch.x.shape))
        return batch.loss(self.predict(blocks, batch.x + noise))


class Averaged(Tempered):
    def finish(self, blocks: fb.Blocks, start: fb.Blocks, client: fb.Client) -> fb.Blocks:
        return {**blocks, "temperature": {"value": client.x.mean().view(1)}}


class Sized(Tempered):
    def writes(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        return {"model": torch.ones(1) * len(client.x)}


class Noisy(Tempered):
    def conclude(
        self,
        server: fb.Blocks,
        before: fb.Blocks,
        uploads: dict[str, fb.Upload],
        cohort: fb.Cohort,
    ) -> fb.Blocks:
        noise = {k: v + 0.01 * torch.randn_like(v) for k, v in server["model"].items()}
        return {**server, "model": noise}


class Jittered(Tempered):
    def jitter(self, blocks: fb.Blocks) -> fb.Blocks:
        return {n: {k: v + torch.rand_like(v) for k, v in b.items()} for n, b in blocks.items()}

    def phases(self) -> list[fb.Phase]:
        update = replace(self.step("model", loss=self.own_loss), project=self.jitter)
        return [fb.Phase((update,), self.epochs)]


class Shuffled(Tempered):
    def blocks(self) -> dict[str, fb.Block]:
        return {**super().blocks(), "model": fb.Pool(self.net.whole, 2)}

    def reads(self, server: fb.Blocks, cohort: fb.Cohort) -> dict[str, fb.Mixture]:
        return {"model": fb.Mixture(torch.rand(len(cohort), 2, dtype=torch.double))}


@dataclass(frozen=True, eq=False)
class Chosen(fb.Method):
    """Each client trains the model that suits it best, padding counted."""

    def blocks(self) -> dict[str, fb.Block]:
        chosen = fb.Fresh(fb.Value(torch.zeros(3)))
        return {"models": fb.Pool(self.net.whole, 3), "chosen": chosen}

    def prepare(self, blocks: fb.Blocks, client: fb.Client) -> fb.Blocks:
        outputs = fb.each(self.net, blocks["models"], client.x)
        losses = torch.stack([cross_entropy(o, client.y) for o in outputs])
        return {**blocks, "chosen": {"value": one_hot(losses.argmin(), 3).to(losses.dtype)}}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(fb.mix(blocks["models"], blocks["chosen"]["value"]), x)

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("models"),), self.epochs)]

    def writes(self, blocks: fb.Blocks, client: fb.Client) -> dict[str, Tensor]:
        return {"models": client.size * blocks["chosen"]["value"]}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    LOOKED_AT.clear()


def rows() -> fb.Federation:
    source = np.random.default_rng(0)
    x = source.normal(size=(100, 6)).astype("float32")
    y = (x @ source.normal(size=(6, 3))).argmax(1)
    return fb.Federation.from_users(x, y, np.repeat(np.arange(4), [10, 20, 30, 40]))


def run(kind: type[fb.Method], out: Path, engine: str) -> fb.Result:
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    return fb.run(kind(net, batch_size=8), rows(), rounds=1, out=out, engine=engine)


PADDED = {
    PlainMean: "PlainMean.own_loss depends on rows of batch that are padding",
    Halved: "Halved.own_loss depends on rows of batch that are padding",
    Summed: "Summed.own_loss depends on rows of batch that are padding",
    Chosen: "Chosen.prepare depends on rows of client.x and client.y that are padding",
    Averaged: "Averaged.finish depends on rows of client.x and client.y that are padding",
    Sized: "Sized.writes depends on rows of client.x and client.y that are padding",
}
UNSTEADY = {
    Centred: "Centred.predict of an example is another when others are beside it",
    Halving: "Halving.predict changes its input",
    Counted: "Counted.own_loss gives another result for the same input",
    Scaled: "Scaled.own_loss gives another result for the same input",
    Drawn: "Drawn.prepare gives another result for the same input",
    Noisy: "Noisy.conclude gives another result for the same input",
    Jittered: "Jittered.jitter gives another result for the same input",
    Shuffled: "Shuffled.reads gives another result for the same input",
}


@pytest.mark.parametrize("engine", ["auto", "vectorised"])
@pytest.mark.parametrize("kind", PADDED)
def test_a_method_that_counts_padding_is_refused_where_engines_pad(
    kind: type[fb.Method], engine: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError, match=PADDED[kind]) as error:
        run(kind, tmp_path / "run", engine)
    assert "sequential" in error.value.fix


@pytest.mark.parametrize("kind", PADDED)
def test_a_method_that_counts_padding_runs_where_nothing_is_padded(
    kind: type[fb.Method], tmp_path: Path
) -> None:
    assert run(kind, tmp_path / "run", "sequential").status == "finished"


@pytest.mark.parametrize("engine", ["auto", "sequential"])
@pytest.mark.parametrize("kind", UNSTEADY)
def test_a_method_that_changes_its_answer_is_refused_on_every_engine(
    kind: type[fb.Method], engine: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError, match=UNSTEADY[kind]):
        run(kind, tmp_path / "run", engine)


@pytest.mark.parametrize("kind", [Tempered, Keyed])
def test_a_method_that_draws_its_noise_from_the_keys_runs(
    kind: type[fb.Method], tmp_path: Path
) -> None:
    assert run(kind, tmp_path / "run", "vectorised").status == "finished"


def chain() -> fb.Net:
    return fb.Net.of(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(144, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        ),
        input_shape=(1, 8, 8),
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_rounding_in_single_precision_is_no_reason_to_refuse(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are statistics and noise of the net, which know of padding."""
    monkeypatch.setattr(rehearsal, "is_own", lambda method: True)
    source = np.random.default_rng(1)
    x = 3 * source.normal(size=(100, 1, 8, 8)).astype("float32")
    users = np.repeat(np.arange(4), [8, 12, 40, 40])
    tags = {"operation": [0, 0, 1, 1], "configuration": [0, 1, 0, 1]}
    split = (0.6, 0.2, 0.2)
    data = fb.Federation.from_users(x, np.arange(100) % 4, users, split=split, tags=tags)
    options = {"cohorts": "found"} if name == "modfl" else {}
    experiment = Experiment.of(METHODS[name](chain(), batch_size=8, **options), data, rounds=2)
    assert rehearsal.rehearse(experiment, range(4)) == []
