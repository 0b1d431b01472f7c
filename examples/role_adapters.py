"""Adapters for the roles of plays: a small character transformer is pre-trained on some plays, and
each large role of the others is a client that personalises it by adapters.

    python examples/role_adapters.py shakespeare_roles.json.xz [--out runs/roles]

The file holds {"users": ["play/ROLE", ...], "speeches": {"play/ROLE": [...], ...}}. Nothing else is
needed, and a CPU does it in minutes. Prints the share of next characters that each method gets
right, over clients.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.data import Parts
from fedblocks.nets import gpt

STEPS = 48  # characters of an example
PLAYS = 25  # whose roles the base is trained on
LEAST = 20_000  # characters of a role that is a client
LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,;:!?'-"  # all others are blanks


def read_roles(path: Path) -> dict[str, str]:
    """Role -> all that it says, in small letters."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        stored = json.load(file)
    speeches = stored["speeches"]
    by_role = speeches if isinstance(speeches, dict) else dict(zip(stored["users"], speeches))
    return {role: "\n".join(said).lower() for role, said in by_role.items()}


def as_examples(text: str) -> tuple[Tensor, Tensor]:
    """Windows of characters, and for each character the next one: [examples, steps] twice."""
    place = {letter: number for number, letter in enumerate(LETTERS)}
    numbers = torch.tensor([place.get(letter, 1) for letter in text])
    count = (len(numbers) - 1) // STEPS
    x, y = (numbers[start : start + count * STEPS].view(count, STEPS) for start in (0, 1))
    return x, y


def pretrain(text: str, steps: int) -> nn.Module:
    """A causal transformer that has seen a part of the text."""
    torch.manual_seed(0)
    module = gpt((STEPS,), len(LETTERS), width=64, layers=2, heads=4).make()
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    x, y = as_examples(text)
    for step in range(steps):
        rows = torch.randint(0, len(x), (64,))
        loss = nn.functional.cross_entropy(module(x[rows]).flatten(0, 1), y[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"pre-training, step {step + 1}: {loss.item():.2f} nats a character", flush=True)
    return module


def federation(roles: dict[str, str], most: int) -> fb.Federation:
    """A client for each large role: the first lines to train on, the last to test."""
    large = sorted((r for r in roles if len(roles[r]) >= LEAST), key=lambda r: -len(roles[r]))
    parts = []
    for role in large[:most]:
        x, y = as_examples(roles[role][:LEAST])
        first, second = int(0.6 * len(x)), int(0.8 * len(x))
        cuts = (slice(0, first), slice(first, second), slice(second, None))
        parts.append(Parts(*((x[cut], y[cut]) for cut in cuts)))
    return fb.Federation.from_parts(parts, classes=len(LETTERS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/roles"))
    parser.add_argument("--steps", type=int, default=600, help="of pre-training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=10)
    chosen = parser.parse_args()

    roles = read_roles(chosen.file)
    plays = sorted({role.split("/")[0] for role in roles})
    seen = "\n".join(text for role, text in roles.items() if role.split("/")[0] in plays[:PLAYS])
    others = {role: text for role, text in roles.items() if role.split("/")[0] in plays[PLAYS:]}
    base, data = pretrain(seen, chosen.steps), federation(others, chosen.clients)
    net = fb.lora(base, rank=8, targets=("self_attn", "linear1", "linear2"))
    how = {"lr": 2e-3, "batch_size": 32, "optimizer": fb.Adam()}
    methods = {
        "base": fb.Local(net, **{**how, "lr": 1e-12}),
        "local": fb.Local(net, **how),
        "fedavg_lora": fb.FedAvgLoRA(net, **how),
        "ffa_lora": fb.FFALoRA(net, **how),
        "fedsa_lora": fb.FedSALoRA(net, **how),
        "product_lora": fb.ProductLoRA(net, **how),
        "dual_lora": fb.DualLoRA(net, **how),
    }
    sizes = sum(v.numel() for v in net.base.values()), net.size()
    print(f"{data.clients} roles, a base of {sizes[0]:,} numbers, adapters of {sizes[1]:,}")
    for name, method in methods.items():
        result = fb.run(method, data, chosen.rounds, chosen.out / name, evaluation={"every": 100})
        own = list(result.accuracies().values())
        print(f"{name:12} mean {sum(own) / len(own):.3f}, worst {min(own):.3f}", flush=True)


if __name__ == "__main__":
    main()
