"""Whether a net answers an example alike in batches of all the sizes that there are: a module may
do something else where many examples stand together, or where few do. Small batches are compared
with themselves at the beginning of a large one, the rest of which is padding, as in a stack.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedblocks.core import mode
from fedblocks.core.net import Net
from fedblocks.core.parts import Params, is_statistic
from fedblocks.engines.net_check.company import DEPENDS, PRECISE, _stirred, inputs_like
from fedblocks.engines.net_check.inspection import code_of
from fedblocks.engines.net_check.known_again import key_of
from fedblocks.engines.net_check.trial import EXACT, ROUGH, _precise
from fedblocks.layers.replacement import BatchNorm

ALIKE = "it is answered alike in batches of all sizes"
OF_HALVES = 0.05  # relative differences that rounding explains in half precision
USUAL = (2, 5, 16, 32)  # where nothing says how large batches are
MOST_ROWS = 64  # of those that somebody gives
SIZES = 6  # that are tried of many
# sums and products, of which a core of a CPU does half a second's work in double precision, and a
# second's in single precision
WORK_IN_DOUBLE = 1e9
WORK = 4e10
WRITTEN = 8  # of these are the time that it takes to write a number

_known: dict[Hashable, str] = {}  # by the net's code, the examples and the sizes


class Batches(NamedTuple):
    """Examples, and how many of them stand together, from the least to the most."""

    x: Tensor  # as many as the largest batch has
    trained: tuple[int, ...]
    evaluated: tuple[int, ...]

    @staticmethod
    def of(x: Tensor, trained: Iterable[int], evaluated: Iterable[int]) -> Batches:
        """Examples in turn, where they are few."""
        sizes = some_sizes(trained), some_sizes({1, *evaluated})
        rows = torch.arange(max(own[-1] for own in sizes)) % len(x)
        return Batches(x[rows.to(x.device)].cpu(), *sizes)

    @staticmethod
    def usual(x: Tensor) -> Batches:
        """Where no run says how large its batches are."""
        sizes = {*USUAL, max(USUAL[-1], min(len(x), MOST_ROWS))}
        return Batches.of(x, sizes, sizes)

    def examples(self, net: Net) -> int:
        """How many a net is given in all; one with norms sees the largest batch beside each."""
        both = (self.trained, self.evaluated)
        turns = [len(own) - 1 if has_norms(net) else 1 for own in both]
        return sum(sum(own[:-1]) + own[-1] * n for own, n in zip(both, turns, strict=True))

    def up_to(self, examples: int, net: Net) -> Batches:
        """These, or, if they are more examples, two sizes of each."""
        if self.examples(net) <= examples:
            return self
        least = max(self.trained[0], self.evaluated[0])
        most = max(2, examples // 2 - least)
        both = ((own[0], own[-1]) for own in (self.trained, self.evaluated))
        trained, evaluated = (tuple(sorted({min(size, most) for size in own})) for own in both)
        return Batches(self.x, trained, evaluated)


def some_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    """Of many sizes the least, the largest and some between."""
    distinct = sorted({*sizes})
    places = torch.linspace(0, len(distinct) - 1, min(SIZES, len(distinct))).round().long()
    return tuple(distinct[place] for place in places.tolist())


def unlike_in_sizes(net: Net, batches: Batches) -> str:
    """Why a net's small batches cannot be padded to large ones; empty: they can, or it takes no
    such inputs.
    """
    x, *sizes = batches
    rows = hash(x.detach().contiguous().view(torch.uint8).numpy().tobytes())
    own = (*code_of(net.template), key_of((net.output, net.fields)))
    key = (*own, rows, tuple(x.shape), x.dtype, net.dtype, *sizes)
    if key not in _known:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch, about a dimension that nobody named
            _known[key] = _why(net, batches)
    return _known[key]


def _why(net: Net, batches: Batches) -> str:
    if bool((batches.x == batches.x[:1]).all()):  # their mean is each of them
        batches = batches._replace(x=inputs_like(net, batches.x, len(batches.x)))
    try:
        work = _effort_of(net, batches.x[:2]).done / 2
        if net.size() > PRECISE or work * batches.examples(net) > WORK_IN_DOUBLE:
            batches = batches.up_to(int(WORK / work), net)
            if not _first_wrong(net, batches, ROUGH):
                return ""  # and else it may be rounding
        net, x = _precise(net, batches.x)
        return _first_wrong(net, batches._replace(x=x), _effort_of(net, x[:2]).tolerance)
    except Exception:  # not of this check: a run says it with the data that it concerns
        return ""


def _first_wrong(net: Net, batches: Batches, tolerance: float) -> str:
    asked = ((True, batches.trained), (False, batches.evaluated))
    start = _start_of(net)
    reasons = (
        _wrong_in(_Passes(net, batches.x, training, start), sizes, tolerance)
        for training, sizes in asked
    )
    return next((why for why in reasons if why), "")


def _wrong_in(passes: _Passes, sizes: Sequence[int], tolerance: float) -> str:
    """What is wrong in one mode, and in which batches."""
    *small, most = sizes
    for size in small:
        padded = passes.padded(size, most)[:size]
        if not bool(padded.isfinite().all()):
            return ""
        if why := _unlike(passes, size, padded, tolerance):
            where = "in training" if passes.training else "in evaluation"
            return f"{why} ({where}, batches of {size} and {most})"
    return ""


def _unlike(passes: _Passes, size: int, padded: Tensor, tolerance: float) -> str:
    try:
        own = passes.outputs(size)
    except Exception as error:
        return f"the smaller batch fails ({str(error).partition('. ')[0]})"
    if own.shape != padded.shape:
        return f"the smaller batch makes {list(own.shape)}"
    near = (own - padded).abs() <= tolerance * padded.abs().max()
    return "" if bool(near.all()) else DEPENDS


@dataclass(frozen=True, eq=False)
class _Passes:
    """What a net makes of the first of some examples, in one mode."""

    net: Net
    x: Tensor
    training: bool
    start: Params

    def outputs(self, size: int, mask: Tensor | None = None) -> Tensor:
        params = {k: v.clone() if is_statistic(k) else v for k, v in self.start.items()}
        with mode.mode(self.training, mapped=False, mask=mask, key=torch.tensor(0)):
            return self.net(params, self.x[:size])

    def padded(self, real: int, size: int) -> Tensor:
        """Of so many examples, of which only the first are no padding."""
        if not has_norms(self.net):
            return self.whole(size)
        return self.outputs(size, (torch.arange(size) < real).to(self.net.dtype))

    @cached_property
    def whole(self) -> Callable[[int], Tensor]:
        """The same for a net that does not ask what is padding: one pass for all."""
        return cache(self.outputs)


def has_norms(net: Net) -> bool:
    """Whether a net asks what is padding."""
    return any(isinstance(layer, BatchNorm) for layer in net.template.modules())


def _start_of(net: Net) -> Params:
    return _stirred(net.init(0))


def _effort_of(net: Net, x: Tensor) -> _Effort:
    passes = _Passes(net, x, False, _start_of(net))
    net.place(x.device)  # what is made once is no part of a pass
    effort = _Effort()
    with effort:
        passes.outputs(len(x))
    return effort


class _Effort(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts sums and products: a clock would let the same net through on one day alone. Notes the
    coarsest numbers, for a module may choose its own.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done, self.coarsest = 1.0, 0.0

    @property
    def tolerance(self) -> float:
        """The relative differences that rounding explains."""
        return EXACT if self.coarsest < 1e-12 else ROUGH if self.coarsest < 1e-5 else OF_HALVES

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.done += count(*args, **(kwargs or {}), out_val=result)
        if isinstance(result, Tensor):
            self.done += WRITTEN * result.numel()
            if result.is_floating_point():
                self.coarsest = max(self.coarsest, torch.finfo(result.dtype).eps)
        return result
