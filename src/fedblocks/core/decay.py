"""Weight decay of weights alone: not of biases, and not of normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from fedblocks.core.method import Method
from fedblocks.core.numbers import with_numbers
from fedblocks.core.optimizers import Count, Memory, Optimizer, Rate, of_some
from fedblocks.core.parts import Part
from fedblocks.core.phases import Update
from fedblocks.core.pieces import Piece

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

TensorName = tuple[str, str]  # of a block, and in it


@dataclass(frozen=True)
class DecayGroups:
    """An optimizer with two groups of tensors, as torch has them: some do not decay."""

    base: Optimizer  # has `weight_decay`
    exempt: frozenset[int]  # identities of tensors

    def at(self, places: Sequence[int]) -> DecayGroups:
        """The same for some of the tensors."""
        return replace(self, base=of_some(self.base, places))

    def memory(self, params: list[Tensor]) -> Memory:
        return self.base.memory(params)

    def step(
        self, params: list[Tensor], grads: list[Tensor], memory: Memory, lr: Rate, count: Count
    ) -> None:
        free: Optimizer = with_numbers(self.base, {"weight_decay": 0.0})
        for optimizer, is_exempt in ((self.base, False), (free, True)):
            places = [i for i, p in enumerate(params) if (id(p) in self.exempt) == is_exempt]
            if places:
                own = {
                    moment: _at(values, places)
                    for moment, values in memory.items()
                    if len(values) == len(params)  # else it is of no single tensor
                }
                part = of_some(optimizer, places)
                part.step(_at(params, places), _at(grads, places), own, lr, count)


def exempt_names(
    update: Update, method: Method | None, blocks: Mapping[str, Any]
) -> set[TensorName]:
    """What an update moves and its optimizer does not decay; nothing where it decays all alike."""
    if method is None or not _is_selective(update.optimizer):
        return set()
    weights = weight_names(method)
    trained = {(name, key) for name in update.train for key in blocks[name]}
    return trained - weights


def with_groups(optimizer: Optimizer, exempt: frozenset[int]) -> Optimizer:
    """An optimizer that leaves some tensors out of its decay, if it was asked to; also inside of
    another that has it as its `base`.
    """
    if getattr(optimizer, "decay", None) == "weights":
        return DecayGroups(optimizer, exempt)
    base = getattr(optimizer, "base", None)
    if base is None:
        return optimizer
    return replace(optimizer, base=with_groups(base, exempt))  # type: ignore[type-var]


def weight_names(method: Method) -> set[TensorName]:
    """The weights among a method's tensors: of two dimensions and more, no bias, in no norm."""
    layout = method.blocks()
    parts: dict[str, Any] = {name: block.part for name, block in layout.items()}
    own = {
        name: _weights_of_piece(part) if isinstance(part, Piece) else _weights_of(part)
        for name, part in parts.items()
        if hasattr(part, "init")
    }
    # a block that `prepare` makes has copies of tensors of the net, or of another block
    anywhere = set().union(_weights_of_piece(method.net.whole), *own.values())
    return {(name, key) for name in layout for key in own.get(name, anywhere)}


def _weights_of(part: Part) -> set[str]:
    return {name for name, value in part.init(0).items() if value.dim() > 1}


def _weights_of_piece(piece: Piece) -> set[str]:
    """As above, without drawing any number, and by the kinds of layers, too."""
    template = piece.net.template
    norms = {
        id(parameter)
        for module in template.modules()
        if isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
    }
    weights = {
        name
        for name, value in template.named_parameters()
        if value.dim() > 1 and not _is_bias(name) and id(value) not in norms
    }
    return weights & set(piece.names)


def _is_bias(name: str) -> bool:
    return "bias" in name.rpartition(".")[2]  # also `bias_k`, of three dimensions


def _is_selective(optimizer: Any) -> bool:
    base = getattr(optimizer, "base", None)
    return getattr(optimizer, "decay", None) == "weights" or (
        base is not None and _is_selective(base)
    )


def _at(values: list[Tensor], places: list[int]) -> list[Tensor]:
    return [values[place] for place in places]
