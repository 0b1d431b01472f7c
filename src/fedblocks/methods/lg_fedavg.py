"""Private lower layers, shared upper layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method, join
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.pieces import Piece


@dataclass(frozen=True, eq=False)
class LGFedAvg(Method):
    """Clients learn representations of their own and average what stands on top of them
    (Liang et al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "Liang et al.",
        2020,
        "arXiv 2001.01523",
    )

    lg_global: Annotated[
        Literal["top", "bottom"],
        Help('what is averaged: "top" as in the paper, or "bottom" as in its code for images'),
    ] = "top"
    top_layers: Annotated[
        int | None,
        AtLeast(1),
        Help("how many of the last layers are the top; default: the net's head"),
    ] = None
    local_layers: Annotated[
        Literal["kept", "derived"],
        Help(
            '"kept" by the client, or "derived" from averaged ones before every evaluation: no '
            "state"
        ),
    ] = "kept"

    def conflicts(self) -> list[Conflict]:
        layers = len(self.net.layers)
        if self.top_layers is not None and self.top_layers > layers:
            fix = f"use 1 to {layers}, or leave it out for the net's head"
            return [Conflict("top_layers", f"the net has {layers} layers", fix, with_net=True)]
        return []

    @property
    def pieces(self) -> dict[str, Piece]:
        """The two halves of the net, left out where empty."""
        halves = {"bottom": self.net.body, "top": self.net.head}
        if self.top_layers is not None:
            order = [path for path, _ in self.net.template.named_modules()]
            cut = order.index(list(self.net.layers)[-self.top_layers])
            top = {name for name in self.net.names if order.index(name.rpartition(".")[0]) >= cut}
            bottom = set(self.net.names) - top
            halves = {"bottom": self.net.piece(bottom), "top": self.net.piece(top)}
        return {name: piece for name, piece in halves.items() if piece.names}

    def blocks(self) -> dict[str, Block]:
        home = Private if self.local_layers == "kept" else Shared
        return {
            n: Shared(piece) if n == self.lg_global else home(piece)
            for n, piece in self.pieces.items()
        }

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(*(blocks[name] for name in self.pieces)), x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step(*self.pieces),), self.epochs)]

    def adaptation(self) -> list[Phase]:
        return self.joining() if self.local_layers == "derived" else []

    def joining(self) -> list[Phase]:
        own = [name for name in self.pieces if name != self.lg_global]
        return [Phase((self.step(*own),), self.epochs)] if own else []

    def degenerate(self) -> list[str]:
        everything = self.lg_global == "top" and "bottom" not in self.pieces
        nothing = self.lg_global not in self.pieces
        sentences = {"all layers are shared, which makes LG-FedAvg FedAvg": everything}
        sentences["no layer is shared, which makes LG-FedAvg Local"] = nothing
        return [sentence for sentence, holds in sentences.items() if holds]
