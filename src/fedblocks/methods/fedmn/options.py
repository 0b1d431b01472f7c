"""What can be chosen of a pool of modules and its router, in FedMN and in its released code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from torch import Tensor

from fedblocks.core.client import Client
from fedblocks.core.method import Method
from fedblocks.core.modular_net import ModularNet, modular
from fedblocks.core.options import AtLeast, Below, Conflict, Help, Length
from fedblocks.core.parts import Blocks
from fedblocks.methods.fedmn.gates import gates_used

Spread = Annotated[
    float | None,
    AtLeast(0),
    Help("standard deviation of the blocks' first weights, if not as torch makes them"),
]


@dataclass(frozen=True, eq=False)
class PoolOptions(Method):
    """The layers of a pool, and what its router looks at."""

    modules: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Length(2),
        Help("encoders, blocks of each middle layer, outputs", usual="[2, 2, 2]"),
    ] = (2, 2, 2)
    widths: Annotated[
        tuple[int, ...] | None,
        AtLeast(1),
        Help("outputs of an encoder and of each middle block; default: 512, then 256"),
    ] = None
    dropout: Annotated[
        float | None, AtLeast(0), Below(1), Help("in middle blocks; default: 0.5")
    ] = None
    spread: Spread = None
    summary_width: Annotated[int, AtLeast(1), Help("of what the router sees of an input")] = 128
    label_width: Annotated[int, AtLeast(1), Help("of what it sees of a label")] = 64

    def pool_conflicts(self, **others: object) -> list[Conflict]:
        """Layers and widths that do not fit, and other options for making a modular net where
        the net is one.
        """
        layers = len(self.modules)
        if not isinstance(self.net, ModularNet):
            if self.widths is None or len(self.widths) == layers - 1:
                return []
            fix = (
                f"give {layers - 1} widths: of an encoder and of each middle block; or "
                f"modules for {len(self.widths) + 1} layers"
            )
            return [Conflict("widths", f"do not fit modules = {list(self.modules)}", fix)]
        if len(self.net.stages) != layers:
            why = f"these are {layers} layers, and the modular net has {len(self.net.stages)}"
            fix = "give one number for each layer of the net"
            return [Conflict("modules", why, fix, with_net=True)]
        own = [name for name, v in {"widths": self.widths, **others}.items() if v is not None]
        why, fix = "a modular net has its own", "leave it out, or change the net"
        return [Conflict(name, why, fix, with_net=True) for name in own]

    @cached_property
    def path(self) -> ModularNet:
        """One module of each layer: a modular net as it is, any other as the encoder of one."""
        if isinstance(self.net, ModularNet):
            return self.net
        widths = self.widths or (512, *[256] * (len(self.modules) - 2))
        dropout = 0.5 if self.dropout is None else self.dropout
        return modular(self.net, widths, dropout, self.spread)

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"gates": gates_used(blocks["gates"]["value"], self.modules)}
