"""One factor shared, the other a client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.description import Paper
from fedblocks.core.options import Help
from fedblocks.core.phases import Phase
from fedblocks.methods.lora.adapted import DOWN, HEAD, UP, AdapterMethod


@dataclass(frozen=True, eq=False)
class FedSALoRA(AdapterMethod):
    """A is averaged, B stays with its client; both train together (Guo et al., 2025). No product is
    averaged, and there is no global model.
    """

    paper: ClassVar[Paper] = Paper(
        "Selective Aggregation for Low-Rank Adaptation in Federated Learning",
        "Guo et al.",
        2025,
        "ICLR",
    )

    share: Annotated[Literal["A", "B"], Help("the factor that is averaged")] = "A"

    def blocks(self) -> dict[str, Block]:
        down, up = self.adapted.lora_A, self.adapted.lora_B
        if self.share == "A":
            return {DOWN: Shared(down), UP: Private(up), **self.head_block()}
        return {DOWN: Private(down), UP: Shared(up), **self.head_block()}

    def phases(self) -> list[Phase]:
        return [Phase((self.step(*self.trained(DOWN, UP)),), self.epochs)]

    def joining(self) -> list[Phase]:
        own = UP if self.share == "A" else DOWN
        names = (own, HEAD) if self.head == "private" else (own,)
        return [Phase((self.step(*names),), self.epochs)]
