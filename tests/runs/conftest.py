"""A configuration whose run takes a fraction of a second."""

from typing import Any

import pytest

Table = dict[str, Any]


@pytest.fixture
def small() -> Table:
    """Four clients, 3 rounds of FedAvg on made-up points of 3 classes."""
    return {
        "seed": 3,
        "rounds": 3,
        "device": "cpu",
        "data": {
            "name": "gaussian",
            "clients": 4,
            "options": {"rows": 120, "classes": 3, "features": 5},
            "split": [0.6, 0.2, 0.2],
        },
        "net": {"name": "mlp", "hidden": [6]},
        "method": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
    }
