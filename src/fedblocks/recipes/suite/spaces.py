"""What is tuned: at most four options of a method, each with a few values.

Every method gets the same number of settings, whatever it has to tune: its defaults, and others
drawn from its space by the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.random import generator
from fedblocks.recipes.recipe import Values

SETTINGS = 8  # with the defaults
MOST = 4  # options in a space
FACTORS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)  # of the rate that is the default
Space = Mapping[str, tuple[Any, ...]]

TUNED_AFTERWARDS: Space = {"tune_epochs": (1, 3, 5)}
STRENGTHS = (0.03, 0.1, 0.3, 1.0)
SPACES: Mapping[str, Space] = {
    "fedprox": {"strength": (0.001, 0.01, 0.1, 1.0)},
    "fedavg_ft": {**TUNED_AFTERWARDS, "tune_lr": (0.03, 0.1, 0.3)},
    "ditto": {"strength": STRENGTHS},
    "ifca": {"clusters": (2, 3, 4, 6), "start": ("random", "updates")},
    "fedem": {"components": (2, 3, 4)},
    "pfedmb": {"branches": (2, 3, 4), "alpha_lr": (0.3, 1.0, 3.0)},
    "modfl": {"operations": (2, 3, 4, 6), "start": ("warmup", "updates"), "warmup": (2, 5)},
    "clustered": {"epsilon1": (0.4, 1.0, 2.0), "epsilon2": (0.1, 0.5, 1.6), "first_round": (2, 5)},
    "pfedme": {"strength": (1.0, 5.0, 15.0), "inner_lr": (0.03, 0.09)},
    "mean_reg_mtl": {"strength": STRENGTHS},
    "fedyogi": {"server_lr": (0.003, 0.01, 0.03, 0.1)},
    "fedadam": {"server_lr": (0.003, 0.01, 0.03, 0.1)},
    "fedadagrad": {"server_lr": (0.003, 0.01, 0.03, 0.1)},
    "apfl": {"alpha": (0.25, 0.5, 0.75), "adapt_alpha": ("never", "round")},
    "fedrep": {"head_epochs": (1, 5, 10)},
    "fedbabu": TUNED_AFTERWARDS,
    "fedmn": {"router_lr": (0.3, 1.0, 3.0), "router_spread": (1.0, 10.0)},
    "fedrecon": {"recon_epochs": (1, 5), "recon_lr": (0.1, 0.3)},
    "dynamic_routing": TUNED_AFTERWARDS,
    "flow": {"local_epochs": (1, 3, 10), "router_pace": (0.3, 1.0)},
    "flow_v2": {"local_epochs": (1, 3, 10), "strength": (0.0, 0.001, 0.01)},
    "fedfomo": {"peers": (3, 5, 10), "epsilon": (0.1, 0.3)},
    "fedamp": {"strength": STRENGTHS, "sigma": (0.1, 1.0, 10.0)},
    "heur_fedamp": {"strength": STRENGTHS, "scale": (5.0, 25.0)},
    "per_fedavg": {"inner_lr": (0.01, 0.03, 0.1), "adapt_steps": (1, 5)},
    "scaffold": {"server_lr": (0.3, 1.0)},
    "moon": {"strength": (0.1, 1.0, 5.0)},
    "fedala": {"top": (1, 2), "mixing_lr": (0.3, 1.0)},
    "pfedhn": {"server_lr": (0.003, 0.01, 0.03), "hidden_layers": (1, 3)},
}


def space_of(name: str, kind: type[Method], rate: float) -> Space:
    """Options and their values: ours are listed here, other methods say `space` themselves; the
    learning rate is always one of them.
    """
    own: Space = SPACES.get(name, {}) if is_ours(kind) else getattr(kind, "space", {})
    space = {"lr": tuple(float(f"{factor * rate:.3g}") for factor in FACTORS), **own}
    if len(space) > MOST:
        names = ", ".join(space)
        fix = f"keep at most {MOST - 1} besides lr: a larger space gets no more tries"
        raise UserError(f"{name} has {len(space)} options to tune ({names})", fix)
    return space


def settings_of(name: str, kind: type[Method], rate: float) -> tuple[Values, ...]:
    """The settings that are tried: the defaults, and others drawn from the space."""
    space = space_of(name, kind, rate)
    every = [
        {f"method.{key}": value for key, value in zip(space, values, strict=True)}
        for values in product(*space.values())
    ]
    drawn = generator(0, "suite", name).choice(len(every), SETTINGS - 1, replace=False)
    return ({}, *(every[i] for i in sorted(drawn.tolist())))


def is_ours(kind: type[Method]) -> bool:
    """Whether a method is a part of this package, so that its version says which code it is."""
    return kind.__module__.startswith("fedblocks.methods")
