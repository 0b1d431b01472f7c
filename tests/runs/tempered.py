"""An own method that is right; tests of mistakes change one thing of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import fedblocks as fb


@dataclass(frozen=True, eq=False)
class Tempered(fb.Method):
    """A net for all, a temperature for each."""

    def blocks(self) -> dict[str, fb.Block]:
        temperature = fb.Private(fb.Value(torch.zeros(1)))
        return {"model": fb.Shared(self.net.whole), "temperature": temperature}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x) * blocks["temperature"]["value"].exp()

    def own_loss(self, blocks: fb.Blocks, batch: fb.Batch) -> Tensor:
        return batch.loss(self.predict(blocks, batch.x))

    def phases(self) -> list[fb.Phase]:
        return [fb.Phase((self.step("model", "temperature", loss=self.own_loss),), self.epochs)]
