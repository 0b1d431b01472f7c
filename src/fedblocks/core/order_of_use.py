"""The order in which a module uses its layers, read from its code and without an input."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedblocks.core.cuts import has_own_parameters, is_under
from fedblocks.core.errors import NetError
from fedblocks.core.outside_modules import Output, seeded

_KNOWN = ("torch.nn.", "fedblocks.")  # whose layers use what they declare, in that order


class _LayerTracer(fx.Tracer):
    """Follows the calls of a user's module down to layers that are known."""

    proxy_buffer_attributes = True  # a write to a buffer is noted and not done

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).__module__.startswith(_KNOWN) and not isinstance(m, nn.Sequential)


def layers_in_use(module: nn.Module, output: Output | None) -> list[str] | None:
    """The paths of the layers with parameters that the logits depend on, each where it is used
    last; None where the code cannot be followed without numbers.
    """
    if not _may_differ(module):
        return [path for path, part in module.named_modules() if has_own_parameters(part)]
    tracer = _LayerTracer()
    try:
        with seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = tracer.trace(_with_same_tensors(module))
    except Exception:  # whatever a module does with a value that is none
        return None
    needed = _needed(next(iter(reversed(graph.nodes))), output)
    paths = [path for node in graph.nodes if node in needed for path in _layers_of(node, module)]
    return list(reversed(dict.fromkeys(reversed(paths))))


def _with_same_tensors(module: nn.Module) -> nn.Module:
    """A copy, in whose attributes a module may leave what it likes."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def check_in_use(head: str, layers: Sequence[str] | None) -> None:
    """Refuse a head on which the logits do not depend: it would never train."""
    if layers and not any(is_under(layer, [head]) or is_under(head, [layer]) for layer in layers):
        raise NetError(
            f'the logits do not depend on the head of the net, "{head}", which would never train',
            f'name a layer that the forward pass uses: Net.of(..., head="{layers[-1]}")',
        )


def last_in_pass(module: nn.Module, x: Tensor) -> str:
    """The path of the layer with parameters that a pass of these inputs calls last."""
    module = copy.deepcopy(module).eval()
    called: list[str] = [""]
    note: Callable[[str], Callable[..., None]] = lambda path: lambda *_: called.append(path)
    for path, part in module.named_modules():
        if has_own_parameters(part):
            part.register_forward_hook(note(path))
    with seeded(0), torch.no_grad():
        module(x)
    return called[-1]


def _may_differ(module: nn.Module) -> bool:
    """Whether a module may use its layers in another order than it declares them."""
    parts = list(module.modules())
    others = any(not type(part).__module__.startswith(_KNOWN) for part in parts)
    return others or sum(1 for _ in module.named_modules(remove_duplicate=False)) > len(parts)


def _needed(end: fx.Node, output: Output | None) -> set[fx.Node]:
    """The nodes on which the logits depend."""
    result: Any = end.args[0]
    if isinstance(output, int | str) and isinstance(result, dict | tuple | list):
        result = result[output] if output in _places(result) else result  # type: ignore[index]
    waiting: list[fx.Node] = []
    fx.map_arg(result, waiting.append)
    needed: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    return needed


def _places(result: Any) -> Any:
    return result.keys() if isinstance(result, dict) else range(len(result))


def _layers_of(node: fx.Node, module: nn.Module) -> Iterator[str]:
    """The layers with parameters that a node calls, or whose parameter it reads."""
    path = str(node.target)
    if node.op == "call_module":
        for name, part in module.get_submodule(path).named_modules():
            if has_own_parameters(part):
                yield f"{path}.{name}" if name else path
    elif node.op == "get_attr":
        owner = path.rpartition(".")[0]
        if has_own_parameters(module.get_submodule(owner)):
            yield owner
