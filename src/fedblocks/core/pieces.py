"""Some of a net's tensors, and the layers that they are enough for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.parts import Params

if TYPE_CHECKING:
    from fedblocks.core.net import Net


class Piece:
    """Some of a net's tensors; callable when they are all that a stretch of its layers needs."""

    def __init__(self, net: Net, names: Iterable[str], stages: range | None = None) -> None:
        self.net = net
        self.names = tuple(names)
        self.stages = stages

    def init(self, seed: int) -> Params:
        whole = self.net.init(seed)
        return {name: whole[name] for name in self.names}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        if self is self.net.whole:
            return self.net(params, x)
        if self.stages is None:
            raise UserError(
                "this piece of the net cannot run on its own",
                "call the whole net, `net({**body, **head}, x)`, or give `Net.of` an nn.Sequential",
            )
        for index in self.stages:
            x = self.net.run_stage(index, params, x)
        return x


@dataclass(frozen=True)
class LayerChain:
    """The layers of a net, one after the other, and whose tensors are whose."""

    layers: tuple[str, ...]  # empty if the net is no chain
    names: tuple[str, ...]  # of all tensors of the net

    @staticmethod
    def of(module: nn.Module, names: Iterable[str]) -> LayerChain:
        is_chain = type(module) is nn.Sequential
        children = [name for name, _ in module.named_children()] if is_chain else []
        return LayerChain(tuple(children), tuple(names))

    def names_under(self, index: int) -> list[str]:
        """The tensors of one layer."""
        return [name for name in self.names if name.startswith(f"{self.layers[index]}.")]

    def stretch(self, names: set[str], after: bool) -> range | None:
        """The layers before or after the cut, if they use exactly these tensors."""
        later = names if after else set(self.names) - names
        count = len(self.layers)
        cut = next((i for i in range(count) if later & set(self.names_under(i))), count)
        layers = range(cut, count) if after else range(cut)
        covered = {name for index in layers for name in self.names_under(index)}
        return layers if self.layers and covered == names else None
