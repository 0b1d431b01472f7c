"""What a file of adapters says of them: over which base they stand, and in which scale."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fedblocks.core.errors import UserError
from fedblocks.core.frozen import ADAPTERS, BASE, told_apart
from fedblocks.core.lora import LoraNet
from fedblocks.core.method import Method
from fedblocks.core.net import Net


class AdapterFacts(BaseModel):
    """All that one has to know to merge the factors of a file by hand, or to load them elsewhere:
    `scale` times B A is added to the weights of a target. Factors are in this scale whatever rank
    a client has; one of a smaller rank has zeros in the other places.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str = Field(pattern="^[0-9a-f]{64}$")  # SHA-256 of the base's names, types and numbers
    rank: int
    alpha: float
    scale: float  # alpha / rank
    targets: list[str]  # paths of the layers with an adapter
    head: str | None  # the part that is stored as a whole

    def text(self) -> str:
        """In a line."""
        head = f', and "{self.head}" as a whole' if self.head else ""
        scale = f"{self.scale:g} (alpha {self.alpha:g} / rank {self.rank})"
        return f"scale {scale} on {', '.join(self.targets)}{head}; scale x B A is added to weights"


def facts_of(core: Net | Method) -> AdapterFacts | None:
    """Of a net with adapters; of others there are none."""
    net = core.net if isinstance(core, Method) else core
    if not isinstance(net, LoraNet):
        return None
    spec = net.spec
    return AdapterFacts(
        base=net.base_hash,
        rank=spec.rank,
        alpha=spec.alpha,
        scale=spec.scale,
        targets=list(net.targets),
        head=spec.head,
    )


def check_facts(facts: AdapterFacts | None, core: Net | Method, path: Path) -> None:
    """Refuse adapters over another base than the one that they were trained on, or in another
    scale.
    """
    here = facts_of(core)
    if here is None:
        return
    if facts is None:
        message = f"{path} does not say over which base its adapters stand"
        raise UserError(message, "export the model again")
    if facts.base != here.base:
        raise UserError(
            told_apart(BASE, here.base, facts.base, f"in {path}"),
            "give the net the weights that the run was started with; its folder has them under "
            "frozen/",
        )
    if facts.scale != here.scale:
        mine, theirs = f"scale {here.scale!r}", f"scale {facts.scale!r}"
        raise UserError(
            told_apart(ADAPTERS, mine, theirs, f"in {path}"),
            f"give fb.lora rank={facts.rank} and alpha={facts.alpha:g}",
        )
