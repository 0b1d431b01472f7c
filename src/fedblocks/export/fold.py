"""A personal model in its smallest form: one plain net where it is one, else no block
that it does not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.config.code.ingredients import method_table
from fedblocks.core import mode
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.export.one_net import passes_of
from fedblocks.export.personal import Personal

CONSTANTS = "constants"  # the block of a file that holds those of the net; no method reads it


class Folded(nn.Module):
    """A model that can leave: tensors by name, and how they make logits of inputs."""

    def __init__(self, tensors: Params, core: Net | Method, task: Task = CLASSIFICATION) -> None:
        super().__init__()
        self.names = list(tensors)
        # names with dots and slashes are none that a module may use
        for number, name in enumerate(self.names):
            self.register_buffer(f"tensor_{number}", tensors[name])
        self.task = task
        self.core = core  # a plain net, or a method that puts its blocks together in every call

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [batch, ..., classes], or numbers, [batch, outputs]."""
        tensors = self.tensors()
        with mode.mode(training=False, mapped=False, task=self.task):
            if isinstance(self.core, Net):
                return self.core({name: tensors[name] for name in self.core.names}, x)
            return self.core.predict(as_blocks(tensors), x)

    def tensors(self) -> Params:
        """What is stored, by name."""
        return {name: self.get_buffer(f"tensor_{number}") for number, name in enumerate(self.names)}

    @property
    def numbers(self) -> int:
        """How many numbers the model is made of."""
        return sum(tensor.numel() for tensor in self.tensors().values())


def fold(personal: Personal) -> Folded:
    """The smallest form of a personal model."""
    method, blocks = personal.method.slim(personal.blocks)
    task = personal.data.task
    x = personal.examples(2).x
    plain = _as_plain_net(method, blocks, x, task)
    if plain is not None:
        whole = {**plain, **method.net.constants}
        tensors = {name: value.detach().clone() for name, value in whole.items()}
        return Folded(tensors, method.net, task)
    parts = _read_blocks(method, blocks, x)
    if method.net.constants:
        parts[CONSTANTS] = method.net.constants
    return Folded(_as_tensors(parts), method, task)


def changed_options(before: Method, after: Method) -> dict[str, Any]:
    """Options that became others when a method was made slim, as a configuration has them."""
    own = method_table(before)
    return {name: value for name, value in method_table(after).items() if own.get(name) != value}


def as_blocks(tensors: Params) -> Blocks:
    """Tensors named "block/tensor" as blocks."""
    blocks: Blocks = {}
    for name, value in tensors.items():
        block, _, own = name.rpartition("/")
        blocks.setdefault(block, {})[own] = value
    return blocks


def _as_tensors(blocks: Blocks) -> Params:
    return {
        f"{name}/{key}": v.detach().clone()
        for name, block in blocks.items()
        for key, v in block.items()
    }


def _as_plain_net(method: Method, blocks: Blocks, x: Tensor, task: Task) -> Params | None:
    """The tensors of one net, if predicting is one pass of the method's net over the inputs."""
    params, _ = passes_of(method, blocks, x, task)
    return params if params is not None and _fits(method.net, params) else None


def _fits(net: Net, params: Params) -> bool:
    """Whether tensors have the net's own shapes; two adapters side by side are wider than one."""
    own = {**dict(net.template.named_parameters()), **dict(net.template.named_buffers())}
    return all(params[name].shape == own[name].shape for name in net.names)


def _read_blocks(method: Method, blocks: Blocks, x: Tensor) -> Blocks:
    """The blocks, and the tensors in them, that predicting looks at."""
    noted: Any = Noted({name: Noted(block) for name, block in blocks.items()})
    with torch.no_grad(), mode.mode(training=False, mapped=False):
        method.predict(noted, x)
    return {
        name: {key: blocks[name][key] for key in block.read}
        for name, block in noted.items()
        if block.read
    }


class Noted(dict[str, Any]):
    """A dictionary that notes what is asked of it; who goes through it asks for everything."""

    read: dict[str, None]  # in the order of the questions

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read = {}

    def __getitem__(self, key: str) -> Any:
        self.read[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read |= {key: None} if key in self else {}
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.read |= dict.fromkeys(super().keys())
        return super().__iter__()

    def items(self) -> Any:
        self.read |= dict.fromkeys(super().keys())
        return super().items()

    def values(self) -> Any:
        self.read |= dict.fromkeys(super().keys())
        return super().values()
