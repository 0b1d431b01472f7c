"""Everything that survives a round: nested dicts of tensors, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedblocks.core.blocks import (
    NOT_ON_THE_SERVER,
    Block,
    Federated,
    PerClient,
    Pool,
    Private,
    ServerOnly,
    Shared,
    server_name,
)
from fedblocks.core.common_adapters import check_common_adapters
from fedblocks.core.common_blocks import (
    Start,
    check_common_rules,
    check_same_shapes,
    check_same_start,
)
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params, Part, Sized, is_statistic
from fedblocks.core.random import derive
from fedblocks.core.trees import in_order


@dataclass(frozen=True, eq=False)
class State:
    """A federation between two rounds. A round takes one and returns another."""

    round: int  # rounds done
    server: Blocks  # server name -> [slots, ...]
    memory: dict[str, Blocks]  # server name -> what its rule remembers, [slots, ...]
    private: Mapping[int, Blocks]  # client -> its private blocks, for clients that have trained


def initial_state(
    methods: Mapping[str, Method], population: int, seed: int, device: torch.device | str = "cpu"
) -> State:
    """The state before the first round; groups of clients that share a server name must
    agree on its shape, its start and its rule, and on what adapters in it mean.
    """
    server: Blocks = {}
    memory: dict[str, Blocks] = {}
    first: dict[str, tuple[str, Start]] = {}  # a block of the server -> its first group and start
    for group, method in methods.items():
        for name, block in method.blocks().items():
            if not isinstance(block, NOT_ON_THE_SERVER):
                key, start = server_name(name, block), partial(initial_slots, block, population)
                slots = to_device(start(seed), device)
                if key in first:
                    check_same_shapes(key, group, slots, server[key])
                    check_same_start(key, first[key], (group, start), seed)
                first.setdefault(key, (group, start))
                server.setdefault(key, slots)
                if isinstance(block, Federated):
                    memory.setdefault(key, in_order(block.rule.memory(server[key])))
        check_statistics(method)
    check_common_rules(methods)
    check_common_adapters(methods)
    return State(0, server, memory, {})


def initial_slots(block: Block, population: int, seed: int) -> Params:
    """The slots of a block on the server at the start."""
    match block:
        case ServerOnly():
            part = block.part.make(population) if isinstance(block.part, Sized) else block.part
            return initial_copy(part, seed)
        case Pool():
            return block.start.slots(partial(initial_copy, block.part, seed), block.size)
        case PerClient():
            copy = initial_copy(block.part, seed)
            return {
                name: value.expand(population, *value.shape).clone() for name, value in copy.items()
            }
        case Shared():
            return {name: value[None] for name, value in initial_copy(block.part, seed).items()}
        case _:
            raise TypeError(f"{type(block).__name__} has no slots on the server")


def initial_copy(part: Part, seed: int, number: int = 0) -> Params:
    """One copy at the start. All methods have initialisation 0 in common, so that they can
    be compared.
    """
    copy: Params = in_order(part.init(derive(seed, "init", number)))
    return copy


def initial_private(method: Method, seed: int) -> Blocks:
    """What a client that never trained holds: its private blocks, and local statistics
    of shared ones.
    """
    private: Blocks = {}
    for name, block in method.blocks().items():
        if isinstance(block, Private):
            private[name] = initial_copy(block.part, seed)
        elif method.statistics == "local" and isinstance(block, Shared | Pool):
            slots = initial_slots(block, 0, seed)
            own = {
                k: v if isinstance(block, Pool) else v[0]
                for k, v in slots.items()
                if is_statistic(k)
            }
            if own:
                private[statistics_name(name)] = own
    return private


def statistics_name(block_name: str) -> str:
    """The name under which a client keeps its own statistics of a shared block."""
    return f"{block_name}/statistics"


def check_statistics(method: Method) -> None:
    """Refuse running statistics where the method was told to."""
    statistics = [name for name in method.net.names if is_statistic(name)]
    pools = {name: block for name, block in method.blocks().items() if isinstance(block, Pool)}
    copied = [name for name, pool in pools.items() if pool.of is not None or pool.on_request]
    if method.statistics == "local" and statistics and copied:
        raise UserError(
            f'statistics = "local" has no meaning for "{copied[0]}", of which a client sees '
            f"changing slots",
            'use statistics = "average"',
        )
    if method.statistics == "refuse" and statistics:
        layer = statistics[0].rpartition(".")[0]
        raise UserError(
            f"net has running statistics ({layer})", "use GroupNorm, or track_running_stats=False"
        )


def to_device(params: Params, device: torch.device | str) -> Params:
    there = torch.device(device)
    return {
        name: value if value.device == there else value.to(there) for name, value in params.items()
    }


def count_bytes(params: Params, skip_statistics: bool = False, rows: int = 1) -> int:
    """The size of one copy on the wire; `rows` is how many are side by side in these tensors."""
    tensors: list[Tensor] = [
        v for k, v in params.items() if not (skip_statistics and is_statistic(k))
    ]
    return sum(t.numel() // max(1, rows) * t.element_size() for t in tensors)
