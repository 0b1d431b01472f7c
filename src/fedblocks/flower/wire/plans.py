"""What both sides must agree on before anything is sent: the tensors of every block,
and a hash of the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from torch import Tensor

from fedblocks import __version__
from fedblocks.core.blocks import Federated
from fedblocks.core.method import Method
from fedblocks.core.parts import Params, is_statistic
from fedblocks.core.plan import plan
from fedblocks.core.state import initial_copy
from fedblocks.flower.wire.messages import Spec

Specs = dict[str, Spec]  # tensor -> dtype and shape of one copy


def specs_of(method: Method, copy: Params) -> Specs:
    """Return the tensors of one copy that travel: all but statistics that clients keep
    to themselves.
    """
    local = method.statistics == "local"
    return {
        k: (v.dtype, tuple(v.shape)) for k, v in copy.items() if not (local and is_statistic(k))
    }


def plan_specs(method: Method, seed: int) -> dict[str, Specs]:
    """Return the tensors of every block that travels."""
    layout = method.blocks().items()
    return {
        name: specs_of(method, initial_copy(b.part, seed))
        for name, b in layout
        if isinstance(b, Federated)
    }


def plan_hash(method: Method, specs: Mapping[str, Specs], seed: int) -> str:
    """Hash version, method, options, tensors, seed and constants: equal on machines
    that would do the same.
    """
    tensors = {
        name: [[k, str(dtype), list(shape)] for k, (dtype, shape) in own.items()]
        for name, own in specs.items()
    }
    options = {name: value for name, value in method.options().items() if _plain(value)}
    constants = {name: _hash(value) for name, value in method.net.constants.items()}
    agreement = [
        __version__,
        type(method).__name__,
        options,
        plan(method).text(),
        tensors,
        seed,
        constants,
    ]
    return sha256(json.dumps(agreement, sort_keys=True, default=str).encode()).hexdigest()


def _hash(value: Tensor) -> str:
    return sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _plain(value: Any) -> bool:
    """Whether a value prints the same on every machine."""
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def several(specs: Specs, copies: int) -> Specs:
    """Return the same tensors for this many copies side by side; 0 is a single copy."""
    return {
        k: (dtype, (copies, *shape) if copies else shape) for k, (dtype, shape) in specs.items()
    }
