"""A state as bytes and back: what a resumed run would be given."""

from __future__ import annotations

import json

import safetensors.torch
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.core.state import State

Path = tuple[str, ...]


def to_bytes(state: State) -> tuple[bytes, str]:
    """All tensors as safetensors, and where each belongs as JSON."""
    leaves = _flatten(state)
    tensors = [tensor.detach().clone().contiguous() for _, tensor in leaves]
    paths = [path for path, _ in leaves]
    names = [list(state.server), list(state.memory), list(state.private)]  # some may hold no tensor
    numbered = {str(number): tensor for number, tensor in enumerate(tensors)}
    return safetensors.torch.save(numbered), json.dumps([state.round, *names, paths])


def from_bytes(tensors: bytes, header: str) -> State:
    """The state that was stored."""
    loaded = safetensors.torch.load(tensors)
    round_, server_names, rules, clients, paths = json.loads(header)
    server: Blocks = {name: {} for name in server_names}
    memory: dict[str, Blocks] = {rule: {} for rule in rules}
    private: dict[int, Blocks] = {client: {} for client in clients}
    for number, (home, owner, block, key) in enumerate(paths):
        blocks = {"server": server, "memory": memory.get(owner, {})}.get(home)
        holder = private[int(owner)] if blocks is None else blocks
        holder.setdefault(block, {})[key] = loaded[str(number)]
    return State(round_, server, memory, private)


def _flatten(state: State) -> list[tuple[Path, Tensor]]:
    homes = [(("server", ""), state.server)]
    homes += [(("memory", rule), blocks) for rule, blocks in state.memory.items()]
    homes += [(("client", str(client)), blocks) for client, blocks in state.private.items()]
    return [
        ((*home, b, k), v)
        for home, blocks in homes
        for b, block in blocks.items()
        for k, v in block.items()
    ]
