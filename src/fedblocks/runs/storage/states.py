"""A state as the trees that checkpoints hold, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.core.private_state import ShardedState
from fedblocks.core.state import State, to_device
from fedblocks.runs.storage.checkpoint import Loaded
from fedblocks.runs.storage.manifest import refuse_nonsense
from fedblocks.runs.storage.trees import Tree


def shared_tree(state: State) -> Tree:
    """What belongs to the server."""
    return {"server": state.server, "memory": state.memory}


def client_trees(state: State) -> Mapping[int, Tree]:
    """What belongs to each client."""
    if isinstance(state.private, ShardedState):  # in order already
        return state.private
    return {client: state.private[client] for client in sorted(state.private)}


def state_of(loaded: Loaded, device: torch.device | str) -> State:
    """The state that a checkpoint holds."""
    with refuse_nonsense(f"the checkpoint of round {loaded.round}"):
        memory = {name: _on(blocks, device) for name, blocks in loaded.shared["memory"].items()}
        private = _place(loaded.clients, device)
        return State(loaded.round, _on(loaded.shared["server"], device), memory, private)


def settle(state: State) -> State:
    """The server's numbers in memory of their own, laid out as a checkpoint would bring them back.

    Sums over tensors with other strides can differ in the last bit; so a resumed run and an
    uninterrupted one agree. What clients keep is copied to the stack of the next round anyway, and
    may lie as it does.
    """
    memory = {name: _lay_out(blocks) for name, blocks in state.memory.items()}
    return replace(state, server=_lay_out(state.server), memory=memory)


def _place(clients: Mapping[int, Blocks], device: torch.device | str) -> Mapping[int, Blocks]:
    if isinstance(clients, ShardedState):
        return clients.on(device)
    return {client: _on(blocks, device) for client, blocks in clients.items()}


def _on(blocks: dict[str, Any], device: torch.device | str) -> Blocks:
    return {name: to_device(params, device) for name, params in blocks.items()}


def _lay_out(blocks: Blocks) -> Blocks:
    return {name: {k: _plain(v) for k, v in params.items()} for name, params in blocks.items()}


def _plain(value: Tensor) -> Tensor:
    value = value.contiguous()
    return value.clone() if value.storage_offset() else value
