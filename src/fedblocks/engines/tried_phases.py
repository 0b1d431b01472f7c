"""The functions that phases bring along, `begin`, `project` and `rests`, with a look at what they
return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.client import Client
from fedblocks.core.errors import UserError
from fedblocks.core.hook_results import check_all_blocks, check_like, check_tree
from fedblocks.core.hooks import refuse_kind
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase, Rests, Update
from fedblocks.engines.steadiness import Steadiness
from fedblocks.engines.unwritten import nothing_written

BlocksFunction = Callable[[Blocks], Blocks]


def tried_phases(phases: Sequence[Phase], where: str, steadiness: Steadiness) -> list[Phase]:
    """The same phases, whose functions are refused where they return what no step can use; `where`
    is the function of the method that says the phases.
    """
    return [
        _tried_phase(p, f"of phase {n} of {where}", steadiness) for n, p in enumerate(phases, 1)
    ]


def _tried_phase(phase: Phase, where: str, steadiness: Steadiness) -> Phase:
    updates = [_tried_update(update, where, steadiness) for update in phase.updates]
    begin = phase.begin
    if begin is not None:
        begin = TriedFunction(begin, f"`begin` {where}", phase.train, steadiness, may_write=False)
    return replace(phase, updates=tuple(updates), begin=begin)


def _tried_update(update: Update, where: str, steadiness: Steadiness) -> Update:
    project, rests = update.project, update.rests
    if project is not None:
        project = TriedFunction(project, f"`project` {where}", update.train, steadiness)
    if rests is not None:
        rests = TriedRests(rests, f"`rests` {where}", update.train)
    return replace(update, project=project, rests=rests)


@dataclass(frozen=True, eq=False)
class TriedRests:
    """A function that says which of the trained blocks rest."""

    function: Rests
    where: str
    train: tuple[str, ...]

    def __call__(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        with nothing_written(self.where, {}, blocks):
            result: Any = self.function(blocks, client)
        fix = "return one truth for a block, or one for each of its slots: {name: tensor of bool}"
        if not isinstance(result, Mapping):
            refuse_kind(self.where, result, "a dictionary of blocks", fix)
        for name, flag in result.items():
            if name not in self.train:
                message = f'{self.where} returns "{name}", which is not trained there'
                raise UserError(message, f"name some of {' and '.join(self.train)}")
            if not isinstance(flag, Tensor) or flag.dtype != torch.bool:
                what = str(flag.dtype).removeprefix("torch.") if isinstance(flag, Tensor) else flag
                raise UserError(f'{self.where}: "{name}" is {what}, not a tensor of bool', fix)
            odd = [v for v in blocks[name].values() if v.shape[: flag.dim()] != flag.shape]
            if odd:
                shapes = f"{list(flag.shape)} for tensors of {list(odd[0].shape)}"
                raise UserError(f'{self.where}: "{name}" is {shapes}', fix)
        return dict(result)


@dataclass(frozen=True, eq=False)
class TriedFunction:
    """A function of blocks that gives the trained ones new values."""

    function: BlocksFunction
    where: str
    train: tuple[str, ...]
    steadiness: Steadiness
    may_write: bool = True  # into its arguments: they are working copies

    def __call__(self, blocks: Blocks) -> Blocks:
        self.steadiness.check_function(self.function, blocks)
        before = {name: dict(block) for name, block in blocks.items()}
        with nothing_written(self.where, {}, *([] if self.may_write else [blocks])):
            result = self.function(blocks)
        check_tree(self.where, result)
        check_all_blocks(self.where, result, self.train)
        for name in self.train:
            check_like(self.where, name, result[name], before[name])
        for name in result.keys() - {*self.train}:
            old = before.get(name, {})
            if any(value is not old.get(key) for key, value in result[name].items()):
                message = f'{self.where} returns a new block "{name}", which is not trained there'
                raise UserError(message, f"return new tensors of {' and '.join(self.train)} alone")
        return result
