"""Configurations by name: functions that return one, and how one is read from a preset or a file and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError, nearest
from fedblocks.runs.choices import WHERE, renamed
from fedblocks.runs.config import Config
from fedblocks.runs.options import Table
from fedblocks.runs.source import Key, Source, changed, parse_change, read_toml


def digits(method: str, lr: float = 0.3, **options: Any) -> Config:
    """Handwritten digits of 20 clients in 4 hidden groups, which differ in labels, angle and meaning of labels."""
    return Config.of(
        {
            "rounds": 40,
            "threads": 1,  # more only get in each other's way with a net this small
            "data": {
                "name": "digits",
                "clients": 20,
                "split": [0.6, 0.2, 0.2],
                "shift": {"name": "joint", "groups": 4, "keep": 0.6},
            },
            "net": {"name": "mlp", "hidden": [64]},
            "method": {"name": method, "lr": lr, "epochs": 3, "batch_size": 16, **options},
            "evaluation": {"every": 5},
            "checkpoint": {"every": 5},
        }
    )


# Chosen by validation accuracy after 40 rounds from lr 0.1, 0.3, 0.6; epochs 1, 3; strength 0.1, 1; alpha_lr 0.3, 1, 3.
# FedProx and FedAvg+ have the values of FedAvg.
PRESETS: dict[str, Callable[[], Config]] = {
    "digits-local": partial(digits, "local", lr=0.6),
    "digits-fedavg": partial(digits, "fedavg", lr=0.6),
    "digits-fedprox": partial(digits, "fedprox", lr=0.6),
    "digits-fedavg_ft": partial(digits, "fedavg_ft", lr=0.6),
    "digits-fedper": partial(digits, "fedper"),
    "digits-ditto": partial(digits, "ditto", lr=0.6, strength=0.1),
    "digits-ifca": partial(digits, "ifca", clusters=4),
    "digits-fedem": partial(digits, "fedem", lr=0.6, components=4),
    "digits-pfedmb": partial(digits, "pfedmb", branches=4, alpha_lr=1.0),
}


def read_config(what: str, changes: Sequence[str] = ()) -> Config:
    """A configuration by the name of a preset or of a TOML file, with changes such as `method.branches=4`."""
    if what in PRESETS:
        table, source = PRESETS[what]().resolved(), Source(f"preset {what}")
    elif Path(what).suffix == ".toml" or Path(what).is_file():
        table, source = read_toml(Path(what))
    else:
        raise UserError(f'there is no preset or file "{what}"', nearest(what, PRESETS))
    return change(table, source, changes)


def change(table: Table, source: Source, changes: Sequence[str]) -> Config:
    """A configuration of plain values with some of them replaced by path."""
    for text in changes:
        path, value = parse_change(text)
        kind = next((k for k, where in WHERE.items() if path in (where, (*where, "name"))), None)
        if kind is not None and isinstance(value, str):
            path, value = WHERE[kind], renamed(kind, _at(table, WHERE[kind]), value)
        table = changed(table, path, value)
    return Config.of(table, Source(source.name, source.text, frozenset(parse_change(text)[0] for text in changes)))


def _at(table: Any, path: Key) -> Any:
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    return table
