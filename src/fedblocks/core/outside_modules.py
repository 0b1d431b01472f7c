"""Modules of other people: what cannot become a net is told, and where their logits are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedblocks.core.errors import NetError, a_kind
from fedblocks.core.own_code import takes
from fedblocks.layers.copying import copy_module

# a place in a tuple, a key or an attribute, or a function
Output = int | str | Callable[[Any], Tensor]
# of buffers made from the first weights: what is wrong, and what to do
DRAWN_ANEW = (
    "every run draws its parameters anew from its seed, and buffers stay as they are",
    "compute it in the forward pass from a parameter, make it a parameter, or start from the "
    "weights of one module: Net.of(MyNet(), keep_weights=True)",
)


def make_module(make: Callable[[], nn.Module]) -> nn.Module:
    """Call a function; refuse what is not a module, or one whose tensors are not there yet."""
    if not callable(make):
        raise NetError(
            f"{a_kind(make)} is not a module",
            "give an nn.Module, or a function that makes one",
        )
    if not takes(make, 0):
        name = getattr(make, "__name__", type(make).__name__)
        needed = ", ".join(inspect.signature(make).parameters)
        called = f"{'MyNet' if '<' in name else name}(...)"
        raise NetError(
            f"{name}({needed}) cannot be called without arguments",
            f"give a function that makes the module: Net.of(lambda: {called})",
        )
    module = make()
    if not isinstance(module, nn.Module):
        raise NetError(
            f"the function makes {a_kind(module)}, not a module",
            "return an nn.Module from it",
        )
    _check_tensors(module)
    return module


def _check_tensors(module: nn.Module) -> None:
    """Refuse tensors that engines could not put others in the place of."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise NetError(
            "the module is compiled by torch.jit, and the engines cannot look into it",
            "give the module as it was before torch.jit.script or torch.jit.trace",
        )
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        layer = lazy.rpartition(".")[0]
        raise NetError(
            f'the layer "{layer}" is lazy: its size shows only when data come',
            "give its size, e.g. nn.Linear(64, 10) for nn.LazyLinear(10): all tensors are made "
            "at the start",
        )
    sparse = next((name for name, tensor in tensors if tensor.layout != torch.strided), None)
    if sparse is not None:
        raise NetError(
            f'the tensor "{sparse}" of the module is sparse, and engines could not copy it',
            f"register a dense one: {sparse.rpartition('.')[2]}.to_dense()",
        )
    hooked = [name for name, tensor in module.named_parameters() if tensor._backward_hooks]
    if hooked:
        raise NetError(
            f'the parameter "{hooked[0]}" has a hook (register_hook), which engines would not call',
            "do what it does in the forward pass, or in the loss of a method",
        )
    frozen = [name for name, tensor in module.named_parameters() if not tensor.requires_grad]
    if frozen:
        name = frozen[0]
        raise NetError(
            f'the parameter "{name}" is frozen (requires_grad=False), but all parameters train',
            "register it as a buffer, which stays as it is, or leave requires_grad on",
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's randomness as a function of a seed, and as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():  # a module may be made there
            torch.random.manual_seed(seed)
        else:  # that would note a stack trace for each kind of device that is not there
            torch.default_generator.manual_seed(seed)
        yield


def in_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, its real numbers in this precision; `module.to` would make
    complex numbers real.
    """
    if not dtype.is_floating_point:
        kind = str(dtype).removeprefix("torch.")
        raise NetError(f"dtype={kind}: parameters are real numbers", "use float32 or float64")
    _refuse_complex(module)
    return apply_once(module, lambda v: v.to(dtype) if v.is_floating_point() else v)


def apply_once(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """The module itself, its tensors changed; a buffer that layers share stays one."""
    changed: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, whose id is not used again

    def change_once(value: Tensor) -> Tensor:
        if id(value) not in changed:
            changed[id(value)] = value, change(value)
        return changed[id(value)][1]

    module._apply(change_once)  # type: ignore[no-untyped-call]
    return module


def _refuse_complex(module: nn.Module) -> None:
    """Refuse complex parameters, whose imaginary parts no block would hold."""
    for name, value in module.named_parameters():
        if value.is_complex():
            raise NetError(
                f'the parameter "{name}" is complex: parameters are real numbers',
                "keep the real and the imaginary part as one parameter [..., 2], and join them in "
                "the forward pass by torch.view_as_complex",
            )


def is_double(module: nn.Module) -> bool:
    """Whether some parameters have more digits than float32."""
    return any(value.dtype == torch.float64 for value in module.parameters())


def reset(module: nn.Module) -> nn.Module:
    """A copy of a module whose layers have drawn their parameters anew, in the order in which they
    were made: a module after its own layers, whose numbers it may have set.
    """
    module = copy_module(module)
    for part in _inner_first(module, set()):
        for name in ("reset_parameters", "_reset_parameters"):  # the second is attention's
            draw = getattr(part, name, None)
            if callable(draw):
                draw()
    return module


def _inner_first(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    seen.add(id(module))
    for part in module.children():
        if id(part) not in seen:
            yield from _inner_first(part, seen)
    yield module


def check_can_be_reset(module: nn.Module) -> None:
    """Refuse a module with parameters that `reset` leaves as they are: no seed would
    change them; and one with copies of those that it draws anew.
    """
    _refuse_copied_weights(module)
    blank = copy_module(module)
    with torch.no_grad():
        for tensor in blank.parameters():
            if not is_lazy(tensor):
                tensor.fill_(torch.nan)
    with seeded(0):
        again = reset(blank)
    for name, tensor in again.named_parameters():
        if not is_lazy(tensor) and bool(tensor.isnan().any()):
            raise NetError(
                f'the parameter "{name}" belongs to no layer with reset_parameters, so that no '
                f"seed would change it",
                "pass a function that makes the module, Net.of(lambda: MyNet()), or "
                "keep_weights=True",
            )


def _refuse_copied_weights(module: nn.Module) -> None:
    """Refuse a buffer that is a copy of a parameter, where the parameters will be drawn anew."""
    for name, buffer in module.named_buffers():
        for other, parameter in module.named_parameters():
            if _is_copy(buffer, parameter):
                raise NetError(
                    f'the buffer "{name}" is a copy of the parameter "{other}", but '
                    f"{DRAWN_ANEW[0]}",
                    DRAWN_ANEW[1],
                )


def _is_copy(buffer: Tensor, parameter: Tensor) -> bool:
    """Whether both hold the same numbers, which are not all alike."""
    if buffer.shape != parameter.shape or not parameter.numel():
        return False
    with torch.no_grad():
        is_constant = bool((parameter == parameter.flatten()[0]).all())
        return not is_constant and torch.equal(buffer, parameter.to(buffer))


def take_logits(result: Any, output: Output | None) -> Tensor:
    """The logits in what a module returned."""
    logits = result if output is None else _take(result, output)
    if not isinstance(logits, Tensor):
        _refuse(result, output)
    return logits


def _take(result: Any, output: Output) -> Any:
    if callable(output):
        return output(result)
    if isinstance(output, int) and isinstance(result, Tensor):
        return result  # a module that returns a tuple in training only
    try:
        is_item = isinstance(output, int) or isinstance(result, Mapping)
        return result[output] if is_item else getattr(result, str(output))
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def _refuse(result: Any, output: Output | None) -> NoReturn:
    """Say what a module returned instead of logits."""
    if isinstance(result, Mapping):
        what, entries = f"a dictionary with the keys {', '.join(map(repr, result))}", dict(result)
    elif isinstance(result, tuple | list):
        what, entries = f"a {type(result).__name__} of {len(result)}", dict(enumerate(result))
    else:
        what, entries = a_kind(result), dict(getattr(result, "__dict__", {}))
    wrong = "" if output is None else f"; output={output!r} does not name a tensor in it"
    message = f"the module returns {what}, not a tensor of logits{wrong}"
    raise LogitsError(message, say_where(entries), entries)


def say_where(entries: Mapping[Any, Any], outputs: int | None = None) -> str:
    """What to write for a module that returns these: the entry called logits, else one with as
    many outputs as there must be.
    """
    tensors = {place: one for place, one in entries.items() if isinstance(one, Tensor)}
    fitting = [place for place, one in tensors.items() if one.dim() and one.shape[-1] == outputs]
    named = [place for place in tensors if place == "logits"]
    place = (named or fitting or list(tensors) or ["logits"])[0]
    what = "output=a function of what the module returns"
    return f"say where the logits are: Net.of(..., output={place!r}), or {what}"


class LogitsError(NetError):
    """A module returns something in which the logits have to be looked for."""

    def __init__(self, message: str, fix: str, entries: Mapping[Any, Any] | None = None) -> None:
        super().__init__(message, fix)
        self.entries = entries or {}
