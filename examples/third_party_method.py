"""Somebody else's method, checked in one line: a shared model and a private shift of its answers.

Every client keeps one number per class that is added to the shared model's logits: its own view of how frequent the
classes are. The twist: the shift learns first, decays to 0 so that it explains no more than it must, and the shared
model then learns what the shift does not explain. Run it to see the verdicts: python examples/third_party_method.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.method import Method, Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks, Value
from fedblocks.core.phases import Phase
from fedblocks.testing import Example, Reduction, check_method, example_for, is_fedavg


@dataclass(frozen=True, eq=False)
class PriorShift(Method):
    """FedAvg whose clients correct the model by their own class frequencies."""

    paper: ClassVar[Paper] = Paper("none: an example", "you", 2024)

    classes: Annotated[int, AtLeast(2), Help("as many as the data have")] = 4
    shift_lr: Annotated[float, AtLeast(0), Help("of the private shift; 0 is FedAvg")] = 0.5
    decay: Annotated[float, AtLeast(0), Help("how strongly the shift is drawn to 0")] = 0.1

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
