"""From the plays to the two files that the study reads:

base.safetensors   the tensors of a small character transformer, trained on the roles of PLAYS plays
roles.npz          characters [roles, SIZE * STEPS + 1] of the large roles of the other plays, names

The file of plays is `shakespeare_roles.json.xz` of docs/data-sets.md. On one core of a CPU the
training takes some minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedblocks.core.net import Net
from fedblocks.data.sets.corpora import read_json
from fedblocks.nets import gpt

PLAYS = 25  # the first ones by name: their roles make the base, and are no clients
STEPS, SIZE = 64, 100  # characters of a window, and windows of a role
LETTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?'-"  # others are blanks
WIDTH, LAYERS, HEADS = 64, 2, 4
TRAINING_STEPS, BATCH, RATE = 4000, 32, 3e-3  # the rate falls to zero by half a cosine

Characters = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Material:
    """What the study reads."""

    base: dict[str, Tensor]
    characters: Characters  # [roles, SIZE * STEPS + 1]
    roles: list[str]

    @staticmethod
    def read(folder: Path) -> Material:
        if not (folder / "base.safetensors").is_file():
            raise SystemExit(f"{folder} has no base.safetensors: run with --prepare FILE first")
        with np.load(folder / "roles.npz", allow_pickle=False) as stored:
            characters, roles = stored["characters"], stored["roles"].tolist()
        return Material(load_file(folder / "base.safetensors"), characters, roles)


def make_net() -> Net:
    return gpt((STEPS,), len(LETTERS), width=WIDTH, layers=LAYERS, heads=HEADS)


def prepare(plays: Path, folder: Path) -> None:
    """Write the two files."""
    folder.mkdir(parents=True, exist_ok=True)
    seen, others = divide(read_roles(plays))
    save_file(pretrain("\n".join(seen.values())), folder / "base.safetensors")
    length = SIZE * STEPS + 1
    large = {role: as_numbers(text[:length]) for role, text in others.items() if len(text) > length}
    roles, characters = np.array(list(large)), np.stack(list(large.values()))
    np.savez_compressed(folder / "roles.npz", characters=characters, roles=roles)


def read_roles(path: Path) -> dict[str, str]:
    """play/ROLE -> all that it says, in the order of the play."""
    content = read_json(path, "speeches")
    return {u: "\n".join(said) for u, said in zip(content["users"], content["speeches"])}


def divide(roles: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Those of the plays that make the base, and the others."""
    first = sorted({role.split("/")[0] for role in roles})[:PLAYS]
    is_seen = {role: role.split("/")[0] in first for role in roles}
    seen, others = (
        {r: t for r, t in roles.items() if is_seen[r] is which} for which in (True, False)
    )
    return seen, others


def as_numbers(text: str) -> Characters:
    place = {letter: number for number, letter in enumerate(LETTERS)}
    return np.array([place.get(letter, 1) for letter in text], np.uint8)


def pretrain(text: str, steps: int = TRAINING_STEPS) -> dict[str, Tensor]:
    """A transformer that has read windows at random places of a text."""
    torch.manual_seed(0)
    module, numbers = make_net().make(), torch.from_numpy(as_numbers(text)).long()
    optimizer = torch.optim.Adam(module.parameters(), RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        begin = torch.randint(0, len(numbers) - STEPS, (BATCH, 1))
        windows = numbers[begin + torch.arange(STEPS + 1)]  # [batch, steps + 1]
        loss = loss_of(module, windows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 249:
            print(f"step {step + 1}: {loss.item():.3f} nats a character", flush=True)
    return {name: value.detach() for name, value in module.state_dict().items()}


def loss_of(module: nn.Module, windows: Tensor) -> Tensor:
    """Of every character but the first, by those before it."""
    return F.cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
