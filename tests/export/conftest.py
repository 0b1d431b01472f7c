"""Tiny runs to export from, each made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Config, Federation, RunResult, run
from fedblocks.data.federation import Parts

Start = Callable[..., RunResult]

# Options without which a mechanism would be idle, or large, in so small a run.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedmn": {"modules": [2, 2, 2], "summary_width": 4, "label_width": 3},
    "fedmn_reference": {"widths": [6, 5], "dropout": 0.0, "summary_width": 4, "label_width": 3},
    "clustered": {
        "max_clusters": 2,
        "first_round": 0,
        "epsilon1": 2.0,
        "epsilon2": 0.2,
        "min_size": 1,
    },
    "modfl": {"operations": 2},
    "pfedhn": {"hidden": 8},
    "flow_v2": {"policy": [8]},
    "fedfomo": {"peers": 2},
}


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients of two kinds, with 6 numbers an example and 3 classes."""
    rng = np.random.Generator(np.random.PCG64(0))
    path = tmp_path_factory.mktemp("data") / "f.npz"
    parts = []
    for client in range(4):
        drawn = [
            (rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n))
            for n in (12 + client, 5, 9)
        ]
        parts.append(Parts(*((x, (x[:, 0] > 0) + 1 * (y == 2)) for x, y in drawn)))
    built = Federation.from_parts(parts, classes=3)
    replace(built, tags={"operation": np.arange(4) % 2}).save(path)
    return path


@pytest.fixture(scope="session")
def start(federation: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """A run of two rounds of a method on that federation; the same question has the same answer."""
    built: dict[str, RunResult] = {}

    def begin(method: str, net: dict[str, Any] | None = None, **options: Any) -> RunResult:
        key = f"{method} {net} {options}"
        if key not in built:
            table: dict[str, Any] = {
                "rounds": 2,
                "engine": "sequential",
                "allow_degenerate": True,  # no net here has a norm for FedBN
                "net": net or {"name": "mlp", "hidden": [5]},
                "method": {"name": method, "batch_size": 4, **OPTIONS.get(method, {}), **options},
                "data": {"name": "saved", "options": {"path": str(federation)}},
                "evaluation": {"every": 2},
            }
            built[key] = run(Config.of(table), tmp_path_factory.mktemp("runs") / "r")
        return built[key]

    return begin
