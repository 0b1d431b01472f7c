"""Somebody else's method, checked in one line: a shared model and a private shift of its answers.

Every client keeps one number per class that is added to the shared model's logits: its own view of how frequent the
classes are. The twist: the shift learns first, decays to 0 so that it explains no more than it must, and the shared
model then learns what the shift does not explain. Run it to see the verdicts: python examples/third_party_method.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks import (
    SGD,
    Block,
    Blocks,
    Example,
    Method,
    Paper,
    Phase,
    Private,
    Reduction,
    Shared,
    Value,
    check_method,
    example_for,
    is_fedavg,
)


@dataclass(frozen=True, eq=False)
class PriorShift(Method):
    """FedAvg whose clients correct the model by their own class frequencies."""

    paper: ClassVar[Paper] = Paper("none: an example", "you", 2024)

    classes: int = 4
    shift_lr: float = 0.5  # of the private shift
    decay: float = 0.1  # how strongly the shift is drawn to 0

    def blocks(self) -> dict[str, Block]:
        none = torch.zeros(self.classes, dtype=self.net.dtype)
        return {"model": Shared(self.net.whole), "shift": Private(Value(none))}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x) + blocks["shift"]["value"]

    def phases(self) -> list[Phase]:
        return [*self.joining(), Phase((self.step("model"),), self.epochs)]

    def joining(self) -> list[Phase]:  # a new client only needs its shift
        step = self.step("shift", lr=self.shift_lr, optimizer=SGD(weight_decay=self.decay))
        return [Phase((step,), self.epochs)]


def example() -> Example:
    without_shift: Reduction = is_fedavg("no shift", {"model": "model"}, shift_lr=0.0)
    return example_for(PriorShift, reductions=(without_shift,), exceptions={"no_dead_knobs/classes": "the data's"})


if __name__ == "__main__":
    for check in check_method(example()):
        print(f"{check.number:2d} {'ok  ' if check.passed else 'FAIL'} {check.says}  {check.detail}")
