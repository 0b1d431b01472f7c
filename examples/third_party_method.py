"""Somebody else's method, checked in one line: a shared model and a private shift of its answers.

Every client keeps one number per class that is added to the shared model's logits: its own view of
how frequent the classes are. The twist: the shift learns first, decays to 0 so that it explains no
more than it must, and the shared model then learns what the shift does not explain. Run it to see
the verdicts: python examples/third_party_method.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import fedblocks as fb


@dataclass(frozen=True, eq=False)
class PriorShift(fb.Method):
    """FedAvg whose clients correct the model by their own class frequencies."""

    paper: ClassVar[fb.Paper] = fb.Paper("none: an example", "you", 2024)

    classes: Annotated[int, fb.AtLeast(2), fb.Help("as many as the data have")] = 4
    shift_lr: Annotated[float, fb.AtLeast(0), fb.Help("of the private shift; 0 is FedAvg")] = 0.5
    decay: Annotated[float, fb.AtLeast(0), fb.Help("how strongly the shift is drawn to 0")] = 0.1

    def blocks(self) -> dict[str, fb.Block]:
        none = torch.zeros(self.classes, dtype=self.net.dtype)
        return {"model": fb.Shared(self.net.whole), "shift": fb.Private(fb.Value(none))}

    def predict(self, blocks: fb.Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x) + blocks["shift"]["value"]

    def phases(self) -> list[fb.Phase]:
        return [*self.joining(), fb.Phase((self.step("model"),), self.epochs)]

    def joining(self) -> list[fb.Phase]:  # a new client only needs its shift
        step = self.step("shift", lr=self.shift_lr, optimizer=fb.SGD(weight_decay=self.decay))
        return [fb.Phase((step,), self.epochs)]


def example() -> fb.Example:
    without_shift: fb.Reduction = fb.is_fedavg("no shift", {"model": "model"}, shift_lr=0.0)
    return fb.example_for(
        PriorShift, reductions=(without_shift,), exceptions={"no_dead_knobs/classes": "the data's"}
    )


if __name__ == "__main__":
    for check in fb.check_method(example()):
        print(check)
