"""A real federation of two clients trains adapters: it ends as the simulated one, and the base is
on no wire.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedblocks as fb
from fedblocks.runs.storage.folder import RunFolder

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

CODE = """
import torch
from torch import nn
import fedblocks as fb
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

def adapted(input_shape, classes):
    torch.manual_seed(0)
    layers = (nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, classes))
    return fb.lora(nn.Sequential(nn.Flatten(), *layers), rank=4, targets=("1", "3"), head="5")

NETS["adapted"] = adapted
METHODS["fedsa_lora"] = fb.FedSALoRA
"""
CONFIG = """
rounds = 2
threads = 1
engine = "sequential"
device = "cpu"
data = {name = "digits", clients = 2}
net = {name = "adapted"}
method = {name = "fedsa_lora", head = "private", lr = 0.1}
"""
A_BYTES = 4 * 4 * (64 + 48)  # rank x inputs of both layers x bytes of a number


def command(folder: Path, *words: str) -> None:
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "fedblocks", *words, "--code", "code.py"]
    done = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_clients_end_as_in_a_simulation_and_send_factors_alone(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "run.toml").write_text(CONFIG)
    command(tmp_path, "run", "run.toml", "--out", "simulated")
    command(tmp_path, "federation", "local", "run.toml", "--out", "real", "--nodes", "2")
    simulated, real = (fb.load_run(tmp_path / name) for name in ("simulated", "real"))
    ours, theirs = real.state().server, simulated.state().server
    assert ours.keys() == theirs.keys() == {"lora.A"}
    for name, value in theirs["lora.A"].items():
        assert torch.equal(ours["lora.A"][name], value)
    with RunFolder.open(tmp_path / "real") as folder:
        rows = folder.store.rows("SELECT direction, block, bytes FROM traffic")
    assert {row["block"] for row in rows} == {"lora.A"} and len(rows) == 8
    for row in rows:
        assert row["bytes"] == A_BYTES + 8 * (row["direction"] == "up")
